"""Transformers of Hugging Face, at their usual widths, with 3 layers and random weights."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 3


class Result(nn.Module):
    """One tensor of what a transformer gives."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(x), self.name)


class Continued(nn.Module):
    """A decoder that reads words in two goes, the second one with keys and values of the first."""

    def __init__(self, model: nn.Module, last: int) -> None:
        super().__init__()
        self.model, self.last = model, last

    def forward(self, x: Tensor) -> Tensor:
        first = self.model(x[:, : -self.last], use_cache=True)
        rest = self.model(x[:, -self.last :], past_key_values=first.past_key_values)
        return torch.cat([first.logits, rest.logits], 1)


class Copied(nn.Module):
    """An encoder and its decoder, which reads the encoder's words."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x, decoder_input_ids=x).last_hidden_state


def transformer(
    name: str,
    part: str = "",
    result: str = "last_hidden_state",
    last: int = 0,
    copied: bool = False,
    **options: Any,
) -> nn.Module:
    """The model of a class of the package, as a configuration with these options makes it.

    Attention is spelled out, which exporters of ONNX need.

    Args:
        name: of the class.
        part: of the model, for instance its encoder; "" for all of it.
        result: which tensor of what it gives.
        last: how many words a decoder reads in a second go, with the first one's keys and values
            in a cache; 0 for one go.
        copied: whether the encoder's words are those of the decoder too.
        options: of the class's configuration.

    Raises:
        SystemExit: the package is missing.
    """
    try:
        package = importlib.import_module("transformers")
    except ImportError as error:
        raise SystemExit(f"this needs transformers: pip install transformers ({error})") from None
    kind = getattr(package, name)
    model = kind(kind.config_class(**options, attn_implementation="eager"))
    if last:
        return Continued(model, last)
    if copied:
        return Copied(model)
    return Result(model.get_submodule(part), result)
