"""Programs of models that change what they keep, or write in place: call by call as TorchScript."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import jit_passes
from jit_passes import JitPassesError


class Keeps(nn.Module):
    """Two buffers, a number, a truth, and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(3))
        self.register_buffer("c", torch.full((3,), 2.0))
        self.number, self.truth = 0.0, False
        self.items = [1]
        self.named = {"a": torch.ones(3)}


class Assigned(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.b = self.b + 1
        return x + self.b


class ReadWithin(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.b = self.b + 1
            x = x + self.b
        return x


class InPlace(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        b = self.b
        if bool(x.sum() > 0):
            self.b.add_(1)
        return x + b


class ReadOutside(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        b = self.b
        if bool(x.sum() > 0):
            b += 1
        return x + self.b


class BothWays(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.b[0] = 9.0
        else:
            self.b = x.mean(0)
        return x + self.b


class RingInBranch(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.b = torch.roll(self.b, 1)
            self.b[0] = x.sum()
        return x + self.b


class Ring(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.b = torch.roll(self.b, 1)
        self.b[0] = x.sum()
        return self.b


class WrittenThenAssigned(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.b[0] = 5.0
        self.b = self.b * 2
        return x * self.b


class TwoNames(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        b = self.b
        self.b = x[0] + b
        b += 2
        return b + self.b


class Swapped(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        old = self.b
        self.b = self.c
        self.c = old
        return self.b - self.c + x


class OldReturned(Keeps):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        old = self.b[1:]
        self.b = self.b + x[0]
        return old, self.b


class LongerForAWhile(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.b = torch.cat([self.b, x[0]])
        total = self.b.sum()
        self.b = self.b[-3:]
        return x + total


class EqualNumbers(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.b = self.b + 1
            self.truth = False
        self.number = 1.0
        x = x + self.number
        self.number = 0.0
        return x + self.b


class Parts(nn.Module):
    """Two modules with a buffer of one name, which one assigns and the other writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(True), Part(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Part(nn.Module):
    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(3))
        self.assigns = assigns

    def forward(self, x: Tensor) -> Tensor:
        if self.assigns:
            self.b = self.b + 1
        else:
            self.b.add_(2)
        return x + self.b


class Rounds(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        for row in range(x.shape[0]):
            self.b = self.b * 0.5 + x[row]
        return x + self.b


class RoundsInPlace(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        b = self.b
        for row in range(x.shape[0]):
            b += x[row]
        return x + self.b


class CarriedAndReturned(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        part, b = y[:, 1:], y
        for row in range(x.shape[0]):
            b += x[row]
        return y, b, part


class CarriedInAList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(3)
        kept = [total]
        for row in range(x.shape[0]):
            total += x[row]
        return kept[0] + x


class Counts(nn.Module):
    """A counter in a branch by itself, one in a loop, and a value read ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("b", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.n
        if bool(self.n < 2):
            self.b += x[0]
            self.n += 1
        while bool(self.b.sum() < 3):
            self.b += 1
        return y + self.b


ROUNDS = (Rounds, RoundsInPlace, CarriedAndReturned, CarriedInAList)
CALLS = (
    *(Assigned, ReadWithin, InPlace, ReadOutside, BothWays, RingInBranch, Ring, TwoNames, Swapped),
    *(WrittenThenAssigned, Counts, OldReturned, LongerForAWhile, EqualNumbers, Parts),
)


@pytest.mark.parametrize("model", [*CALLS, *ROUNDS])
def test_calls_one_after_the_other(model: type[nn.Module]) -> None:
    """A branch that the data decide, and a loop whose rounds a size decides, change state too."""
    torch.manual_seed(0)
    script = torch.jit.script(model().eval())
    shapes = ({0: Dim("rows", min=2, max=9)},) if model in ROUNDS else None
    program = jit_passes.to_exported_program(script, torch.ones(2, 3), shapes).module()
    reference = copy.deepcopy(script)
    for rows, sign in ((2, 1), (2, -1), (5 if shapes else 2, 1), (2, 1)):
        x = torch.rand(rows, 3) * sign
        found, expected = tree_leaves(program(x)), tree_leaves(reference(x))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    state = {name: value.tolist() for name, value in script.state_dict().items()}
    initial = {name: value.tolist() for name, value in model().state_dict().items()}
    assert state == initial, "the caller's model has changed"


@torch.jit.script
class Settings:
    """A scale, and a list."""

    def __init__(self, scale: float):
        self.scale = scale
        self.items = [1]


class HoldsSettings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings(2.0)

    def forward(self, x: Tensor) -> Tensor:
        self.settings.items.append(5)
        return x * len(self.settings.items)


class ChangesSettings(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        settings = Settings(3.0)
        if bool(x.sum() > 0):
            settings.scale = 9.0
        return x * settings.scale


class Appends(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.items.append(2)
        return x * len(self.items)


class WritesIntoADict(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.named["a"].add_(1)
        return x * self.named["a"]


class NegativeZero(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.number = -0.0
        return torch.atan2(x * 0, x * 0 + self.number)


class TruthInABranch(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.truth = True
        return x + self.b


class WritesIntoAList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = [x.clone(), x]
        if bool(x.sum() > 0):
            kept[0] += 1
        return kept[0]


class SwapsInALoop(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.clone(), x * 2
        kept = a
        while bool(a.sum() < 9):
            a += 1
            a, b = b, a
        return a + b, kept


class WrittenBehindABranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        chosen = y if bool(x.sum() > 0) else x * 3
        chosen += 7
        return y


class StateChosen(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        slot = self.b if bool(x.sum() > 0) else self.c
        slot += 1
        return x + self.b


class ViewChosen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        view = y.view(-1)
        chosen = view if bool(x.sum() > 0) else view * 2
        y += 1
        return chosen


class AssignsFromOutside(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        y = x[0].clone()
        if bool(x.sum() > 0):
            self.b = y
        y += 1
        return x + self.b


class OldBehindABranch(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        old = self.b
        if bool(x.sum() > 0):
            self.b = self.b * 2
        self.b.add_(1)
        return old + x


class HandsOn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total, last, found = x[0].clone(), x[0] * 0, x[0] * 0
        while bool(total.sum() < 99):
            total += 10
            found = found + last
            last = total
        return found


class AttributesOfOneTensor(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        y = x + self.c
        self.b.add_(1)
        if bool(x.sum() > 0):
            self.c = self.b
        return y


class OneTensor(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.c = self.b

    def forward(self, x: Tensor) -> Tensor:
        self.b.add_(1)
        return x + self.c


class OneTensorLater(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.b.add_(1)
        self.b = self.c
        return x + self.c


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (HoldsSettings, "'append' at .*changes 'items' of an object of its own"),
        (ChangesSettings, "'If' at .*changes an object that is made outside of it"),
        (Appends, "'append' at .*changes its attribute 'items', which is no tensor"),
        (WritesIntoADict, "changes its attribute 'named', which is no tensor"),
        (WritesIntoAList, "'If' at .*a branch changes a list or dict that is made outside of it"),
        (NegativeZero, "changes its attribute 'number'"),
        (TruthInABranch, "'If' at .*changes its attribute 'truth'"),
        (SwapsInALoop, "'Loop' at .*a second name or a view"),
        (StateChosen, "'If' at .*which is written to later"),
        (ViewChosen, "'If' at .*which is written to later"),
        (AssignsFromOutside, "'If' at .*which is written to later"),
        (OldBehindABranch, "'If' at .*which is written to later"),
        (HandsOn, "'Loop' at .*hands on a tensor under another name"),
        (AttributesOfOneTensor, "'If' at .*which is written to later"),
        (OneTensor, "'b' and 'c', which are one tensor"),
        (OneTensorLater, "'b' and 'c' are one tensor from then on"),
        (WrittenBehindABranch, "'If' at .*which is written to later"),
    ],
)
def test_changes_that_no_program_keeps(model: type[nn.Module], said: str) -> None:
    """An error says so, with the line of the operator."""
    with pytest.raises(JitPassesError, match=said):
        jit_passes.to_exported_program(torch.jit.script(model().eval()), torch.ones(2, 3))
