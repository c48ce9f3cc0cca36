"""Encoding files of AIMET and QNN, form 1.0.0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..configuration.located import Located, from_python
from .encoding import Encoding, Encodings, read_json, refuse_groups, renamed
from .form import Form, loss

VERSION = "1.0.0"
WIDTHS = (4, 8, 16, 32)  # in bits, that converters take
_ENTRY_KEYS = ("name", "dtype", "enc_type", "bw", "is_sym", "scale", "offset")
_LIST_KEYS = {"activation": "activation_encodings", "parameter": "param_encodings"}


def to_aimet(
    encodings: Encodings,
    names: Mapping[str, str] | None = None,
    quantizer_args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of an encoding file, as AIMET writes and QNN's converter reads it.

        x = (q + offset) * scale,  q from 0 to 2^bw - 1

    Codes there are unsigned. Signed ones are shifted, q = code + 2^(bw - 1), so that a symmetric
    int8 has the offset -128; an unsigned one with zero point z has -z.

    The file loses: the sign of codes, which changes no real number; narrow ranges, as [-127, 127]
    without -128; the channel axis, which follows from the operator; and layers.

    Args:
        encodings: the encodings to write.
        names: from the names of values to the names of tensors in the ONNX file that it is for. A
            name that is not listed stays.
        quantizer_args: written as it is, for readers of the file.

    Raises:
        JitPassesError: names are unknown or clash, or there are scales for groups.
    """
    entries = renamed(encodings.encodings, names)
    data: dict[str, Any] = {"version": VERSION}
    for kind, key in _LIST_KEYS.items():
        data[key] = [_entry(name, e) for name, e in entries.items() if e.kind == kind]
    if quantizer_args is not None:
        data["quantizer_args"] = dict(quantizer_args)
    return data


def losses(encodings: Encodings, **_: Any) -> Iterator[str]:
    """Yield the facts that an encoding file cannot hold, or that converters do not take."""
    fewer = [e for e in encodings.activations if e.quant_max - e.quant_min + 1 < 2**e.bits]
    yield from loss(
        fewer,
        encodings,
        "AIMET's form has all codes that the bits allow: the engine clips {} later than this "
        "model; quantize with all codes of the dtype",
    )
    for kind in (encodings.activations, encodings.parameters):
        odd = [encoding for encoding in kind if encoding.bits not in WIDTHS]
        bits = ", ".join(sorted({str(encoding.bits) for encoding in odd}))
        yield from loss(
            odd, encodings, f"converters take 4, 8, 16 and 32 bits, not {bits} for {{}}"
        )


FORM = Form(to_aimet, lambda encodings, **_: encodings.encodings, losses, "")


def from_aimet(
    data: Mapping[str, Any], axes: Mapping[str, int] | None = None, name: str = "encodings"
) -> Encodings:
    """Read the content of an encoding file. There are no layers in it.

    A symmetric encoding becomes signed, others unsigned.

    Args:
        data: the result of `to_aimet`, or the content of AIMET's file.
        axes: channel axes by name, for encodings with a scale for each channel; 0 for others.
        name: the name of the data in messages.

    Raises:
        JitPassesError: it holds something else; with its place.
    """
    return _read(from_python(data, name), axes or {})


def load_aimet(path: str | os.PathLike[str], axes: Mapping[str, int] | None = None) -> Encodings:
    """Read an encoding file; see `from_aimet`.

    Raises:
        JitPassesError: it holds something else; with file and key.
        JitPassesError: it cannot be read; this is an OSError too.
    """
    return _read(read_json(path), axes or {})


def text_of(data: Mapping[str, Any]) -> str:
    """Return the text of the file. Numbers are written so that they are read back exactly."""
    return json.dumps(data, indent=2) + "\n"


def _entry(name: str, encoding: Encoding) -> dict[str, Any]:
    refuse_groups(encoding, "AIMET's form as it is written here")
    shift = 2 ** (encoding.bits - 1) if encoding.signed else 0
    return {
        "name": name,
        "dtype": "INT",
        "enc_type": "PER_TENSOR" if encoding.ch_axis is None else "PER_CHANNEL",
        "bw": encoding.bits,
        "is_sym": encoding.symmetric,
        "scale": list(encoding.scale),
        "offset": [-shift - zero_point for zero_point in encoding.zero_point],
    }


def _read(source: Located, axes: Mapping[str, int]) -> Encodings:
    source.require(("version", *_LIST_KEYS.values()))
    version = source.content["version"]
    if version.content != VERSION:
        raise version.error(f"the form {VERSION} is expected, not {version.describe()}")
    try:
        return Encodings(
            tuple(
                _read_entry(item, kind, axes)
                for kind, key in _LIST_KEYS.items()
                for item in source.content[key].items(key)
            )
        )
    except ValueError as error:
        raise source.error(str(error)) from error


def _read_entry(source: Located, kind: str, axes: Mapping[str, int]) -> Encoding:
    source.require(_ENTRY_KEYS)
    found: Mapping[str, Located] = source.content
    if found["dtype"].content != "INT":
        raise found["dtype"].error(f"only INT is read, not {found['dtype'].describe()}")
    if found["enc_type"].content not in ("PER_TENSOR", "PER_CHANNEL"):
        raise found["enc_type"].error(
            f"PER_TENSOR or PER_CHANNEL is expected, not {found['enc_type'].describe()}"
        )
    name = found["name"].name("name")
    bits = found["bw"].whole("bw")
    half = 2 ** (bits - 1) if 2 <= bits <= 32 else 0  # the encoding says what is wrong with others
    shift = half if found["is_sym"].boolean("is_sym") else 0
    offsets = [item.whole("an offset") for item in found["offset"].items("offset")]
    scales = [item.number("a scale") for item in found["scale"].items("scale")]
    axis = axes.get(name, 0) if found["enc_type"].content == "PER_CHANNEL" else None
    grid = (-shift, max(2 * half - 1 - shift, 1))
    zero_points = tuple(-offset - shift for offset in offsets)
    if shift and any(zero_points):
        raise source.error(f"'{name}' is_sym, and its offset is not -2^(bw - 1)")
    try:
        return Encoding(name, kind, bits, *grid, shift > 0, tuple(scales), zero_points, axis)
    except ValueError as error:
        raise source.error(str(error)) from error
