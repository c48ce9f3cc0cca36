"""Calibration caches of TensorRT."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import JitPassesError
from .encoding import Encoding, Encodings, renamed
from .form import Form, loss

DEFAULT_VERSION = "8601"
LARGEST = 127  # code of TensorRT's int8
_HEADER = re.compile(r"TRT-(\w+)-(\w+)")
_ROW = re.compile(r"(.+): ([0-9a-fA-F]{8})")


def to_tensorrt(
    encodings: Encodings,
    version: str = DEFAULT_VERSION,
    names: Mapping[str, str] | None = None,
) -> str:
    """Return the text of a calibration cache, which `trtexec --calib` and calibrators read.

    Its first line is `TRT-<version>-EntropyCalibration2`. Each further one is `<tensor>: <hex>`,
    the bits of the scale as a float32, most significant byte first:

        scale = largest magnitude / 127,  q = clamp(round(x / scale), -128, 127)

    Signed 8 bits with zero point 0 are just that, and keep their scale. Other encodings lose their
    zero point, and with it up to half of the codes; fewer bits become 8. Parameters are left out:
    TensorRT quantizes weights itself, each channel to its largest magnitude.

    Calibration caches are for TensorRT 10 and older: 10.1 deprecates them, 11 has none. Newer ones
    take an ONNX file with QuantizeLinear and DequantizeLinear, which also say how weights are
    quantized, and which values are not.

    Args:
        encodings: the encodings to write.
        version: of TensorRT, in its own digits: 8601 for 8.6.1. TensorRT takes only caches of its
            own version.
        names: from the names of values to the names of tensors in the engine, as its ONNX file has
            them. All other values keep their names.

    Raises:
        JitPassesError: there is no value; one has more than 8 bits or a scale for each channel, a
            name cannot be in a cache, or names are unknown or clash; or version is not digits.
    """
    if not re.fullmatch(r"\d+", version):
        raise JitPassesError(f"version is like '{DEFAULT_VERSION}' for 8.6.1, not {version!r}")
    if not encodings.activations:
        raise JitPassesError(
            "no value of the model has a scale that is known before it runs, so that a calibration "
            "cache would be empty: quantize it in the mode static"
        )
    lines = [f"TRT-{version}-EntropyCalibration2"]
    for name, encoding in renamed(encodings.activations, names).items():
        if ": " in name or name != name.strip() or not name.isprintable():
            raise JitPassesError(
                f"'{name}' cannot be the name of a tensor in a calibration cache, which is read up "
                "to ': ' and line by line: give it another one in names"
            )
        lines.append(f"{name}: {struct.pack('>f', scale_of(encoding)).hex()}")
    return "\n".join(lines) + "\n"


def losses(encodings: Encodings, **_: Any) -> Iterator[str]:
    """Yield the facts that a calibration cache cannot hold, and TensorRT decides otherwise."""
    shifted = [e for e in encodings.activations if not (e.signed and set(e.zero_point) == {0})]
    yield from loss(
        shifted,
        encodings,
        "a calibration cache has neither zero points nor unsigned codes: TensorRT has up to half "
        "as many codes for {}; quantize with dtype: int8 and scheme: symmetric",
    )
    narrow = [e for e in encodings.activations if e.bits < 8]
    yield from loss(narrow, encodings, "TensorRT has 8 bits, and fewer were asked for {}")
    weights = {layer.weight.name: layer.weight for layer in encodings.layers if layer.weight}
    other = [weight for weight in weights.values() if weight.bits != 8]
    yield from loss(other, encodings, "TensorRT gives weights 8 bits, and others were asked for {}")


FORM = Form(
    to_tensorrt,
    lambda encodings, **_: encodings.activations,
    losses,
    "TensorRT quantizes weights by itself, and biases not at all",
)


def from_tensorrt(text: str) -> Encodings:
    """Read the text of a calibration cache: symmetric int8 for each tensor.

    Raises:
        JitPassesError: it is something else; with the line.
    """
    lines = text.splitlines()
    if not lines or not _HEADER.fullmatch(lines[0].strip()):
        raise JitPassesError(
            "calibration cache, line 1: 'TRT-<version>-<calibrator>' is expected, got "
            f"{(lines or [''])[0][:60]!r}"
        )
    found: dict[str, Encoding] = {}
    for place, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            row = _ROW.fullmatch(line.rstrip())
            if row is None:
                raise ValueError(f"'<tensor>: <8 hex digits>' is expected, got {line[:60]!r}")
            if row[1] in found:
                raise ValueError(f"'{row[1]}' is there twice")
            scale = struct.unpack(">f", bytes.fromhex(row[2]))
            found[row[1]] = Encoding(row[1], "activation", 8, -128, 127, True, scale, (0,))
        except ValueError as error:
            raise JitPassesError(f"calibration cache, line {place}: {error}") from error
    return Encodings(tuple(found.values()))


def scale_of(encoding: Encoding) -> float:
    """Return the scale that TensorRT is to have for an activation."""
    if encoding.bits > 8 or encoding.ch_axis is not None:
        what = f"{encoding.bits} bits" if encoding.bits > 8 else "a scale for each channel"
        raise JitPassesError(
            f"'{encoding.name}' has {what}, and a calibration cache holds one scale of int8 for a "
            "tensor: leave it in float, or quantize it to 8 bits"
        )
    if encoding.bits == 8 and encoding.signed and encoding.zero_point == (0,):
        return encoding.scale[0]
    return max(abs(encoding.min[0]), abs(encoding.max[0])) / LARGEST
