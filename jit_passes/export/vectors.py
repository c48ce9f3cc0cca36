"""Operands and results of each integer operator as files, for testbenches of hardware."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
import torch

from ..errors import JitPassesError, without_folders
from ..files import path_of, write_whole, writing
from .c import examples_of
from .c.parameters import Parameters, parameters_of
from .c.program import Buffer, Call, Constant, Program
from .c.reading import example_of, read_program

__all__ = ["export_vectors"]
MANIFEST, VERSION = "manifest.json", 1
_TYPES = {"uint8_t": "uint8", "int8_t": "int8", "int16_t": "int16"}
_TYPES |= {"int32_t": "int32", "int64_t": "int64"}


def export_vectors(
    model: torch.jit.ScriptModule,
    batches: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    method: str = "forward",
) -> None:
    """Write operands and results of each integer operator, so that kernels are tested one by one.

    The operators and codes are those of `export_c`. Each operator has a folder, `003_conv1`, with
    an array for each operand, constant and result. An array is a `.npy` file, and a `.hex` file for
    Verilog's `$readmemh`: one number a line in two's complement, the last axis innermost. Arrays of
    codes have an axis in front, of the batches. `manifest.json` lists operators in order: function,
    numbers that it is called with, line of the model's source, and for each array its shape,
    format, scale, zero point and axes. The manifest is written last.

    Args:
        model: lowered for the target `fixed_point`; it is not touched.
        batches: tensors, or tensors in tuples or dicts, all of the same sizes.
        folder: of the files; it is made.
        method: the method whose operators are written.

    Raises:
        JitPassesError: there is no batch, or one has other sizes than the first; the model is
            lowered for another target, or computes something in float; an operator has no form.
        JitPassesError: a file cannot be written; this is an OSError too.
    """
    path = path_of(folder)
    pending = iter(batches)
    first = next(pending, None)
    if first is None:
        raise JitPassesError("there is no batch: give one, whose sizes the vectors will have")
    example = example_of(first, model, method)
    program, _, _ = read_program(model, example, method)
    seen = [_codes_of(program)]
    for found in examples_of(pending, example, model, method):
        seen.append(_codes_of(read_program(model, found, method)[0]))
    operators = [_Operator(i, call, parameters_of(call)) for i, call in enumerate(program.calls)]
    manifest = {
        "version": VERSION,
        "batches": len(seen),
        "rounding": program.rounding,
        "accumulator_bits": program.accumulator_bits,
        "inputs": [buffer.name for buffer in program.inputs],
        "outputs": [buffer.name for buffer in program.outputs],
        "operators": [operator.entry() for operator in operators],
    }
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / MANIFEST).unlink(missing_ok=True)  # of older vectors
    for operator in operators:
        for file, array in operator.arrays([codes[operator.number] for codes in seen]):
            with writing(path / file):
                (path / file).parent.mkdir(exist_ok=True)
            buffered = io.BytesIO()
            np.save(buffered, array, allow_pickle=False)
            write_whole(path / f"{file}.npy", buffered.getbuffer())
            write_whole(path / f"{file}.hex", _hex(array))
    write_whole(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _codes_of(program: Program) -> list[dict[str, torch.Tensor]]:
    """Return for each call the codes of its operands and its result, by name."""
    given = (parameters_of(call).buffers for call in program.calls)
    return [{name: program.codes[buffer] for name, buffer in own.items()} for own in given]


@dataclass(frozen=True)
class _Operator:
    """A call, and where its files are."""

    number: int
    call: Call
    given: Parameters

    @property
    def folder(self) -> str:
        """Its folder."""
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", self.call.name).strip("_")
        return f"{self.number:03}_{name}"

    def arrays(
        self, seen: Sequence[Mapping[str, torch.Tensor]]
    ) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield names of files without their ends, and arrays; of codes for each batch."""
        for name in self.given.buffers:
            yield f"{self.folder}/{name}", np.stack([codes[name].numpy() for codes in seen])
        for name, constant in self.given.constants.items():
            yield f"{self.folder}/{name}", constant.numbers.numpy().astype(_TYPES[constant.ctype])

    def entry(self) -> dict[str, Any]:
        """Return its entry of the manifest."""
        results = {name: b for name, b in self.given.buffers.items() if b is self.call.writes}
        operands = {n: b for n, b in self.given.buffers.items() if n not in results}
        return {
            "name": self.call.name,
            "function": self.call.kernel,
            "source": without_folders(self.call.source),
            "numbers": dict(self.given.numbers),
            "operands": [self._codes(name, buffer) for name, buffer in operands.items()],
            "constants": [self._constant(n, c) for n, c in self.given.constants.items()],
            "results": [self._codes(name, buffer) for name, buffer in results.items()],
        }

    def _codes(self, name: str, buffer: Buffer) -> dict[str, Any]:
        dtype = str(buffer.dtype).removeprefix("torch.")
        known = {
            "value": buffer.name,
            "format": _format(dtype, buffer.scale, buffer.zero_point),
            "scale": buffer.scale or None,
            "zero_point": buffer.zero_point,
        }
        return self._array(name, buffer.shape, dtype) | known

    def _constant(self, name: str, constant: Constant) -> dict[str, Any]:
        dtype, known = _TYPES[constant.ctype], {}
        if name == "weight":
            scales = self._weight_scales()
            formats = list(dict.fromkeys(_format(dtype, scale, 0) for scale in scales))
            known = {"format": ", ".join(formats), "scale": scales, "zero_point": 0}
        return self._array(name, constant.numbers.shape, dtype) | known

    def _array(self, name: str, shape: Sequence[int], dtype: str) -> dict[str, Any]:
        file = f"{self.folder}/{name}"
        found = {"name": name, "shape": list(shape), "dtype": dtype, "axes": self._axes(name)}
        return found | {"npy": f"{file}.npy", "hex": f"{file}.hex"}

    def _axes(self, name: str) -> str:
        """Return the axes of an array in memory, the last one innermost."""
        weight = self.given.constants.get("weight")
        shape = self._shape(name)
        if weight is not None and name == "weight":
            return "OI" + "HW"[4 - len(shape) :]
        if weight is not None and name in ("x", "y"):
            space = "HW"[4 - weight.numbers.dim() :]
            return ("NC" + space)[-len(shape) :] if len(shape) < 5 else _numbered(shape)
        if name in ("bias", "multipliers", "shifts"):
            return "C"
        return _numbered(shape)

    def _shape(self, name: str) -> Sequence[int]:
        constants = self.given.constants
        if name in constants:
            return constants[name].numbers.shape
        return self.given.buffers[name].shape

    def _weight_scales(self) -> list[float]:
        """Return the scales of weights: what rescaling multiplies by, as s_y * M / s_x."""
        x, y = self.given.buffers["x"], self.given.buffers["y"]
        pairs = zip(
            *(self.given.constants[name].numbers.tolist() for name in ("multipliers", "shifts")),
            strict=True,
        )
        return [y.scale * (m / 2**n) / x.scale if x.scale else 0.0 for m, n in pairs]


def _numbered(shape: Sequence[int]) -> str:
    return " ".join(str(axis) for axis in range(len(shape)))


def _format(dtype: str, scale: float, zero_point: int) -> str:
    """Return Q3.4 for 3 bits before the point, 4 behind it, and a sign; UQ without a sign."""
    mantissa, exponent = frexp(scale)
    if mantissa != 0.5 or zero_point:
        return f"{dtype}, affine" if zero_point else dtype
    fraction = 1 - exponent
    bits = np.iinfo(dtype).bits
    if dtype.startswith("u"):
        return f"UQ{bits - fraction}.{fraction}"
    return f"Q{bits - 1 - fraction}.{fraction}"


def _hex(array: np.ndarray[Any, Any]) -> str:
    """Return a line for each number, in two's complement of as many bits as its type has."""
    bits = array.dtype.itemsize * 8
    mask = 2**bits - 1
    return "".join(f"{number & mask:0{bits // 4}x}\n" for number in array.flatten().tolist())
