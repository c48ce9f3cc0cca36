"""Numbers that say how good a quantized model is; larger is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..passes.subject import wrap
from ..report.lockstep import check_shapes
from ..report.tally import Tally, pieces
from ..stages.batches import Batch
from ..stages.faults import run_batch
from ..stages.recording import tensors_of

MetricFn = Callable[[torch.jit.ScriptModule], Any]


@dataclass(frozen=True)
class Metric:
    """A number for each model; larger is better.

    Attributes:
        name: for tables.
        measure: gives it for a model.
        of_float: the metric of the float model.
        unit: `dB` or "".
        power: of the float model's outputs, where the metric compares outputs.
    """

    name: str
    measure: Callable[[torch.jit.ScriptModule], float]
    of_float: float
    unit: str = ""
    power: float | None = None

    def shown(self, score: float) -> str:
        """Return a score for people."""
        return score_text(score, self.unit)


def score_text(score: float, unit: str) -> str:
    """Return a score for people, in a unit or, where that is "", in none."""
    if not unit:
        return f"{score + 0.0:.6g}"  # of -0.0, 0
    return "no error" if score == math.inf else f"{score:.1f} {unit}"


def metric_of(
    metric: MetricFn | Metric | None, model: torch.jit.ScriptModule, method: str,
    given: Mapping[int, Batch],
) -> Metric:  # fmt: skip
    """Return the metric of a function; None stands for the SQNR of the output on batches.

    Models are copied for it: a call may change their state, and a function their mode.

    Raises:
        JitPassesError: as `own_metric` and `sqnr_metric`.
    """
    if isinstance(metric, Metric):
        return metric
    return sqnr_metric(model, method, given) if metric is None else own_metric(metric, model)


def sqnr_metric(model: torch.jit.ScriptModule, method: str, given: Mapping[int, Batch]) -> Metric:
    """Return the SQNR of the output that is lowest, over all batches.

        SQNR = 10 log10(sum x^2 / sum (x - y)^2) dB

    with x of the float model, whose outputs are kept, and y of the quantized one. Elements that are
    infinite or NaN in the float model are left out. Batches have numbers for messages.

    Raises:
        JitPassesError: a batch does not run, or the model gives no tensor.
    """
    copied = _copy(model)
    expected = {
        number: outputs(copied, method, batch, number, fits=False)
        for number, batch in given.items()
    }
    if not any(expected.values()):
        raise JitPassesError("the model gives no tensor to compare: pass a metric of your own")

    power = sum(
        float(x.double().nan_to_num().square().sum())
        for xs in expected.values()
        for x in xs.values()
    )
    measure = _Sqnr(method, dict(given), expected)
    return Metric("SQNR of the output", measure, math.inf, "dB", power)


@dataclass(frozen=True)
class _Sqnr:
    """The measure of `sqnr_metric`, which can be sent to workers."""

    method: str
    given: Mapping[int, Batch]
    expected: Mapping[int, dict[str, torch.Tensor]]

    def __call__(self, quantized: torch.jit.ScriptModule) -> float:
        tallies: dict[str, Tally] = {}
        copied = _copy(quantized)
        for number, batch in self.given.items():
            found = outputs(copied, self.method, batch, number, fits=True)
            for name, ours in self.expected[number].items():
                check_shapes(ours, found[name], name)
                tally = tallies.setdefault(name, Tally())
                for x, y in pieces(ours, found[name]):
                    tally.add(x, y, None)
        return min(tally.sqnr for tally in tallies.values())


def own_metric(function: MetricFn, model: torch.jit.ScriptModule) -> Metric:
    """Return a metric that a user has written.

    Raises:
        JitPassesError: it fails on the float model, or gives no number; NaN and infinities count as
            none there, and as the worst of a quantized model.
    """
    if not callable(function):
        raise JitPassesError(
            "a metric is a function that takes a model and returns a number, larger is better, "
            f"not {function!r}"
        )
    name = getattr(function, "__name__", type(function).__name__)

    of_float = number_of(function, name, model)
    if not math.isfinite(of_float):
        raise JitPassesError(f"the metric '{name}' gives {of_float} for the float model")
    return Metric(name, _Own(function, name), of_float)


@dataclass(frozen=True)
class _Own:
    """The measure of `own_metric`; it can be sent to workers if the function can."""

    function: MetricFn
    name: str

    def __call__(self, quantized: torch.jit.ScriptModule) -> float:
        score = number_of(self.function, self.name, quantized)
        return score if math.isfinite(score) else -math.inf


def number_of(function: MetricFn, name: str, model: torch.jit.ScriptModule) -> float:
    """Return a user's metric of a model."""
    try:
        with torch.no_grad():
            score = function(_copy(model))
    except JitPassesError:
        raise
    except Exception as error:
        raise JitPassesError(
            f"the metric '{name}' fails: {type(error).__name__}: {error}; it is called with a "
            "model, as accuracy(model)"
        ) from error
    if isinstance(score, torch.Tensor):
        score = score.detach()
    try:
        if isinstance(score, str | bytes):
            raise TypeError
        return float(score)
    except (TypeError, ValueError, RuntimeError):
        raise JitPassesError(
            f"the metric '{name}' returns a number, larger is better, not {type(score).__name__}"
        ) from None


def outputs(
    model: Any, method: str, batch: Batch, number: int, *, fits: bool
) -> dict[str, torch.Tensor]:
    """Return the tensors that a model gives for a batch, by name; the batch is not written to.

    Args:
        model: the float model, or one made of it.
        method: which to run.
        batch: positional and keyword arguments.
        number: of the batch, for messages.
        fits: whether the float model is known to take the batch.
    """
    with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        result = run_batch(getattr(model, method), batch, f"batch {number}", fits)
    return dict(tensors_of(result))


def _copy(model: torch.jit.ScriptModule) -> Any:
    """Return a copy that nothing else holds, with all methods and a state of its own."""
    return wrap(_C.deepcopy(model._c))
