"""Calibration files of NNI, the Neural Network Intelligence toolkit, in its three forms."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..configuration.located import Located, from_python
from ..errors import JitPassesError, first_line, nearest, shortened
from ..files import read_bytes, write_whole
from .encoding import TENSORS, Encoding, Encodings, Layer, middle, refuse_groups
from .form import Form, loss

VERSIONS = ("2.0", "2.5", "3.0")
# NNI reshapes a weight's scales so that they broadcast; the kind says to how many axes.
_RANKS = {"linear": 2, "1d": 3, "2d": 4, "3d": 5}
_OLD_NAMES = {"input": ("weight_bit", "input"), "output": ("activation_bit", "activation")}
_NEW_NAMES = ("weight", "input", "output")
_TARGETS = {"input": "_input_0", "weight": "weight", "bias": "bias", "output": "_output_0"}


def to_nni(encodings: Encodings, version: str = "2.5") -> dict[str, Any]:
    """Return the calibration configuration that NNI's quantizers return and read.

    2.0: `{module: {weight_bit, tracked_min_input, tracked_max_input, activation_bit,
    tracked_min_activation, tracked_max_activation}}`, numbers. For a weight the file has the bits
    alone. 2.5: `{module: {input_bits, tracked_min_input, tracked_max_input, tracked_qmin_input,
    tracked_qmax_input, and so for output and weight; weight_scale, weight_zero_point}}`.
    3.0: `{module: {target: {scale, zero_point, quant_dtype, quant_scheme, quant_bits, tracked_max,
    tracked_min}}}` with the targets _input_0, weight, bias and _output_0.

    Scales and zero points are float32 tensors, shaped to broadcast over the weight if there is one
    for each channel; bounds are tensors then too. Layers with quantized weights alone have an
    entry, for which NNI's own quantizers fail with a KeyError.

    Lost are: values that are no operand or result of a layer; of 2.0, scales of weights; of 2.x,
    biases.

    Args:
        encodings: the encodings to write.
        version: the form, by the release of NNI that began with it.

    Raises:
        JitPassesError: the version is unknown; a module is called twice with different encodings,
            but NNI has one entry; or there are scales for groups. In the form 2.0 also: a weight
            has other bits than its input, or an activation has a scale for each channel.
    """
    if version not in VERSIONS:
        raise JitPassesError(f"no form '{version}' of NNI's files: {nearest(version, VERSIONS)}")
    write = {"2.0": _old_entry, "2.5": _entry, "3.0": _new_entry}[version]
    found: dict[str, tuple[Layer, dict[str, Any]]] = {}
    for layer in encodings.layers:
        entry = write(layer)
        known, _ = found.setdefault(layer.name, (layer, entry))
        if replace(known, kind=layer.kind) != layer:
            raise JitPassesError(
                f"the module '{layer.name}' is called twice, with other encodings each time, and "
                "NNI's form has one entry for a module: give each call a module of its own"
            )
    return {name: entry for name, (_, entry) in found.items() if entry}


def held(encodings: Encodings, version: str = "2.5", **_: Any) -> list[Encoding]:
    """Return the encodings that a file of that version holds, in their order."""
    tensors = {"2.0": tuple(_OLD_NAMES), "2.5": _NEW_NAMES, "3.0": tuple(_TARGETS)}[version]
    used = [getattr(layer, tensor) for layer in encodings.layers for tensor in tensors]
    names = {encoding.name for encoding in used if encoding is not None}
    return [encoding for encoding in encodings if encoding.name in names]


def losses(encodings: Encodings, version: str = "2.5", **_: Any) -> Iterator[str]:
    """Yield the facts that a file cannot hold, and NNI decides otherwise."""
    names = {encoding.name for encoding in held(encodings, version)}
    yield from loss(
        [e for e in encodings.activations if e.name not in names],
        encodings,
        "NNI's form has operands and results of layers alone: NNI leaves {} in float; keep the "
        "operators that give these in float here too",
    )
    alone = [f"'{layer.name}'" for layer in encodings.layers if layer.weight and not layer.input]
    if alone:
        yield (
            "NNI's own quantizers fail for layers with a quantized weight and no scale for the "
            f"input, {shortened(alone, 3)}: quantize both, or none"
        )


FORM = Form(
    to_nni, held, losses, "NNI's form is about modules, and each version leaves out others of their"
    " tensors",
)  # fmt: skip


def from_nni(config: Mapping[str, Any]) -> Encodings:
    """Read a calibration configuration of any form.

    Names have the module and NNI's target, `conv1._input_0` and `conv1.weight`. The form
    2.0 does not say which codes there are: bounds that are each other's negative are read as
    symmetric codes without the smallest, others as unsigned ones. Both readings give equal real
    numbers. Scales are rounded to float32: then bounds give back the scales that they came from.

    Raises:
        JitPassesError: an entry has what the forms do not, or cannot be; with its place.
    """
    source = from_python(config, "calibration")
    if not isinstance(source.content, dict):
        raise source.error(f"a calibration is a mapping by module, not {source.describe()}")
    layers = [_read_layer(name, entry) for name, entry in source.content.items()]
    used = [getattr(layer, tensor) for layer in layers for tensor in TENSORS]
    try:
        return Encodings(tuple(e for e in used if e is not None), tuple(layers))
    except ValueError as error:
        raise source.error(str(error)) from error


def save_nni(
    encodings: Encodings, path: str | os.PathLike[str], version: str = "2.5"
) -> dict[str, Any]:
    """Write it with `torch.save`, as NNI does, and return it.

    The file loads with weights_only=True.

    Raises:
        JitPassesError: as `to_nni`.
        JitPassesError: the file cannot be written; this is an OSError too.
    """
    config = to_nni(encodings, version)
    buffer = io.BytesIO()  # PyTorch's own writing hides errors of the system
    torch.save(config, buffer)
    write_whole(path, buffer.getbuffer())
    return config


def load_nni(path: str | os.PathLike[str]) -> Encodings:
    """Read a file of `save_nni` or NNI; plain data and tensors only.

    Raises:
        JitPassesError: the file cannot be read, is cut off, or holds something else.
    """
    content = io.BytesIO(read_bytes(path))
    try:
        config = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # of zip and pickle, in many classes where the file is cut off
        raise JitPassesError(
            f"{path} is no file of torch.save with plain data, or was cut off: {first_line(error)}"
        ) from error
    return from_nni(config)


def _old_entry(layer: Layer) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if layer.weight is not None:
        entry["weight_bit"] = layer.weight.bits
        if layer.input is not None and layer.input.bits != layer.weight.bits:
            raise JitPassesError(
                f"the layer '{layer.name}' has a weight of {layer.weight.bits} bits and an input "
                f"of {layer.input.bits}, and the form 2.0 has one number for both: write 2.5 or 3.0"
            )
    for tensor, (key, name) in _OLD_NAMES.items():
        encoding: Encoding | None = getattr(layer, tensor)
        if encoding is not None:
            if encoding.ch_axis is not None:
                raise JitPassesError(
                    f"'{encoding.name}' has a scale for each channel, and the form 2.0 has one for "
                    "a tensor: write 2.5 or 3.0"
                )
            entry.setdefault(key, encoding.bits)
            entry[f"tracked_min_{name}"] = encoding.min[0]
            entry[f"tracked_max_{name}"] = encoding.max[0]
    return entry


def _entry(layer: Layer) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for tensor in _NEW_NAMES:
        encoding: Encoding | None = getattr(layer, tensor)
        if encoding is None:
            continue
        entry[f"{tensor}_bits"] = encoding.bits
        entry[f"tracked_min_{tensor}"] = _bound(encoding.min, encoding, layer)
        entry[f"tracked_max_{tensor}"] = _bound(encoding.max, encoding, layer)
        entry[f"tracked_qmin_{tensor}"] = encoding.quant_min
        entry[f"tracked_qmax_{tensor}"] = encoding.quant_max
        if tensor == "weight":
            entry["weight_scale"] = _shaped(encoding.scale, encoding, layer)
            entry["weight_zero_point"] = _shaped(encoding.zero_point, encoding, layer)
    return entry


def _new_entry(layer: Layer) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for tensor, target in _TARGETS.items():
        encoding: Encoding | None = getattr(layer, tensor)
        if encoding is not None:
            entry[target] = {
                "scale": _shaped(encoding.scale, encoding, layer),
                "zero_point": _shaped(encoding.zero_point, encoding, layer),
                "quant_dtype": f"{'int' if encoding.signed else 'uint'}{encoding.bits}",
                "quant_scheme": "symmetric" if encoding.symmetric else "affine",
                "quant_bits": encoding.bits,
                "tracked_max": _shaped(encoding.max, encoding, layer),
                "tracked_min": _shaped(encoding.min, encoding, layer),
            }
    return entry


def _shaped(values: tuple[float, ...], encoding: Encoding, layer: Layer) -> torch.Tensor:
    """Return a number, or one for each channel with axes of size 1 around."""
    refuse_groups(encoding, "NNI's form")
    tensor = torch.tensor(values, dtype=torch.float32)
    if encoding.ch_axis is None:
        return tensor.reshape(())
    rank = next((rank for end, rank in _RANKS.items() if layer.kind.endswith(end)), 0)
    if encoding.name.endswith("bias") or rank == 0:
        return tensor
    shape = [1] * rank
    shape[encoding.ch_axis] = len(values)
    return tensor.reshape(shape)


def _bound(values: tuple[float, ...], encoding: Encoding, layer: Layer) -> float | torch.Tensor:
    return values[0] if encoding.ch_axis is None else _shaped(values, encoding, layer)


def _read_layer(name: str, entry: Located) -> Layer:
    if not isinstance(entry.content, dict):
        raise entry.error(f"an entry is a mapping, not {entry.describe()}")
    keys = entry.content.keys()
    if keys & set(_TARGETS.values()):
        targets = entry.mapping("an entry of the form 3.0", tuple(_TARGETS.values()))
        used = {t: _read_new(name, t, targets[x]) for t, x in _TARGETS.items() if x in targets}
        return Layer(name, "", **used)
    if keys & {"weight_bit", "activation_bit"}:
        rows = [(t, *row) for t, row in _OLD_NAMES.items() if f"tracked_min_{row[1]}" in keys]
    else:
        rows = [(t, f"{t}_bits", t) for t in _NEW_NAMES if f"{t}_bits" in keys]
    return Layer(name, "", **{row[0]: _of_bounds(name, entry, *row) for row in rows})


def _of_bounds(name: str, entry: Located, tensor: str, key: str, tracked: str) -> Encoding:
    """Read an encoding of the form 2.x: missing entries follow from the others."""
    entry.require((key,))
    found: Mapping[str, Located] = entry.content
    bits = _bits(found[key])
    codes = [
        _whole(found[k])
        for k in (f"tracked_qmin_{tracked}", f"tracked_qmax_{tracked}")
        if k in found
    ]
    half, full = 2 ** (bits - 1) - 1, 2**bits - 1
    if f"{tensor}_scale" in found:
        entry.require((f"{tensor}_zero_point",))
        scales, axis = _numbers(found[f"{tensor}_scale"])
        zero_points = [round(zero) for zero in _numbers(found[f"{tensor}_zero_point"])[0]]
        grid = (0, full) if any(zero_points) else (-half, half)
        low, high = codes if len(codes) == 2 else grid
        return _encoding(entry, name, tensor, bits, (low, high), scales, zero_points, axis)
    entry.require((f"tracked_min_{tracked}", f"tracked_max_{tracked}"))
    least, most = (_numbers(found[f"tracked_{end}_{tracked}"])[0][0] for end in ("min", "max"))
    low, high = codes if len(codes) == 2 else (-half, half) if least == -most else (0, full)
    if not (least < most and low < high):
        raise entry.error(f"{tensor} has [{least}, {most}] in [{low}, {high}], which is empty")
    scale = (most - least) / (high - low)
    zero_point = round(low - least / scale)
    return _encoding(entry, name, tensor, bits, (low, high), [scale], [zero_point], None)


def _read_new(name: str, tensor: str, target: Located) -> Encoding:
    """Read an encoding of the form 3.0: its codes follow from the bounds."""
    target.require(("scale", "zero_point", "quant_bits", "tracked_min", "tracked_max"))
    found = target.content
    scales, axis = _numbers(found["scale"])
    zero_points = [round(zero) for zero in _numbers(found["zero_point"])[0]]
    bits = _bits(found["quant_bits"])
    if bits > 16:  # a bias: float32 does not hold the bounds to within a step
        grid = (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
    elif not scales[0] > 0:
        raise found["scale"].error(f"a scale is above 0, not {scales[0]}")
    else:
        least, most = (_numbers(found[f"tracked_{end}"])[0][0] for end in ("min", "max"))
        zero = zero_points[0]
        grid = (round(least / scales[0]) + zero, round(most / scales[0]) + zero)
    return _encoding(target, name, tensor, bits, grid, scales, zero_points, axis)


def _encoding(
    source: Located,
    module: str,
    tensor: str,
    bits: int,
    grid: tuple[int, int],
    scales: list[float],
    zero_points: list[int],
    axis: int | None,
) -> Encoding:
    kind = "parameter" if tensor in ("weight", "bias") else "activation"
    name = f"{module}.{_TARGETS[tensor]}".removeprefix(".")
    symmetric = all(zero == middle(*grid) for zero in zero_points)
    rounded = tuple(torch.tensor(scales, dtype=torch.float32).tolist())
    try:
        return Encoding(name, kind, bits, *grid, symmetric, rounded, tuple(zero_points), axis)
    except ValueError as error:
        raise source.error(f"{tensor}: {error}") from error


def _numbers(source: Located) -> tuple[list[float], int | None]:
    """Return numbers, and the axis along which they lie if there are several."""
    value = source.content
    if isinstance(value, torch.Tensor):
        wide = [axis for axis, size in enumerate(value.shape) if size != 1]
        if len(wide) > 1 or value.numel() == 0:
            found = f"a tensor of shape {list(value.shape)}"
            raise source.error(f"numbers along one axis are expected, not {found}")
        axis = wide[0] if wide else 0 if value.dim() > 1 else None
        numbers = [float(x) for x in value.reshape(-1).tolist()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        numbers, axis = [float(value)], None
    else:
        raise source.error(f"a number or a tensor is expected, not {source.describe()}")
    if not all(map(math.isfinite, numbers)):
        raise source.error("finite numbers are expected")
    return numbers, axis


def _whole(source: Located) -> int:
    numbers, _ = _numbers(source)
    if len(numbers) != 1 or not numbers[0].is_integer():
        raise source.error(f"a whole number is expected, not {source.describe()}")
    return int(numbers[0])


def _bits(source: Located) -> int:
    bits = _whole(source)
    if not 2 <= bits <= 32:
        raise source.error(f"bits are from 2 to 32, not {bits}")
    return bits
