"""Where the constants of a graph are in a program's state: `layer1.0.conv1.weight`."""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, nn

from ...graph.traits import arguments_of
from ...graph.view import NodeView, ValueView

_CHANNELS = ("jit_passes::dequantize_per_channel", "jit_passes::quantize_per_channel")
_QUANTIZED = (*_CHANNELS, "jit_passes::dequantize", "jit_passes::quantize")
_SUFFIXES = {"scales": "_scale", "zero_points": "_zero_point"}


def hold(root: nn.Module, path: str, tensor: Tensor) -> str:
    """Give a module a buffer at a path, or at the first free one like it, and return its path."""
    *owners, name = path.split(".")
    owner, found = root, []
    for part in owners:
        part = _free(owner, part, or_module=True)
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
        found.append(part)
    found.append(_free(owner, name))
    owner.register_buffer(found[-1], tensor)
    return ".".join(found)


def constant_of(value: ValueView) -> Tensor:
    """Return a constant tensor as a program has it.

    The constant shares its memory with the model, unless the model writes to it: a program has a
    state of its own. Scales of channels are float32, which is what operators compute with.
    """
    tensor: Tensor = value.constant.detach()
    scales = value.uses and all(node.kind in _CHANNELS and at == 1 for node, at in value.uses)
    tensor = tensor.to(torch.float32) if scales else tensor
    return tensor.clone() if value.written else tensor


def _free(owner: nn.Module, name: str, *, or_module: bool = False) -> str:
    """Return the name, with the first free number if the owner has the name already.

    A word of Python's gets a `_`: the code of a program has the names.
    """
    name = f"{name}_" if iskeyword(name) else name
    found, number = name, 0
    while hasattr(owner, found) and not (or_module and found in owner._modules):
        number += 1
        found = f"{name}_{number}"
    return found


def path_of(value: ValueView) -> str:
    """Return where a constant goes: module of the operator that reads it, and name of its operand.

    Operators that quantize and dequantize are looked through: `conv.weight`, `conv.weight_scale`.
    """
    if not value.uses:
        return "constant"
    node, position = value.uses[0]
    suffix = ""
    while node.kind in _QUANTIZED and node.output.uses:
        suffix = _SUFFIXES.get(_operand(node, position), "") + suffix
        node, position = node.output.uses[0]
    name = _operand(node, position)
    return f"{node.module}.{name}{suffix}" if node.module else name + suffix


def _operand(node: NodeView, position: int) -> str:
    names: list[Any] = [] if node.overload is None else list(arguments_of(node.kind, node.overload))
    name = names[position] if position < len(names) else "constant"
    return "constant" if name == "self" else re.sub(r"\W", "_", name)
