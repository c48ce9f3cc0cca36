"""Whether a constant of a graph was a parameter or a buffer of the model that the graph is of."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class Origins:
    """Looks constants up among the parameters and buffers of a model.

    A constant is the tensor itself, a view of it, or its numbers in another order, as the transpose
    when a product by a matrix becomes a linear. Numbers that passes have computed are neither: a
    weight with a batch norm folded in, say. So is everything of a frozen model.

    A parameter that needs no gradient may be learned or not: fixed filters are stored so, and so
    are layers that a fine-tuning leaves alone.

    Args:
        model: scripted, traced or loaded; it is read when the first constant is looked up.
    """

    def __init__(self, model: torch.jit.ScriptModule) -> None:
        self._model = model

    def is_buffer(self, constant: Tensor) -> bool:
        """Say whether it is a buffer of a model that has parameters."""
        return _is_among(constant, self._buffers)

    def is_parameter(self, constant: Tensor) -> bool:
        """Say whether it is a parameter that needs a gradient, so that it was learned."""
        return _is_among(constant, self._learned)

    @cached_property
    def _parameters(self) -> list[Tensor]:
        return list(self._model.parameters())

    @cached_property
    def _learned(self) -> dict[int, Tensor]:
        return _by_memory([tensor for tensor in self._parameters if tensor.requires_grad])

    @cached_property
    def _buffers(self) -> dict[int, Tensor]:
        found = _by_memory([tensor for tensor in self._model.buffers() if tensor.dim() > 1])
        if not found or not self._parameters:  # of most models, without a look at parameters
            return {}
        own = _by_memory(self._parameters)
        return {memory: tensor for memory, tensor in found.items() if memory not in own}


def _by_memory(tensors: list[Tensor]) -> dict[int, Tensor]:
    return {t.untyped_storage().data_ptr(): t for t in tensors if _has_memory(t)}


def _has_memory(tensor: Tensor) -> bool:
    """Say whether a tensor is a plain one: sparse and nested ones are no weights of a product."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_among(constant: Tensor, tensors: dict[int, Tensor]) -> bool:
    if not tensors or not _has_memory(constant):
        return False
    if constant.untyped_storage().data_ptr() in tensors:
        return True
    return any(_has_numbers_of(constant, tensor) for tensor in tensors.values())


def _has_numbers_of(constant: Tensor, tensor: Tensor) -> bool:
    """Say whether two tensors hold the same numbers, in any order."""
    if constant.numel() != tensor.numel() or constant.dtype != tensor.dtype:
        return False
    if not constant.numel() or torch.aminmax(constant) != torch.aminmax(tensor.detach()):
        return False
    return torch.equal(constant.flatten().sort()[0], tensor.detach().flatten().sort()[0])
