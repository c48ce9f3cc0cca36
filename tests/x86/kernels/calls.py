"""The kernels of the x86 target by ctypes, on images that end where memory does."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pytest
from numpy.typing import NDArray

from jit_passes import _C

SLACK = 64  # bytes that kernels may read behind an image: kSlack
GUARD = 0xA5
PAGE = mmap.PAGESIZE

Codes = NDArray[np.uint8]

_library = ctypes.CDLL(_C.__file__)
_library.jit_passes_x86_has_form.restype = ctypes.c_bool  # of an int, C++ sets one byte
_libc = ctypes.CDLL(None)


class Form(IntEnum):
    """Forms of the kernels, in order; each is tested where the processor has its instructions."""

    PLAIN = 0
    AVX2 = 1
    AVX_VNNI = 2
    AVX512_VNNI = 3
    AMX_INT8 = 4

    def is_here(self) -> bool:
        return _library.jit_passes_x86_has_form(ctypes.c_int32(self))


FORMS = [form for form in Form if form.is_here()]


def _structure(name: str, fields: str, kind: type) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": [(f, kind) for f in fields.split()]})


Window = _structure(
    "Window",
    "kernel_h kernel_w stride_h stride_w dilation_h dilation_w pad_top pad_left groups "
    "kernel_d stride_d dilation_d pad_front",
    ctypes.c_int64,
)
Border = _structure("Border", "top left bottom right front back", ctypes.c_int64)
Strides = _structure("Strides", "image depth height width channel", ctypes.c_int64)


class ImageStruct(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "channels")),
        *((name, ctypes.c_int64) for name in ("pixel", "row", "image", "depth", "plane")),
    )


class CodeRange(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("low", "high", "zero_point"))


ALL_CODES = CodeRange(0, 255, 0)


class ToCodes(ctypes.Structure):
    _fields_ = (
        ("inverse_scale", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("range", CodeRange),
    )


class Requantize(ctypes.Structure):
    _fields_ = (
        ("multiplier", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("range", CodeRange),
        ("table", ctypes.c_void_p),
        ("residual", ctypes.POINTER(ImageStruct)),
        ("residual_multiplier", ctypes.c_float),
    )


class Memory:
    """Bytes with a page behind them, or before them, that nobody may touch."""

    def __init__(self, size: int, *, at_front: bool = False) -> None:
        pages = -(-size // PAGE)
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        self.whole = np.frombuffer(self.map, np.uint8)
        start = PAGE if at_front else PAGE + pages * PAGE - size
        self.bytes = self.whole[start : start + size]
        self.base = self.whole.ctypes.data
        self.ends = (self.base, self.base + (pages + 1) * PAGE)
        for end in self.ends:
            assert _libc.mprotect(ctypes.c_void_p(end), PAGE, 0) == 0

    def __del__(self) -> None:
        for end in self.ends:
            _libc.mprotect(ctypes.c_void_p(end), PAGE, mmap.PROT_READ | mmap.PROT_WRITE)


@dataclass
class Image:
    """Codes [images, depth, height, width, channels] with a border, and `gap` bytes behind a pixel.

    All bytes outside of the image and its border hold `GUARD`, which `check` looks for.
    """

    shape: tuple[int, int, int, int, int]
    border: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    gap: int = 0
    at_front: bool = False
    struct: ImageStruct = field(init=False)

    def __post_init__(self) -> None:
        n, d, h, w, c = self.shape
        top, left, bottom, right, front, back = self.border
        whole = (n, d + front + back, h + top + bottom, w + left + right, c + self.gap)
        size = int(np.prod(whole)) if n else 0
        self.memory = Memory(size + SLACK, at_front=self.at_front)
        self.memory.bytes[:] = GUARD
        self.whole = self.memory.bytes[:size].reshape(whole)
        self.codes = self.whole[:, front : front + d, top : top + h, left : left + w, :c]
        strides = self.codes.strides
        self.struct = ImageStruct(
            self.codes.ctypes.data, n, h, w, c, strides[3], strides[2], strides[0], d, strides[1]
        )

    @classmethod
    def of(cls, codes: Codes, **options: object) -> Image:
        image = cls(codes.shape, **options)  # type: ignore[arg-type]
        image.codes[:] = codes
        return image

    def fill(self, value: int) -> Image:
        """Fill the border; the image has one, so it is dense."""
        _library.jit_passes_x86_fill_border(
            ctypes.byref(self.struct), ctypes.byref(Border(*self.border)), value
        )
        return self

    def check(self) -> None:
        inside = self.codes.copy()
        self.codes[:] = GUARD
        assert (self.memory.bytes == GUARD).all()
        self.codes[:] = inside


def call(name: str, *arguments: object) -> object:
    function = getattr(_library, f"jit_passes_x86_{name}")
    return function(*(convert(argument) for argument in arguments))


def convert(argument: object) -> object:
    if isinstance(argument, bool):
        return ctypes.c_bool(argument)
    if isinstance(argument, np.float32):
        return ctypes.c_float(float(argument))
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, Image):
        return ctypes.byref(argument.struct)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return argument


class Crowd:
    """How many threads calls take, by a clock in milliseconds."""

    def __init__(self) -> None:
        _library.jit_passes_x86_crowd.restype = ctypes.c_void_p
        self._crowd = ctypes.c_void_p(_library.jit_passes_x86_crowd())

    def __del__(self) -> None:
        call("delete_crowd", self._crowd)

    def threads(self, most: int, now: float) -> object:
        return call("crowd_threads", self._crowd, most, int(now * 1e6))

    def finished(self, left_out: int, was_late: bool, now: float, begun: float = -1e3) -> None:
        """Tell of a call; without `begun` it came right behind the one before."""
        call("crowd_finished", self._crowd, left_out, was_late, int(begun * 1e6), int(now * 1e6))


class Convolution:
    """Packed weights [out, depth, height, width, in / groups]."""

    def __init__(
        self,
        weight: NDArray[np.int8],
        *,
        groups: int = 1,
        stride: tuple[int, int, int] = (1, 1, 1),
        dilation: tuple[int, int, int] = (1, 1, 1),
        pad: tuple[int, int, int] = (0, 0, 0),
        zero_point: int = 0,
        dense: bool = True,
        form: int = FORMS[-1],
    ) -> None:
        out_channels, kd, kh, kw, in_channels = weight.shape
        window = Window(
            kh, kw, stride[1], stride[2], dilation[1], dilation[2], pad[1], pad[2], groups,
            kd, stride[0], dilation[0], pad[0],
        )  # fmt: skip
        new = _library.jit_passes_x86_convolution
        new.restype = ctypes.c_void_p
        weight = np.ascontiguousarray(weight)
        self.handle = ctypes.c_void_p(
            new(
                *(convert(x) for x in (window, in_channels * groups, out_channels, weight)),
                *(ctypes.c_int32(zero_point), convert(dense), convert(int(form))),
            )
        )
        if not self.handle:
            raise ValueError("refused")

    def __del__(self) -> None:
        call("convolution_delete", self.handle)

    def border(self, image: Image, out: Image) -> tuple[int, ...]:
        border = Border()
        call("convolution_border", self.handle, image, out, border)
        return tuple(getattr(border, name) for name, _ in Border._fields_)

    def run(self, image: Image, out: Image, requantize: Requantize, part: int = 1 << 40) -> None:
        call("convolution_run", self.handle, image, out, requantize, part)


def requantize(
    multiplier: NDArray[np.float32],
    offset: NDArray[np.float32],
    low: int = 0,
    high: int = 255,
    table: Codes | None = None,
    residual: Image | None = None,
    residual_multiplier: float = 0.0,
    zero_point: int = 0,
) -> Requantize:
    made = Requantize(
        multiplier.ctypes.data,
        offset.ctypes.data,
        CodeRange(low, high, zero_point),
        table.ctypes.data if table is not None else None,
    )
    if residual is not None:
        made.residual = ctypes.pointer(residual.struct)
        made.residual_multiplier = residual_multiplier
    made.keep = (multiplier, offset, residual, table)
    return made


def spans(
    size: int, out: int, kernel: int = 0, stride: int = 1, dilation: int = 1,
    pad: tuple[int, int] = (0, 0), include_pad: bool = False,
) -> NDArray[np.int64]:  # fmt: skip
    found = np.zeros((out, 3), np.int64)
    call("spans", size, out, kernel, stride, dilation, *pad, include_pad, found)
    return found


Triple = tuple[int, int, int]
PARTS = [1, 3, 1 << 40]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name.lower())
vector_forms = pytest.mark.parametrize("form", FORMS[1:], ids=lambda form: form.name.lower())


def random_codes(rng: np.random.Generator, *shape: int) -> Codes:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def assert_rounds_to(
    found: Codes, value: NDArray[np.float64], low: int = 0, high: int = 255
) -> None:
    """Found codes are the clamped values, rounded, where these are no ties."""
    clamped = np.clip(value, low, high)
    assert found.min() >= low
    assert found.max() <= high
    assert np.abs(found - clamped).max() <= 0.5 + 1e-3
