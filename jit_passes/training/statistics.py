"""Statistics of batch norms, estimated anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import JitPassesError, shortened, warn
from ..graph.view import GraphView
from ..quantizers.deferred import DEFERRED
from ..specification.specification import QuantizationSpec
from ..stages.batches import InputFn, batches, progress_bar
from ..stages.faults import run_batch
from ..stages.module import ModelStage, attribute_of, stage_of
from ..stages.recording import check_finite
from .switches import FREEZE, INSTEAD, OBSERVE
from .weights import TrainedWeight, tensor_at, trained_weights

_KINDS = ("aten::batch_norm", DEFERRED)


@dataclass
class _Norm:
    """A batch norm with running statistics.

    Attributes:
        name: of its operator.
        mean, var: the running ones, buffers of the model.
        counter: of batches; None for none.
        momentum: of the running average; None where 1 / counter stands for it.
        calls: how many operators of the graph write to these statistics.
        before: mean and variance as they were.
        sums: of the batches' means and variances, float64.
        seen: batches in the sums.
    """

    name: str
    mean: Tensor
    var: Tensor
    counter: Tensor | None
    momentum: float | None
    calls: int = 1
    before: tuple[Tensor, Tensor] = field(init=False)
    sums: tuple[Tensor, Tensor] = field(init=False)
    seen: int = 0

    def __post_init__(self) -> None:
        self.before = self.mean.clone(), self.var.clone()
        self.sums = self.mean.double() * 0, self.var.double() * 0
        self._batches = None if self.counter is None else self.counter.clone()

    def reset(self) -> None:
        """Put back the statistics from before."""
        self.mean.copy_(self.before[0])
        self.var.copy_(self.before[1])
        if self.counter is not None and self._batches is not None:
            self.counter.copy_(self._batches)

    def begin(self) -> None:
        """Make ready for a batch."""
        if self.momentum is None and self.counter is not None:
            self.counter.zero_()

    def end(self, number: int) -> None:
        """Take the statistics of a batch out of the running average, and put that back.

        running = r^k before + sum over calls i of (1 - r) r^(k - i) batch_i,  r = 1 - momentum

        Raises:
            JitPassesError: the batch, which has this number, has a NaN or an infinity.
        """
        calls = self.calls
        if self.counter is not None and self._batches is not None:
            start = 0 if self.momentum is None else int(self._batches)
            calls = int(self.counter) - start
        if calls > 0:
            rest = 0.0 if self.momentum is None else (1 - self.momentum) ** calls
            check_finite((self.mean, self.var), number)
            pairs = zip(self.sums, (self.mean, self.var), self.before, strict=True)
            for total, running, before in pairs:
                total += (running.double() - rest * before.double()) / (1 - rest)
            self.seen += 1
        self.reset()

    def finish(self) -> None:
        """Take the mean of all batches."""
        if self.seen:
            self.mean.copy_(self.sums[0] / self.seen)
            # In a dead channel the difference of two averages may be below 0.
            self.var.copy_((self.sums[1] / self.seen).clamp_min(0))


def estimate_statistics(
    model: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: InputFn | None = None,
    progress: bool | None = None,
) -> None:
    """Give batch norms the means and variances that data have in the quantized model.

    running_mean = 1 / B sum over batches b of mean_b, and running_var likewise

    Running averages follow training with a delay, and codes of few bits that change from step to
    step shift them: at the end of training they fit no model. `estimate_statistics` takes B batches
    through the model in training mode, with fixed weights and scales, and averages the statistics
    of the batches. torch.optim.swa_utils.update_bn does this for models in float. In that mode a
    batch norm normalizes by the batch, so batch norms behind others have inputs as in training.

    Codes of weights stay: where a weight has a scale for each channel, the scale changes with the
    factor gamma / sqrt(running_var + eps), which will be folded into it. With one scale for the
    weight, codes are found anew.

    Call it after the last step, ahead of `convert`. Statistics that were frozen in training are
    estimated too, and stay frozen: the last part of training has used the old ones, so compare
    before and after.

    Args:
        model: from `prepare_qat`, trained; statistics and scales change, its mode does not.
        data: batches as in training, enough for stable means, 20 of 64 say; each counts alike.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.

    Raises:
        JitPassesError: the model does not train with quantization, or has no batch norm that
            follows data; a batch does not run, or has a NaN. Then nothing has changed.

    Warns:
        JitPassesWarning: data never reached a batch norm: it keeps its statistics.

    Source: Nagel et al., "Overcoming Oscillations in Quantization-Aware Training",
    arXiv:2203.11086, where statistics are estimated anew after training.
    """
    report = stage_of(model, ModelStage.QAT, INSTEAD)
    norms = _norms(model, report.method)
    if not norms:
        raise JitPassesError(
            "the model has no batch norm whose statistics follow data in training mode: there is "
            "nothing to estimate. A model traced in eval mode has constant ones"
        )
    followers = _followers(trained_weights(model, report.method)[0])
    factors = [weight.fold.read(model) for weight in followers if weight.fold is not None]
    done = False
    with torch.no_grad(), _estimating(model):
        try:
            given = batches(data, input_fn, progress_bar("estimate statistics", progress))
            for number, batch in enumerate(given):
                for norm in norms:
                    norm.begin()
                run_batch(getattr(model, report.method), batch, f"batch {number} of the data")
                for norm in norms:
                    norm.end(number)
            done = True
        finally:
            for norm in norms:
                norm.finish() if done else norm.reset()
        for weight, factor in zip(followers, factors, strict=True):
            assert weight.fold is not None
            attribute_of(model, weight.operands.paths["scale"]).mul_(
                (weight.fold.read(model) / factor).abs()
            )
    unseen = [f"'{norm.name}'" for norm in norms if not norm.seen]
    if unseen:
        warn(f"data never reached {shortened(unseen)}: statistics stay as they were")


def _followers(weights: list[TrainedWeight]) -> list[TrainedWeight]:
    """Return the weights whose scales can follow the factor of the batch norm behind."""
    found: dict[str, TrainedWeight] = {}
    for weight in weights:
        spec, path = weight.place.spec, weight.operands.paths.get("scale")
        assert isinstance(spec, QuantizationSpec)
        if weight.fold is not None and path is not None and spec.ch_axis == weight.fold.axis:
            found.setdefault(path, weight)
    return list(found.values())


def _norms(model: torch.jit.ScriptModule, method: str) -> list[_Norm]:
    found: dict[int, _Norm] = {}
    for node in GraphView.of(model, method, parameters=True).nodes:
        if node.kind not in _KINDS or node.operand("training").constant is False:
            continue
        path = node.operand("running_mean").name
        mean = tensor_at(model, path)
        var = tensor_at(model, node.operand("running_var").name)
        if mean is None or var is None:
            continue  # it has no running ones
        if mean.data_ptr() in found:
            found[mean.data_ptr()].calls += 1
            continue
        home = path.removesuffix("running_mean")
        counter = None if home == path else tensor_at(model, f"{home}num_batches_tracked")
        momentum = node.operand("momentum").constant
        found[mean.data_ptr()] = _Norm(node.name or path, mean, var, counter, momentum)
    return list(found.values())


@contextmanager
def _estimating(model: torch.jit.ScriptModule) -> Iterator[None]:
    """Let batch norms follow the data, and nothing else."""
    modes = [(module, module.training) for module in model.modules()]
    switches = [getattr(model, name, None) for name in (FREEZE, OBSERVE)]
    known = [(s, s.clone()) for s in switches if isinstance(s, Tensor)]
    try:
        model.train()
        for switch, _ in known:
            switch.fill_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for switch, before in known:
            switch.copy_(before)
