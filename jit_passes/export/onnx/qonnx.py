"""QONNX: one operator that rounds to a grid, in place of codes between two operators.

    DequantizeLinear(Clip(QuantizeLinear(x)))   Quant(x, scale, zeropt, bitwidth; signed, narrow)
    DequantizeLinear(<codes>)                   Quant(<their values>, ...)

    y = (clamp(round(x / scale + zeropt), low, high) - zeropt) * scale

with these codes, of b bits:

    signed      -2^(b-1) to 2^(b-1) - 1, and from -2^(b-1) + 1 if narrow
    unsigned    0 to 2^b - 1, and to 2^b - 2 if narrow

Source: https://github.com/fastmachinelearning/qonnx, docs/qonnx-custom-ops.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...errors import JitPassesError
from .fold import remove_unused
from .graph import block_size, constant_of, initializer, made_by, operand

DOMAIN, VERSION = "qonnx.custom_op.general", 1
Codes = tuple[int, int]


def codes_of_weights(program: torch.export.ExportedProgram) -> dict[str, Codes]:
    """Return the smallest and the largest code of each weight, by its path.

    DequantizeLinear has them of a whole type alone.
    """
    paths = program.graph_signature.inputs_to_buffers
    return dict(_codes_of_weights(program.graph_module, paths))


def _codes_of_weights(module: Any, paths: Mapping[str, str]) -> Iterator[tuple[str, Codes]]:
    """Yield paths and codes, given the paths that inputs of a graph stand for, by their names."""
    for node in module.graph.nodes:
        source = getattr(node.args[0], "name", "") if node.args else ""
        if node.target is torch.ops.higher_order.cond:
            _, *branches, operands = node.args
            for branch in (getattr(module, each.target) for each in branches):
                inputs = [each.name for each in branch.graph.nodes if each.op == "placeholder"]
                given = (getattr(operand, "name", "") for operand in operands)
                pairs = zip(inputs, given, strict=True)
                inner = {name: paths[outer] for name, outer in pairs if outer in paths}
                yield from _codes_of_weights(branch, inner)
        elif ".dequantize_per_" in str(node.target) and source in paths:
            first = 4 if "channel" in str(node.target) else 3
            yield paths[source], tuple(node.args[first : first + 2])


def write_quant(model: Any, weights: Mapping[str, Codes]) -> None:
    """Write the operators that quantize as `Quant`, in place.

    Args:
        model: of `onnx_ir`.
        weights: the smallest and the largest code of weights, by name.

    Raises:
        JitPassesError: `Quant` does not have the codes; scales are no constants, or are of groups.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type == "DequantizeLinear":
            _write(model.graph, node, weights)
    remove_unused(model.graph)
    for node in model.graph.all_nodes():
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            raise _without_form(node.outputs[0].name.removesuffix(":quantized"))
    model.opset_imports[DOMAIN] = VERSION


def _write(graph: Any, node: Any, weights: Mapping[str, Codes]) -> None:
    ir = importlib.import_module("onnx_ir")
    codes, scale, *zeros = node.inputs
    name = re.sub(r":dequantized(#\d+)?$", r"\1", node.outputs[0].name)
    clip = made_by(codes, "Clip")
    quantize = made_by(codes if clip is None else operand(clip, "input"), "QuantizeLinear")
    known = quantize is not None or codes.name in weights
    if not known or constant_of(scale) is None or block_size(node):
        raise _without_form(name)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    rank = len(codes.shape or ())

    def number(what: str, array: Any) -> Any:
        """Return an initializer, whose parts lie along the axis of channels."""
        if array.ndim and array.size > 1:
            array = array.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])
        else:
            array = array.reshape(())
        value = initializer(f"{name}:{what}", array.astype("float32"))
        graph.register_initializer(value)
        return value

    scales = constant_of(scale)
    zero = constant_of(zeros[0]) if zeros and zeros[0] is not None else 0 * scales
    zero = zero if zero.any() else zero.reshape(-1)[:1]
    if quantize is None:
        low, high = weights[codes.name]
        given = _values(graph, codes, scales, zero, axis)
    else:
        given, ends = operand(quantize, "x"), ("min", "max")
        low, high = (
            _ends(codes) if clip is None else (constant_of(operand(clip, end)) for end in ends)
        )
    bits, signed, narrow = bits_of(int(low), int(high), name)
    width = importlib.import_module("numpy").array(bits)
    inputs = [given, number("scale", scales), number("zeropt", zero), number("bitwidth", width)]
    node.domain, node.op_type = DOMAIN, "Quant"
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    node.attributes.clear()
    for attribute in (
        ir.AttrInt64("signed", int(signed)),
        ir.AttrInt64("narrow", int(narrow)),
        ir.AttrString("rounding_mode", "ROUND"),
    ):
        node.attributes[attribute.name] = attribute
    # The quantize in front goes, and leaves its name to this operator.
    if quantize is not None:
        quantize.outputs[0].name = f"{name}:codes"
    node.outputs[0].name = node.name = f"{name}:quantized"


def _without_form(name: str) -> JitPassesError:
    return JitPassesError(
        f"QONNX has no form of '{name}': its values have constant scales, one or one for each "
        "channel; export QuantizeLinear and DequantizeLinear instead, with form='qdq'"
    )


def _values(graph: Any, codes: Any, scales: Any, zero: Any, axis: int) -> Any:
    """Return the initializer of a weight with its values in place of its codes."""
    name = f"{codes.name}:values"
    if name in graph.initializers:  # read twice, by one grid
        return graph.initializers[name]
    array = constant_of(codes)
    along = [1] * array.ndim
    along[axis % array.ndim] = -1
    parts = [part.reshape(along) if part.size > 1 else part for part in (scales, zero)]
    values = ((array - parts[1].astype("int32")) * parts[0]).astype("float32")
    value = initializer(name, values)
    graph.register_initializer(value)
    return value


def _ends(codes: Any) -> Codes:
    limits = torch.iinfo(getattr(torch, str(codes.dtype.numpy())))
    return limits.min, limits.max


def bits_of(low: int, high: int, name: str) -> tuple[int, bool, bool]:
    """Return the bits of codes, whether they are signed, and whether they are narrow.

    Raises:
        JitPassesError: `Quant` does not have the codes.
    """
    signed = low < 0
    for bits in range(2, 33):
        first, last = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if (low, high) == (first, last):
            return bits, signed, False
        if (low, high) == ((first + 1, last) if signed else (first, last - 1)):
            return bits, signed, True
    raise JitPassesError(
        f"'{name}' has codes from {low} to {high}, and QONNX has all of some bits, or one fewer, "
        "-8 to 7 or -7 to 7 say: give the configuration bits"
    )
