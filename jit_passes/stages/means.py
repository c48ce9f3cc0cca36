"""Means of results over batches, channel by channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.view import NodeView
from .batches import Batch
from .faults import origin_of
from .recording import Recorder, check_finite, copy_of


@dataclass
class Mean:
    """A running mean of rows."""

    total: Tensor
    count: int = 0

    def add(self, total: Tensor, count: int) -> None:
        self.total, self.count = self.total + total, self.count + count

    @classmethod
    def of(cls, channels: int) -> Mean:
        """Return the mean of nothing."""
        return cls(torch.zeros(channels, dtype=torch.float64))

    @property
    def value(self) -> Tensor:
        return self.total / max(self.count, 1)


def sum_of(means: Iterable[Mean]) -> Mean:
    """Return the mean of the rows of all means."""
    total = Mean(torch.zeros((), dtype=torch.float64))
    for mean in means:
        total.add(mean.total, mean.count)
    return total


def recorded(
    module: torch.jit.ScriptModule, method: str, indices: Sequence[int], data: Iterable[Batch]
) -> Iterator[dict[int, list[Tensor]]]:
    """Yield the results of nodes of a copy by their indices, batch by batch."""
    recorder = Recorder(
        copy_of(module, method), method, list(dict.fromkeys(indices)), origin=origin_of(module)
    )
    for number, arguments in enumerate(data):
        values = recorder.run(arguments, number=number)[1]
        check_finite((t for tensors in values.values() for t in tensors), number)
        yield values


def batch_means(
    module: torch.jit.ScriptModule, method: str, nodes: Mapping[str, NodeView],
    axes: Mapping[str, int], data: Iterable[Batch],
) -> list[dict[str, Mean]]:  # fmt: skip
    """Return the mean of each channel of the results of nodes, by name, for each batch."""
    names = {node.index: name for name, node in nodes.items()}
    found = []
    for values in recorded(module, method, list(names), data):
        means: dict[str, Mean] = {}
        for index, tensors in values.items():
            for rows in (rows_of(tensor, axes[names[index]]) for tensor in tensors):
                known = means.setdefault(names[index], Mean.of(len(rows)))
                known.add(rows.sum(1), rows.shape[1])
        found.append(means)
    return found


def rows_of(tensor: Tensor, axis: int) -> Tensor:
    """Return [channels, values], in float64."""
    return tensor.movedim(axis, 0).flatten(1).double()


def over_batches(by_batch: Iterable[Mapping[str, Mean]]) -> dict[str, Tensor]:
    """Return the means of all batches, by name."""
    parts: dict[str, list[Mean]] = {}
    for means in by_batch:
        for name, mean in means.items():
            parts.setdefault(name, []).append(mean)
    return {name: sum_of(means).value for name, means in parts.items()}
