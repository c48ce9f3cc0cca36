"""The parameters that quantization adds to a model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import _C
from ..stages.module import ModelStage, Report, stage_of


def named_quantization_parameters(
    model: torch.nn.Module,
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the scales, offsets and thresholds that are trained, with their names.

    Args:
        model: from `prepare_qat`, or a module that holds models from there, such as
            DistributedDataParallel.

    Raises:
        JitPassesError: the model is a ScriptModule that does not train with quantization.
    """
    if isinstance(model, torch.jit.ScriptModule):
        stage_of(model, ModelStage.QAT, "call jit_passes.prepare_qat(model) first")
    for prefix, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and Report.read(module) is not None:
            names = quantization_names(module)
            front = f"{prefix}." if prefix else ""
            for name, parameter in module.named_parameters():
                if name in names:
                    yield front + name, parameter


def quantization_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the scales, offsets and thresholds that are trained, for groups of their own.

        torch.optim.SGD([
            {"params": jit_passes.model_parameters(qat), "lr": 0.01},
            {"params": jit_passes.quantization_parameters(qat), "lr": 0.001, "weight_decay": 0},
        ])

    Args:
        model: see `named_quantization_parameters`.

    Raises:
        JitPassesError: the model is a ScriptModule that does not train with quantization.
    """
    return [parameter for _, parameter in named_quantization_parameters(model)]


def model_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the model's own parameters: all but `quantization_parameters`.

    Args:
        model: any module; all parameters of a module that is no ScriptModule are its own.

    Raises:
        JitPassesError: the model is a ScriptModule that does not train with quantization.
    """
    added = {id(parameter) for parameter in quantization_parameters(model)}
    return [parameter for parameter in model.parameters() if id(parameter) not in added]


def make_leaves(model: torch.nn.Module) -> None:
    """Let parameters be leaves of autograd again, which copy.deepcopy of a ScriptModule makes not.

    In place, since these tensors are trained: autograd forgets that they are copies.
    """
    for parameter in model.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()


def quantization_names(module: torch.jit.ScriptModule) -> set[str]:
    """Return the names of the parameters that the module's places are trained with."""
    report = Report.read(module)
    method = report.method if report else "forward"
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return parameters & set(_C.state_paths(module._c, method))
