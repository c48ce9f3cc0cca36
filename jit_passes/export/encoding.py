"""How values are quantized, as plain data: the source of files for other engines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..configuration.located import Located, from_python
from ..errors import ArgumentError, JitPassesError, aligned, nearest, not_among
from ..files import read_bytes, write_whole
from ..specification.grid import DTYPES

KINDS = ("activation", "parameter")
FORM = 1  # of the file
FILE_KEYS = ("form", "encodings", "layers")
ENCODING_KEYS = (
    *("name", "kind", "bits", "quant_min", "quant_max", "symmetric"),
    *("scale", "zero_point", "ch_axis"),
)
TENSORS = ("input", "weight", "bias", "output")
LAYER_KEYS = ("name", "kind", *TENSORS)


@dataclass(frozen=True)
class Encoding:
    """How one value is quantized.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max),  x = (q - zero_point) * scale

    Attributes:
        name: of the value. An activation has its stable name, `layer1.0.conv1:conv2d`; a parameter
            has the path of its attribute, `layer1.0.conv1.weight`.
        kind: "activation" or "parameter".
        bits: width of the codes, from 2 to 32.
        quant_min: smallest code.
        quant_max: largest code.
        symmetric: whether the zero point is the middle of the codes, which is 0 for signed ones.
        scale: input units per step: one, or one for each channel, or for each group of a channel,
            channel by channel.
        zero_point: the codes that mean 0, as many as scales.
        ch_axis: the channel axis; None for one scale.
        group_size: how many neighbouring inputs of a channel share a scale: see `QuantizationSpec`.

    Raises:
        JitPassesError: one of these cannot be, or they do not go together.
    """

    name: str
    kind: str
    bits: int
    quant_min: int
    quant_max: int
    symmetric: bool
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    ch_axis: int | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(float(scale) for scale in self.scale))
        object.__setattr__(self, "zero_point", tuple(int(zero) for zero in self.zero_point))
        if not self.name:
            raise ArgumentError("name is empty: give the name of the value")
        if self.kind not in KINDS:
            raise ArgumentError(not_among("kind", self.kind, KINDS))
        if not 2 <= self.bits <= 32:
            raise ArgumentError(f"bits is a whole number from 2 to 32, not {self.bits!r}")
        if not self.quant_min < self.quant_max:
            raise ArgumentError(f"quant_min = {self.quant_min} is not below {self.quant_max}")
        if bits_of(self.quant_min, self.quant_max) > self.bits:
            raise ArgumentError(
                f"[quant_min, quant_max] = [{self.quant_min}, {self.quant_max}] does not fit "
                f"{self.bits} bits, signed or unsigned"
            )
        if len(self.scale) != len(self.zero_point):
            raise ArgumentError(f"{len(self.scale)} scales and {len(self.zero_point)} zero points")
        if self.group_size is not None and (self.ch_axis is None or self.group_size < 1):
            raise ArgumentError(
                f"group_size = {self.group_size} does not go with ch_axis = {self.ch_axis}"
            )
        if not self.scale or (self.ch_axis is None and len(self.scale) != 1):
            raise ArgumentError(f"{len(self.scale)} scales do not go with ch_axis = {self.ch_axis}")
        for scale in self.scale:
            if not 0 < scale < math.inf:
                raise ArgumentError(f"a scale is finite and above 0, not {scale}")
        for zero_point in self.zero_point:
            if not self.quant_min <= zero_point <= self.quant_max:
                raise ArgumentError(
                    f"zero_point = {zero_point} is not within [{self.quant_min}, {self.quant_max}]"
                )
            if self.symmetric and zero_point != middle(self.quant_min, self.quant_max):
                raise ArgumentError(
                    f"zero_point = {zero_point} is not in the middle of [{self.quant_min}, "
                    f"{self.quant_max}], and the encoding is said to be symmetric"
                )

    @property
    def min(self) -> tuple[float, ...]:
        """The smallest values: (quant_min - zero_point) * scale."""
        return self._values_of(self.quant_min)

    @property
    def max(self) -> tuple[float, ...]:
        """The largest values: (quant_max - zero_point) * scale."""
        return self._values_of(self.quant_max)

    @property
    def signed(self) -> bool:
        """Whether there are codes below 0."""
        return self.quant_min < 0

    @property
    def dtype(self) -> str:
        """The narrowest integer type that holds the codes, by name."""
        for name, dtype in DTYPES.items():
            limits = torch.iinfo(dtype)
            if limits.min <= self.quant_min and self.quant_max <= limits.max:
                return name
        return "uint32"

    def _values_of(self, code: int) -> tuple[float, ...]:
        pairs = zip(self.scale, self.zero_point, strict=True)
        return tuple((code - zero_point) * scale for scale, zero_point in pairs)


@dataclass(frozen=True)
class Layer:
    """How an operator with a weight is quantized, for engines that work module by module.

    Attributes:
        name: path of the module, `layer1.0.conv1`; "" at the top.
        kind: `conv2d`, `linear`, ...; "" where it is not known.
        input: the encoding of its operand; None for float.
        weight: of its weight; None for float.
        bias: of its bias; None for float, or no bias.
        output: of its result, or of the result of the clip or relu behind it; None for float.
    """

    name: str
    kind: str
    input: Encoding | None = None
    weight: Encoding | None = None
    bias: Encoding | None = None
    output: Encoding | None = None


@dataclass(frozen=True)
class Encodings:
    """How a model is quantized: all encodings, and which of them its layers use.

    Printing it gives a table.

    Attributes:
        encodings: of all quantized values, in program order.
        layers: of all operators with a weight that have anything quantized, in program order. An
            operator that is called twice is there twice.

    Raises:
        JitPassesError: two encodings have one name, or a layer has one that is not among them.
    """

    encodings: tuple[Encoding, ...] = ()
    layers: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "encodings", tuple(self.encodings))
        object.__setattr__(self, "layers", tuple(self.layers))
        by_name: dict[str, Encoding] = {}
        for encoding in self.encodings:
            if by_name.setdefault(encoding.name, encoding) is not encoding:
                raise ArgumentError(f"two encodings are called '{encoding.name}'")
        for layer in self.layers:
            for tensor in TENSORS:
                used = getattr(layer, tensor)
                if used is not None and by_name.get(used.name) != used:
                    raise ArgumentError(
                        f"{tensor} of the layer '{layer.name}' is '{used.name}', which is not "
                        "among the encodings"
                    )

    def __getitem__(self, name: str) -> Encoding:
        """Return the encoding of that name.

        Raises:
            JitPassesError: there is none.
        """
        for encoding in self.encodings:
            if encoding.name == name:
                return encoding
        names = [encoding.name for encoding in self.encodings]
        raise JitPassesError(f"no value '{name}' is quantized: {nearest(name, names)}")

    def __contains__(self, name: object) -> bool:
        return any(encoding.name == name for encoding in self.encodings)

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self.encodings)

    def __len__(self) -> int:
        return len(self.encodings)

    def layer(self, name: str) -> Layer:
        """Return the first layer with that path.

        Raises:
            JitPassesError: there is none.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        names = [layer.name for layer in self.layers]
        raise JitPassesError(f"no layer '{name}' is quantized: {nearest(name, names)}")

    @property
    def activations(self) -> tuple[Encoding, ...]:
        """The encodings of values that depend on the input."""
        return tuple(e for e in self.encodings if e.kind == "activation")

    @property
    def parameters(self) -> tuple[Encoding, ...]:
        """The encodings of weights, biases and other constants."""
        return tuple(e for e in self.encodings if e.kind == "parameter")

    def __str__(self) -> str:
        head = ("value", "kind", "bits", "codes", "scale", "zero point")
        return aligned([head, *map(_row, self.encodings)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. Numbers are written so that they are read back exactly.

        Raises:
            JitPassesError: the file cannot be written; this is an OSError too.
        """
        layers = [
            {"name": layer.name, "kind": layer.kind}
            | {t: e.name for t in TENSORS if (e := getattr(layer, t)) is not None}
            for layer in self.layers
        ]
        encodings = [_record(encoding) for encoding in self.encodings]
        data = dict(zip(FILE_KEYS, (FORM, encodings, layers), strict=True))
        write_whole(path, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Encodings:
        """Read a file that `save` wrote. Nothing in it is ever executed.

        Raises:
            JitPassesError: it holds something else; the message names file and key.
            JitPassesError: the file cannot be read; this is an OSError too.
        """
        source = read_json(path)
        found = source.complete("a file of encodings", FILE_KEYS)
        form = found["form"].whole("form")
        if form != FORM:
            raise found["form"].error(f"the form is {form}, and this version reads {FORM}")
        encodings = [_read_encoding(item) for item in found["encodings"].items("encodings")]
        by_name = {encoding.name: encoding for encoding in encodings}
        layers = [_read_layer(item, by_name) for item in found["layers"].items("layers")]
        try:
            return cls(tuple(encodings), tuple(layers))
        except ValueError as error:
            raise source.error(str(error)) from error


def middle(quant_min: int, quant_max: int) -> int:
    """Return the zero point of symmetric quantization."""
    return (quant_min + quant_max + 1) // 2


def bits_of(quant_min: int, quant_max: int) -> int:
    """Return how many bits the codes need, as signed or as unsigned numbers."""
    if quant_min >= 0:
        return max(quant_max.bit_length(), 2)
    return max((-quant_min - 1).bit_length() + 1, quant_max.bit_length() + 1, 2)


def refuse_groups(encoding: Encoding, form: str) -> None:
    """Raise an error for scales of groups, which other engines' forms do not have."""
    if encoding.group_size is not None:
        raise JitPassesError(
            f"'{encoding.name}' has a scale for each group of {encoding.group_size} inputs, and "
            f"{form} has one for a tensor or a channel: quantize it per channel, or leave it in "
            "float"
        )


def renamed(encodings: Sequence[Encoding], names: Mapping[str, str] | None) -> dict[str, Encoding]:
    """Return encodings by the names that they have elsewhere."""
    names = names or {}
    ours = [encoding.name for encoding in encodings]
    for name in names:
        if name not in ours:
            raise JitPassesError(f"names lists '{name}', which is not here: {nearest(name, ours)}")
    found: dict[str, Encoding] = {}
    for encoding in encodings:
        name = names.get(encoding.name, encoding.name)
        if name in found:
            raise JitPassesError(
                f"'{found[name].name}' and '{encoding.name}' would both be called '{name}': "
                "give each a name of its own in names"
            )
        found[name] = encoding
    return found


def read_json(path: str | os.PathLike[str]) -> Located:
    """Read a JSON file as data that knows its place."""
    content = read_bytes(path)
    try:
        data = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError too
        raise JitPassesError(f"{path}: this is not JSON: {error}") from error
    return from_python(data, str(path))


def _record(encoding: Encoding) -> dict[str, Any]:
    """Return a file's record; without groups it has no group_size, as in older files."""
    record = asdict(encoding)
    if encoding.group_size is None:
        del record["group_size"]
    return record


def _read_encoding(source: Located) -> Encoding:
    found = source.complete("an encoding", (*ENCODING_KEYS, "group_size"), ("group_size",))
    try:
        name, kind = (found[key].name(key) for key in ("name", "kind"))
        bits, low, high = (found[key].whole(key) for key in ("bits", "quant_min", "quant_max"))
        return Encoding(
            *(name, kind, bits, low, high),
            found["symmetric"].boolean("symmetric"),
            tuple(item.number("a scale") for item in found["scale"].items("scale")),
            tuple(item.whole("a zero point") for item in found["zero_point"].items("zero_point")),
            None if found["ch_axis"].empty else found["ch_axis"].whole("ch_axis"),
            found["group_size"].whole("group_size") if "group_size" in found else None,
        )
    except ValueError as error:
        raise source.error(str(error)) from error


def _read_layer(source: Located, encodings: Mapping[str, Encoding]) -> Layer:
    found = source.complete("a layer", LAYER_KEYS, TENSORS)
    used: dict[str, Any] = {}
    for tensor in TENSORS:
        if tensor in found:
            name = found[tensor].name(tensor)
            if name not in encodings:
                raise found[tensor].error(f"there is no '{name}': {nearest(name, encodings)}")
            used[tensor] = encodings[name]
    return Layer(found["name"].name("name"), found["kind"].name("kind"), **used)


def _row(encoding: Encoding) -> tuple[str, ...]:
    codes = f"[{encoding.quant_min}, {encoding.quant_max}]"
    if encoding.ch_axis is None:
        scale, zero_point = f"{encoding.scale[0]:g}", str(encoding.zero_point[0])
    else:
        groups = f" in groups of {encoding.group_size}" if encoding.group_size is not None else ""
        along = f"along {encoding.ch_axis}{groups}"
        scale = f"{len(encoding.scale)} {along}: {_span(encoding.scale)}"
        zero_point = _span(encoding.zero_point)
    return encoding.name, encoding.kind, str(encoding.bits), codes, scale, zero_point


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
