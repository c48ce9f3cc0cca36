"""Turning observers, fake quantization and the statistics of batch norms on and off."""

from __future__ import annotations

import torch

from ..errors import JitPassesError
from ..stages.module import ModelStage, stage_of

OBSERVE, QUANTIZE, FREEZE = "observer_enabled", "fake_quantize_enabled", "statistics_frozen"
INSTEAD = "call jit_passes.prepare_qat(model) first"


def enable_observers(model: torch.jit.ScriptModule) -> None:
    """Let ranges follow the data, and let scales begin, in training mode.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, OBSERVE, on=True)


def disable_observers(model: torch.jit.ScriptModule) -> None:
    """Let ranges stand still. Trained scales and thresholds go on training.

    On a GPU this also saves a question in each step, whether a scale has begun.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, OBSERVE, on=False)


def enable_fake_quantize(model: torch.jit.ScriptModule) -> None:
    """Compute with quantized values, as a new model from `prepare_qat` does.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, QUANTIZE, on=True)


def disable_fake_quantize(model: torch.jit.ScriptModule) -> None:
    """Compute in float. Observers go on, so a model can see data first and be quantized later.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, QUANTIZE, on=False)


def freeze_statistics(model: torch.jit.ScriptModule) -> None:
    """Let batch norms normalize by their running statistics from now on, in training mode too.

    Weights and biases of batch norms go on training. The folded model uses running statistics too,
    so training ends with frozen ones: after most of the epochs (Krishnamoorthi, arXiv:1806.08342,
    section 3.2.2), or after the first (TQT).

    Warning:
        Lower the rate first. With the statistics of the batch, scaling the weights in front of a
        batch norm changes nothing, and their gradient is small. With frozen statistics scaling has
        an effect, and the gradient of the first layers grows several times over: a rate that
        trained well can diverge within an epoch. A cosine schedule is at 15 % of its rate when the
        last quarter begins, which is a good moment.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, FREEZE, on=True)


def unfreeze_statistics(model: torch.jit.ScriptModule) -> None:
    """Let batch norms normalize by the batch again in training mode.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    _switch(model, FREEZE, on=False)


def scale_corrections(model: torch.jit.ScriptModule) -> int:
    """Return how often a step has taken a scale to 0 or below, and the scale was made positive.

    Args:
        model: from `prepare_qat`, trained further or not.

    Raises:
        JitPassesError: the model does not train with quantization.
    """
    stage_of(model, ModelStage.QAT, INSTEAD)
    counter = getattr(model, "scale_corrections", None)
    return int(counter) if isinstance(counter, torch.Tensor) else 0


def _switch(model: torch.jit.ScriptModule, name: str, *, on: bool) -> None:
    stage_of(model, ModelStage.QAT, INSTEAD)
    switch = getattr(model, name, None)
    if switch is None:
        return  # nothing in the model asks for it
    if not isinstance(switch, torch.Tensor):
        raise JitPassesError(f"'{name}' is a switch, a bool tensor, not {type(switch).__name__}")
    switch.fill_(on)  # in place: modules that share the buffer see it
