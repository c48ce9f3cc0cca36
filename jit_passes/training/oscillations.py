"""Weights that jump between two codes: counted, damped and frozen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..errors import JitPassesError, aligned, count_of, nearest
from ..stages.module import ModelStage, stage_of
from ..tables import html_table
from .switches import FREEZE, INSTEAD
from .weights import Codes, TrainedWeight, trained_weights

_HEAD = ("weight", "numbers", "oscillating", "frozen")
_SAID = re.compile(r"(?:; )?[\d.]+ % of the weights oscillate, [\d.]+ % are frozen")


@dataclass(frozen=True)
class OscillationCount:
    """How many numbers of a weight jump between codes.

    Attributes:
        name: path of the parameter.
        numbers: of the weight.
        oscillating: that change back and forth more often than the limit, and are not frozen.
        frozen: that have a code for good.
    """

    name: str
    numbers: int
    oscillating: int
    frozen: int


@dataclass(eq=False)
class _Watched:
    """A weight and its statistics, tensors of its shape.

    Attributes:
        weight: where it is.
        shared: whether several places read the parameter, so none can freeze it.
        codes: at the last step, int16.
        direction: sign of the last change, int8; 0 before the first.
        frequency: moving average of jumps back.
        average: moving average of codes.
        frozen: which numbers are.
        held: the value of each frozen number.
    """

    weight: TrainedWeight
    shared: bool
    codes: Tensor
    direction: Tensor
    frequency: Tensor
    average: Tensor
    frozen: Tensor
    held: Tensor

    @classmethod
    def of(cls, weight: TrainedWeight, shared: bool, found: Codes) -> _Watched:
        codes = found.codes
        return cls(
            weight, shared, codes, torch.zeros_like(codes, dtype=torch.int8),
            torch.zeros_like(codes, dtype=torch.float32), codes.float(),
            torch.zeros_like(codes, dtype=torch.bool), torch.zeros_like(found.step),
        )  # fmt: skip

    @property
    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _STATE}

    def to(self, device: torch.device) -> None:
        """Follow a model that has moved."""
        if self.codes.device != device:
            for name, tensor in self.state.items():
                setattr(self, name, tensor.to(device))

    def follow(self, codes: Tensor, momentum: float) -> None:
        """Take the codes of a further step."""
        change = (codes - self.codes).sign().to(torch.int8)
        jumped_back = change * self.direction < 0
        self.frequency.lerp_(jumped_back.float(), momentum)
        self.average.lerp_(codes.float(), momentum)
        self.direction = torch.where(change != 0, change, self.direction)
        self.codes = codes

    def freeze(self, above: float, found: Codes) -> int:
        """Freeze numbers that jump more often, each at its usual code; return how many."""
        chosen = (self.frequency > above) & ~self.frozen
        usual = self.average.round().clamp(found.low, found.high).to(self.codes.dtype)
        self.codes = torch.where(chosen, usual, self.codes)
        self.held = torch.where(chosen, self.codes * found.step, self.held)
        self.frozen = self.frozen | chosen
        return int(chosen.sum())


_STATE = ("codes", "direction", "frequency", "average", "frozen", "held")


class Oscillations:
    """Counts weights that jump between two codes while they train, and damps or freezes them.

    A weight whose best value lies between two codes is pulled from one to the other by the
    straight-through gradient, and back, for as long as it trains. The jumps keep statistics of
    batch norms moving, and the code at the end of training is chance. Few bits and few weights for
    each result, as in depthwise convolutions, have most of it. With c_t the code of a weight after
    step t,

        o_t = 1 where c_t != c_(t-1), in the other direction than the change before, else 0
        f_t = m o_t + (1 - m) f_(t-1),  f_0 = 0
        a_t = m c_t + (1 - m) a_(t-1),  a_0 = c_0

    and m the momentum, a weight oscillates where f is above a limit. Three remedies:

        oscillations = jit_passes.Oscillations(qat)
        for images, labels in loader:
            loss = cross_entropy(qat(images), labels) + strength * oscillations.dampening()
            loss.backward()
            optimizer.step()
            oscillations.step(freeze_above=limit)
            optimizer.zero_grad()
        jit_passes.estimate_statistics(qat, batches)

    *Dampening* adds the squared distance of weights from their codes to the loss, best with a
    strength that grows from 0. *Freezing* takes weights with f > `freeze_above`, one by one, and
    holds each at the code round(a), where it mostly was; best with a limit that falls. *Statistics*
    of batch norms are estimated anew in the end: see `estimate_statistics`.

    Call `step` after the optimizer's, and whether a weight is frozen is decided there. Changes
    of frozen ones by the optimizer are taken back, so momentum and weight decay do not move it.
    Without a batch norm behind, or with statistics frozen, its code is held, and it follows its
    scale. While statistics move, its value s round(a) / f is held as it was, since f follows the
    weight: a scale that moves by half a code takes it to another code. A parameter that two places
    read, each with a scale of its own, is counted at both, damped towards both, and not frozen.
    Weights that the model computes are left out: see `left_out`.

    Under DistributedDataParallel weights are equal on all ranks, and so is all of this.

    Args:
        model: from `prepare_qat`.
        momentum: m.
        limit: of f, above which a weight counts as oscillating.

    Raises:
        JitPassesError: the model does not train with quantization, or has no quantized weight that
            is a parameter; or a number is out of range.

    Source: Nagel et al., "Overcoming Oscillations in Quantization-Aware Training",
    arXiv:2203.11086, sections on oscillations, dampening and iterative freezing.
    """

    def __init__(
        self, model: torch.jit.ScriptModule, momentum: float = 0.01, limit: float = 0.005
    ) -> None:
        report = stage_of(model, ModelStage.QAT, INSTEAD)
        if not 0 < momentum < 1 or not 0 <= limit < 1:
            raise JitPassesError(
                "momentum is above 0 and below 1, and limit from 0 to below 1, not "
                f"{momentum} and {limit}"
            )
        self.momentum, self.limit = momentum, limit
        self._model, self._method, self._steps = model, report.method, 0
        weights, self._left_out = trained_weights(model, report.method)
        keys = [weight.parameter(model).data_ptr() for weight in weights]
        self._watched: dict[str, _Watched] = {}
        for weight, key in zip(weights, keys, strict=True):
            found = weight.codes(model)
            if found is not None:
                name = self._name(weight.path)
                self._watched[name] = _Watched.of(weight, keys.count(key) > 1, found)
        if not self._watched:
            raise JitPassesError(
                "no quantized weight of the model is a parameter whose scale has begun: there is "
                "nothing to watch"
            )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the weights that the model computes, which are not watched."""
        return tuple(self._left_out)

    @property
    def counts(self) -> tuple[OscillationCount, ...]:
        """The numbers of each weight, in the order of the graph."""
        return tuple(
            OscillationCount(
                name, it.codes.numel(), int(((it.frequency > self.limit) & ~it.frozen).sum()),
                int(it.frozen.sum()),
            )
            for name, it in self._watched.items()
        )  # fmt: skip

    @property
    def share(self) -> float:
        """The share of all numbers that oscillates, from 0 to 1."""
        return self._total("oscillating") / self._total("numbers")

    @property
    def frozen(self) -> float:
        """The share of all numbers that is frozen, from 0 to 1."""
        return self._total("frozen") / self._total("numbers")

    def dampening(self) -> Tensor:
        """Return the sum of squared distances of weights from their codes, for the loss.

            sum over weights of (w - s c / f)^2 where they are not clipped, else 0

        s is the scale and f the factor of the batch norm behind, or 1: the distance is in units of
        the weight. Only the weights get a gradient; s, c and f are constants in it.

        Returns:
            A tensor without axes, on the device of the first weight.
        """
        total: Tensor | None = None
        for it in self._watched.values():
            weight = it.weight.parameter(self._model)
            found = self._codes(it)
            centre = found.codes * found.step
            ends = torch.stack((found.low * found.step, found.high * found.step))
            inside = (weight.detach() > ends.amin(0)) & (weight.detach() < ends.amax(0))
            part = torch.where(inside, weight - centre, 0.0).square().sum()
            total = part if total is None else total + part.to(total.device)
        assert total is not None
        return total

    @torch.no_grad()
    def step(self, freeze_above: float | None = None) -> int:
        """Count a step of the optimizer, and hold the weights that are frozen.

        Args:
            freeze_above: weights that jump more often are frozen; None for none.

        Returns:
            How many numbers were frozen at this step.

        Raises:
            JitPassesError: the limit is no number from 0 on.
        """
        is_number = isinstance(freeze_above, Real)
        if freeze_above is not None and not (is_number and freeze_above >= 0):
            raise JitPassesError(f"freeze_above is a number from 0 on, not {freeze_above!r}")
        self._steps += 1
        new = 0
        for it in self._watched.values():
            new += self._follow(it, freeze_above)
        return new

    def _follow(self, it: _Watched, freeze_above: float | None) -> int:
        parameter, found = it.weight.parameter(self._model), self._codes(it)
        if bool(it.frozen.any()):
            if it.weight.fold is None or self._statistics_stand_still:
                it.held = torch.where(it.frozen, it.codes * found.step, it.held)
            parameter.copy_(torch.where(it.frozen, it.held, parameter))
            found = self._codes(it)
        it.follow(found.codes, self.momentum)
        if freeze_above is None or it.shared:
            return 0
        new = it.freeze(freeze_above, found)
        if new:
            parameter.copy_(torch.where(it.frozen, it.held, parameter))
        return new

    @property
    def _statistics_stand_still(self) -> bool:
        frozen = getattr(self._model, FREEZE, None)
        return isinstance(frozen, Tensor) and bool(frozen)

    def record(self) -> None:
        """Write the counts into the model's report: `coverage` says them, converted or not."""
        report = stage_of(self._model, ModelStage.QAT, INSTEAD)
        said: dict[str, str] = {}
        for it, count in zip(self._watched.values(), self.counts, strict=True):
            shares = _percent(count.oscillating, count), _percent(count.frozen, count)
            text = "{} of the weights oscillate, {} are frozen".format(*shares)
            said |= dict.fromkeys((it.weight.place.owner, *it.weight.place.users), text)
        rows = tuple(
            replace(row, remark=_SAID.sub("", row.remark)).remarked(said[row.name])
            if row.name in said
            else row
            for row in report.operators
        )
        replace(report, operators=rows).write(self._model._c)

    def table(self) -> list[tuple[str, ...]]:
        """Return head and rows as texts."""
        rows = [
            (it.name, str(it.numbers), _percent(it.oscillating, it), _percent(it.frozen, it))
            for it in self.counts
        ]
        return [_HEAD, *rows]

    def __str__(self) -> str:
        return f"{aligned(self.table())}\n{self._summary}"

    def _repr_html_(self) -> str:
        head, *rows = self.table()
        return html_table(head, rows, self._summary)

    def __repr__(self) -> str:
        return f"Oscillations(momentum={self.momentum}, limit={self.limit}): {self._summary}"

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a run goes on exactly: plain data and tensors."""
        return {
            "step": self._steps,
            "weights": {
                name: {key: tensor.clone() for key, tensor in it.state.items()}
                for name, it in self._watched.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            JitPassesError: it is the state of other weights; nothing has changed then.
        """
        saved = state["weights"]
        for name in sorted(saved.keys() ^ self._watched.keys()):
            where = "the state" if name in saved else "the model"
            other = self._watched if name in saved else saved
            raise JitPassesError(
                f"only {where} has a quantized weight '{name}', in the other "
                f"{nearest(name, other)}: pass the state of this model"
            )
        for name, it in self._watched.items():
            found, wanted = saved[name]["codes"].shape, it.codes.shape
            if found != wanted:
                raise JitPassesError(
                    f"the weight '{name}' has shape {list(wanted)}, and {list(found)} in the state"
                )
        self._steps = int(state["step"])
        for name, it in self._watched.items():
            for key, tensor in it.state.items():
                setattr(it, key, saved[name][key].to(tensor.device, tensor.dtype, copy=True))

    def _codes(self, it: _Watched) -> Codes:
        found = it.weight.codes(self._model)
        assert found is not None  # it had begun when this was built
        it.to(found.codes.device)
        return found

    def _name(self, path: str) -> str:
        """Return a name that no other place has."""
        name, number = path, 0
        while name in self._watched:
            number += 1
            name = f"{path}#{number}"
        return name

    def _total(self, what: str) -> int:
        return sum(getattr(count, what) for count in self.counts)

    @property
    def _summary(self) -> str:
        return (
            f"{100 * self.share:.1f} % of {count_of(self._total('numbers'), 'number')} oscillate, "
            f"{100 * self.frozen:.1f} % are frozen, after {count_of(self._steps, 'step')}"
        )


def _percent(part: int, count: OscillationCount) -> str:
    return f"{100 * part / count.numbers:.1f} %"
