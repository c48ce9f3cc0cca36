"""Freezing thresholds one by one, as TQT does towards the end of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..errors import JitPassesError, nearest

# Graffitist's defaults; its numbers of steps are for batches of 24.
_BATCH_SIZE = 24
_START_STEP = 1000
_INTERVAL = 50
_MOMENTUM = 0.9999


@dataclass(eq=False)
class _Threshold:
    """A log2 threshold and its statistics."""

    parameter: Parameter
    average: Tensor  # exponential moving average of its value, float64
    total: Tensor = field(init=False)  # sum of its gradients since the last decision, float64
    seen: int = 0  # how many gradients that is

    def __post_init__(self) -> None:
        self.total = torch.zeros_like(self.average)

    def follow(self, momentum: float) -> None:
        value = self.parameter.detach().double()
        if self.average.device != value.device:  # the model has moved
            self.average, self.total = self.average.to(value), self.total.to(value)
        self.average.lerp_(value, 1 - momentum)

    def accumulate(self) -> None:
        gradient = self.parameter.grad
        if gradient is not None:
            # A step that a gradient scaler left out has infinite ones.
            self.total += gradient.detach().double().nan_to_num(0.0, 0.0, 0.0)
            self.seen += 1

    def magnitude(self) -> float:
        """Return |mean gradient|, of several channels the mean of theirs."""
        return float(self.total.abs().mean()) / self.seen

    def settled(self) -> bool:
        """Return whether its scale is its most frequent one, in all channels."""
        return torch.equal(self.parameter.detach().double().ceil(), self.average.ceil())

    def reset(self) -> None:
        self.total.zero_()
        self.seen = 0


class ThresholdFreezer:
    """Freezes trained log2 thresholds one by one, the calmest first, as TQT does.

    The scale of a threshold is `2^ceil(log2 t)` times a constant. If `log2 t` wanders around a
    whole number, the scale switches back and forth, and the weights never settle. After
    `start_step` steps the gradient of each threshold is averaged. Every `interval` further steps,
    thresholds are sorted by |mean gradient|, smallest first, and the first one with

        ceil(log2 t) == ceil(average)
        average <- momentum * average + (1 - momentum) * log2 t, at each step

    is frozen: on the side where it mostly was. At most one is; then means begin anew. The average
    runs from the first step on, and begins with the threshold's value at construction.

    A threshold with several channels counts as one: sorted by the mean of its channels' |mean
    gradient|, frozen when all of them are where they mostly were. A threshold without a gradient
    since the last decision is not frozen, as its mean says nothing.

    Call `step` after the optimizer's, while gradients are still there:

        loss.backward()
        optimizer.step()
        freezer.step()
        optimizer.zero_grad()

    TQT's recipe for batches of N has two optimizers:

        weights = torch.optim.Adam(weights, lr=1e-6)  # times 0.94 every 3000 * 24 / N steps
        thresholds = torch.optim.Adam(thresholds, lr=1e-2)  # times 0.5 every 1000 * 24 / N steps
        schedules = (
            torch.optim.lr_scheduler.StepLR(weights, 3000 * 24 // N, 0.94),
            torch.optim.lr_scheduler.StepLR(thresholds, 1000 * 24 // N, 0.5),
        )
        freezer = ThresholdFreezer.for_batch_size(named_thresholds, N)

    Under DistributedDataParallel gradients are averages over the ranks, and thresholds are equal,
    so all ranks freeze the same ones at the same step. Wrap the model with
    `find_unused_parameters=True`: otherwise it waits for the gradients of frozen parameters.

    Source: Jain et al., Trained Quantization Thresholds (https://arxiv.org/abs/1903.08066), section
    on freezing, and their implementation Graffitist.

    Args:
        parameters: names and log2 thresholds, of any shape.
        start_step: steps before the first gradient counts.
        interval: steps between decisions.
        momentum: of the average.

    Raises:
        JitPassesError: there are no thresholds, or two of one name; or a number is out of range.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Parameter]],
        start_step: int = _START_STEP,
        interval: int = _INTERVAL,
        momentum: float = _MOMENTUM,
    ) -> None:
        if start_step < 0 or interval < 1 or not 0 <= momentum < 1:
            raise JitPassesError(
                "start_step is 0 or more, interval 1 or more and momentum from 0 to below 1, not "
                f"{start_step}, {interval} and {momentum}"
            )
        self.start_step = start_step
        self.interval = interval
        self.momentum = momentum
        self._step = 0
        self._order: list[str] = []
        self._thresholds: dict[str, _Threshold] = {}
        if isinstance(parameters, torch.nn.Module):
            raise JitPassesError(
                "names and log2 thresholds are needed, not a model: pass the thresholds among "
                "jit_passes.named_quantization_parameters(model)"
            )
        for name, parameter in parameters:
            if name in self._thresholds:
                raise JitPassesError(f"two thresholds are called '{name}'")
            self._thresholds[name] = _Threshold(parameter, parameter.detach().double().clone())
        if not self._thresholds:
            raise JitPassesError(
                "there are no thresholds to freeze: pass named log2 thresholds of a model that "
                "trains them, as TQT's"
            )

    @classmethod
    def for_batch_size(
        cls, parameters: Iterable[tuple[str, Parameter]], batch_size: int
    ) -> ThresholdFreezer:
        """Return one with Graffitist's numbers: start_step = 1000 * 24 / batch_size, interval = 50.

        Args:
            parameters: names and log2 thresholds.
            batch_size: images in a step, on all ranks together.

        Raises:
            JitPassesError: as the class, or batch_size is below 1.
        """
        if batch_size < 1:
            raise JitPassesError(f"batch_size is 1 or more, not {batch_size}")
        return cls(parameters, _START_STEP * _BATCH_SIZE // batch_size)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the thresholds that it has frozen, in that order."""
        return tuple(self._order)

    def step(self) -> str | None:
        """Count a step of the optimizer.

        Returns:
            The name of the threshold that was frozen; None for none.
        """
        self._step += 1
        # Thresholds that someone else has frozen are not ours to decide on; they may be thawed.
        moving = {n: t for n, t in self._thresholds.items() if t.parameter.requires_grad}
        for threshold in moving.values():
            threshold.follow(self.momentum)
            if self._step > self.start_step:
                threshold.accumulate()
        past = self._step - self.start_step
        if past <= 0 or past % self.interval:
            return None
        chosen = self._choose(moving)
        for threshold in moving.values():
            threshold.reset()
        if chosen is not None:
            self._freeze(chosen)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a run goes on exactly: plain data and tensors."""
        return {
            "step": self._step,
            "frozen": list(self._order),
            "thresholds": {
                name: {"average": t.average.clone(), "total": t.total.clone(), "seen": t.seen}
                for name, t in self._thresholds.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: exactly the thresholds that were frozen then are frozen.

        Raises:
            JitPassesError: it is the state of other thresholds; nothing has changed then.
        """
        saved = state["thresholds"]
        for name in saved.keys() ^ self._thresholds.keys():
            where = "the state" if name in saved else "the freezer"
            other = self._thresholds if name in saved else saved
            raise JitPassesError(
                f"only {where} has a threshold '{name}', in the other {nearest(name, other)}: make "
                "the freezer for the model that the state is of"
            )
        for name, threshold in self._thresholds.items():
            found, wanted = saved[name]["average"].shape, threshold.average.shape
            if found != wanted:
                raise JitPassesError(
                    f"the threshold '{name}' has shape {list(wanted)}, and {list(found)} in the "
                    "state"
                )
        self._step = int(state["step"])
        for name, threshold in self._thresholds.items():
            device = threshold.parameter.device
            threshold.average = saved[name]["average"].to(device, torch.float64, copy=True)
            threshold.total = saved[name]["total"].to(device, torch.float64, copy=True)
            threshold.seen = int(saved[name]["seen"])
            if name in self._order and name not in state["frozen"]:
                threshold.parameter.requires_grad_(True)
        self._order = []
        for name in state["frozen"]:
            self._freeze(name)

    def __repr__(self) -> str:
        counts = f"{len(self._order)} of {len(self._thresholds)} frozen at step {self._step}"
        rule = f"start_step={self.start_step}, interval={self.interval}, momentum={self.momentum}"
        return f"ThresholdFreezer({rule}): {counts}"

    def _choose(self, moving: Mapping[str, _Threshold]) -> str | None:
        known = [name for name, threshold in moving.items() if threshold.seen]
        known.sort(key=lambda name: moving[name].magnitude())  # stable: ties go to the first
        return next((name for name in known if moving[name].settled()), None)

    def _freeze(self, name: str) -> None:
        parameter = self._thresholds[name].parameter.requires_grad_(False)
        parameter.grad = None  # optimizers skip parameters without it, momentum or not
        self._order.append(name)
