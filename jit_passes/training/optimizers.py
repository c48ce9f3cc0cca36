"""Noticing an optimizer that was built before the model was prepared."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import count_of, warn

_PATIENCE = 2  # steps with the weights, before the first one with quantization parameters


@dataclass(eq=False)
class _Watched:
    """Parameters of a prepared module by id, held so that no id is given to another one."""

    module: weakref.ref[Any]  # to forget it with
    weights: dict[int, Parameter]
    quantization: dict[int, Parameter]
    # Steps of each optimizer that knows weights and no quantization parameters.
    steps: weakref.WeakKeyDictionary[Optimizer, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )


# By id of the module: a ScriptModule may define equality, which says nothing of identity.
_watched: dict[int, _Watched] = {}
_hook: Any = None


def watch(module: Any, weights: Iterable[Parameter], quantization: Iterable[Parameter]) -> None:
    """Warn, once, if an optimizer trains the weights of a module and none its quantization.

    This happens if the optimizer was built before the module was prepared: weights train, and
    ranges stay at their first values. The warning comes at the second step, if no optimizer with a
    quantization parameter that trains has stepped so far: such an optimizer may step before or
    after the first one. Nothing is said while no quantization parameter trains.

    Modules are referenced weakly, and watched until one of the two is known. While none is, a step
    of an optimizer costs a call; while one is, a pass over the optimizer's parameters.
    """
    global _hook
    key = id(module)
    reference = weakref.ref(module, lambda _: _watched.pop(key, None))
    _watched[key] = _Watched(
        reference, {id(p): p for p in weights}, {id(p): p for p in quantization}
    )
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_on_step)


def _on_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
    if not _watched:
        return
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for key, watched in list(_watched.items()):
        trained = [i for i, p in watched.quantization.items() if p.requires_grad]
        if not trained:
            continue
        if not known.isdisjoint(trained):
            _watched.pop(key, None)
            continue
        held = len(known & watched.weights.keys())
        if not held:
            continue
        watched.steps[optimizer] = watched.steps.get(optimizer, 0) + 1
        if watched.steps[optimizer] >= _PATIENCE:
            _watched.pop(key, None)
            warn(
                f"the optimizer knows {count_of(held, 'weight')} of the prepared model and none of "
                f"its {count_of(len(trained), 'quantization parameter')}, so none of these trains: "
                'build it after prepare_qat, or add them with optimizer.add_param_group({"params": '
                "jit_passes.quantization_parameters(model)})"
            )
