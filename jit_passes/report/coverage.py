"""What is int8, what is float, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch

from ..errors import count_of
from ..graph.view import GraphView
from ..specification.annotation import Annotations
from ..stages.module import OperatorRecord, Report, check_module
from ..stages.normalize import normalize
from ..stages.observe import operator_records


class Coverage(Sequence[OperatorRecord]):
    """Every convolution, linear and matrix product of a model; printing it gives a table."""

    def __init__(self, operators: Sequence[OperatorRecord]) -> None:
        self._operators = tuple(operators)

    @property
    def int8(self) -> tuple[OperatorRecord, ...]:
        """The operators that compute on integers."""
        return tuple(row for row in self if row.dtype == "int8")

    @property
    def float(self) -> tuple[OperatorRecord, ...]:
        """The operators that compute in float, each with its reason."""
        return tuple(row for row in self if row.dtype == "float")

    @overload
    def __getitem__(self, index: int) -> OperatorRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OperatorRecord]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._operators[index]

    def __len__(self) -> int:
        return len(self._operators)

    def __iter__(self) -> Iterator[OperatorRecord]:
        return iter(self._operators)

    def __str__(self) -> str:
        if not self:
            return "no convolution, linear or matrix product"
        width = max(len(row.name) for row in self)
        kinds = max(len(row.kind) for row in self)
        lines = [f"{len(self.int8)} of {count_of(len(self), 'operator')} in int8"]
        for row in self:
            why = f"  {row.reason} ({row.source})" if row.reason and row.source else ""
            why = why or (f"  {row.reason}" if row.reason else "")
            lines.append(f"{row.name:<{width}}  {row.kind:<{kinds}}  {row.dtype:<5}{why}".rstrip())
        return "\n".join(lines)


def coverage(model: torch.jit.ScriptModule, method: str = "forward") -> Coverage:
    """List every convolution, linear and matrix product with int8 or float and the reason.

    Args:
        model: at any stage, before quantizing too, and after saving and loading.
        method: for a model that no stage has seen, the method to look at.

    Raises:
        JitPassesError: not a ScriptModule.
    """
    report = Report.read(model) if isinstance(model, torch.jit.ScriptModule) else None
    if report is not None:
        return Coverage(report.operators)
    check_module(model, method)
    graph = GraphView.of(normalize(model._c, method).module, method)
    nothing = Annotations(reasons={node.name: "not quantized yet" for node in graph.nodes})
    return Coverage(operator_records(graph, nothing))
