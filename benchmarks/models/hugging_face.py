"""Transformers of Hugging Face, at their usual widths, with 3 layers and random weights."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

LAYERS = 3


class Result(nn.Module):
    """One tensor of what a transformer gives."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(x), self.name)


def transformer(
    name: str, part: str = "", result: str = "last_hidden_state", **options: Any
) -> nn.Module:
    """The model of a class of the package, as a configuration with these options makes it.

    Attention is spelled out, which exporters of ONNX need.

    Args:
        name: of the class.
        part: of the model, for instance its encoder; "" for all of it.
        result: which tensor of what it gives.
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
    return Result(model.get_submodule(part), result)
