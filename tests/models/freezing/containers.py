"""Models that change lists, dictionaries and instances, or hold constants of all types."""

import enum
from typing import Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import torch
from torch import Tensor, nn


class AppendsNumbers(nn.Module):
    """A list that grows, one that shrinks and one that is read."""

    seen: List[int]  # noqa: UP006
    left: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.left, self.read = [], [5, 6, 7, 8, 9, 10], [7, 8]

    def forward(self, x: Tensor) -> Tuple[List[int], int, int]:  # noqa: UP006
        seen = self.seen
        seen.append(x.size(0))
        return self.seen, self.left.pop(), self.read[1]


class AddsToList(nn.Module):
    """A list that is assigned longer."""

    seen: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: Tensor) -> List[int]:  # noqa: UP006
        self.seen += [x.size(0)]
        return self.seen


class AppendsTensors(nn.Module):
    """A list of tensors that grows."""

    seen: List[Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: Tensor) -> Tuple[Tensor, List[Tensor]]:  # noqa: UP006
        self.seen.append(x.sum())
        return torch.stack(self.seen).sum(), self.seen


class Containers(nn.Module):
    """Writes to the tensors within a list, a tuple and a dictionary, and reads one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.items = [torch.zeros(4), torch.zeros(4)]
        self.pair = (torch.zeros(4), 2)
        self.table = {"a": torch.zeros(4)}
        self.read_items, self.read_table = [torch.ones(4)], {"a": torch.ones(4)}
        self.read_pair = (torch.ones(4), 2)

    def forward(self, x: Tensor) -> Tensor:
        self.items[1].add_(1)
        self.pair[0].add_(2)
        self.table["a"].add_(3)
        written = self.items[0] + self.items[1] + self.pair[0] * self.pair[1] + self.table["a"]
        read = self.read_items[0] + self.read_table["a"] + self.read_pair[0] * self.read_pair[1]
        return written + read + x


class KeepsInList(nn.Module):
    """Writes to a buffer by way of a list into which it was put the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.items = [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        self.items[0].add_(2)
        self.items[0] = self.b
        return self.items[0] + self.b + x


class Dictionary(nn.Module):
    """Counts what it sees."""

    counts: Dict[int, int]  # noqa: UP006
    last: Dict[str, Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.last, self.read = {}, {}, {"a": 3, "b": 4}

    def forward(self, x: Tensor) -> Tuple[Dict[int, int], Dict[str, Tensor], int]:  # noqa: UP006
        batch = x.size(0)
        self.counts[batch] = self.counts.get(batch, 0) + 1
        self.last["x"] = x if "x" not in self.last else torch.cat([self.last["x"], x])
        return self.counts, self.last, self.read["b"]


@torch.jit.script
class Holder:
    """A class that is no module."""

    def __init__(self, value: Tensor, calls: int) -> None:
        self.value = value
        self.calls = calls

    def count(self, by: int) -> int:
        self.calls += by
        return self.calls


class HasHolder(nn.Module):
    """Instances of a class: one that is written to and one that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.holder, self.read = Holder(torch.zeros(4), 0), Holder(torch.ones(4), 5)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(1)
        return x + self.holder.value + self.holder.count(2) + self.read.value * self.read.calls


class KeepsInHolder(nn.Module):
    """Writes to a buffer by way of an instance into which it was put the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.holder = Holder(torch.zeros(4), 0)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(2)
        self.holder.value = self.b
        return self.holder.value + self.b + x


class Point(NamedTuple):
    """A tuple with names."""

    x: Tensor
    weight: float


class Color(enum.Enum):
    """Two numbers."""

    RED = 1
    BLUE = 2


def double(x: Tensor) -> Tensor:
    """A function to have as an attribute."""
    return 2 * x


class Literals(nn.Module):
    """Attributes of all kinds, which are read."""

    empty: List[int]  # noqa: UP006
    nothing: Optional[Tensor]  # noqa: UP045
    maybe: Optional[int]  # noqa: UP045
    empty_table: Dict[str, int]  # noqa: UP006
    point: Point

    def __init__(self) -> None:
        super().__init__()
        self.number, self.ratio, self.flag, self.text = 3, 0.5, True, 'a "word"\n'
        self.infinite = float("inf")
        self.pair, self.empty, self.nothing, self.maybe = (2, "two", (1.5, None)), [], None, 4
        self.point, self.color, self.where = Point(torch.ones(4), 0.25), Color.BLUE, double
        self.table, self.empty_table = {"a": [1, 2], "b": [3]}, {}
        self.kind, self.device, self.phase = torch.float64, torch.device("cpu"), 1 + 2j
        self.words, self.ratios, self.flags = ["a", "b"], [0.5, 1.5], [True, False]

    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        maybe = self.maybe
        if self.flag and self.nothing is None and maybe is not None:
            x = x * maybe
        if self.color == Color.BLUE:
            x = x + len(self.empty) + len(self.empty_table) + len(self.text)
        x = self.where(x) * self.number + self.ratio + self.pair[0] + self.pair[2][0]
        x = x.clamp(max=self.infinite) + self.point.x * self.point.weight
        x = x + sum(self.table["a"]) + self.ratios[1] + abs(self.phase)
        if self.words[1] == "b" and self.flags[0]:
            x = x.to(device=self.device, dtype=self.kind)
        return {self.pair[1]: x, self.text: x + 1}


class ReturnsLiterals(Literals):
    """Literals that are returned as they are."""

    def forward(
        self, x: Tensor
    ) -> Tuple[  # noqa: UP006
        Optional[Tensor],  # noqa: UP045
        Optional[int],  # noqa: UP045
        List[int],  # noqa: UP006
        Dict[str, int],  # noqa: UP006
        Tuple[int, str, Tuple[float, Optional[Tensor]]],  # noqa: UP006, UP045
        Dict[str, List[int]],  # noqa: UP006
        List[str],  # noqa: UP006
        complex,
    ]:
        pair = (self.pair[0], self.pair[1], (self.pair[2][0], self.nothing))
        return (
            self.nothing,
            self.maybe,
            self.empty,
            self.empty_table,
            pair,
            self.table,
            self.words,
            self.phase,
        )


class Assigned(nn.Module):
    """Attributes of all kinds, which are assigned."""

    maybe: Optional[int]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.number, self.ratio, self.flag, self.text = 3, 0.5, True, "a"
        self.pair, self.maybe, self.words = (1, "x"), None, ["a"]

    def forward(self, x: Tensor) -> Tuple[Tensor, int, float, bool, str, Tuple[int, str]]:  # noqa: UP006
        maybe = self.maybe
        self.maybe = 1 if maybe is None else maybe + 1
        self.number, self.ratio, self.flag = self.number * 2, self.ratio / 2, not self.flag
        self.text = self.text + "b"
        self.pair = (self.pair[0] + 1, self.pair[1] + "y")
        self.words = self.words + [self.text]  # noqa: RUF005
        return x * len(self.words), self.number, self.ratio, self.flag, self.text, self.pair
