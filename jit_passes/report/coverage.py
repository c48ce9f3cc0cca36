"""Which operators of a model are quantized, with how many bits, and why the others are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch

from ..errors import count_of
from ..specification.annotation import Annotations
from ..stages.module import ModelStage, OperatorRecord, Report, part_of, quantized_methods
from ..stages.normalize import normalized_graph
from ..stages.parts import parts_of, records_of
from ..stages.records import operator_records
from ..tables import html_table

NEEDS_PACKAGE = (
    "to load its file, `import jit_passes` first; files for target='stock' load with torch alone"
)
OWN = re.compile(r"\bjit_passes::|torch\.classes\.jit_passes\.")  # operators, classes


class Coverage(tuple[OperatorRecord, ...]):
    """Every operator with weights and every matrix product; printing it gives a table.

    The last column says why an operator is in float, or why it is not static where the mode "auto"
    chose so; `OperatorRecord.why` has it for all that were chosen. Remarks stand behind that.

    Attributes:
        needs_package: whether the model is lowered to operators or plans of this package, so that
            its file loads behind `import jit_passes`, or in C++ behind the library
            `runtime_path()`. Files for the target "stock" load with torch alone.
    """

    needs_package: bool

    def __new__(cls, operators: Iterable[OperatorRecord], needs_package: bool = False) -> Coverage:
        made = super().__new__(cls, operators)
        made.needs_package = needs_package
        return made

    @property
    def int8(self) -> tuple[OperatorRecord, ...]:
        """The operators that are quantized, with any number of bits."""
        return tuple(row for row in self if row.dtype == "int8")

    @property
    def float(self) -> tuple[OperatorRecord, ...]:
        """The operators that compute in float, each with its reason."""
        return tuple(row for row in self if row.dtype == "float")

    @property
    def summary(self) -> str:
        """How many are quantized, in a line."""
        if not self:
            return "no operator with weights, and no matrix product"
        counts = Counter(row.precision for row in self)
        floats = counts.pop("float", 0)
        parts = [f"{count} {precision}" for precision, count in counts.most_common()]
        parts += [f"{floats} in float"] if floats else []
        count = count_of(len(self), "operator")
        return f"{len(self.int8)} of {count} quantized: {', '.join(parts)}"

    def __str__(self) -> str:
        lines = [self.summary]
        if not self:
            return lines[0]
        columns = [(row.name, row.kind, row.precision, row.mode) for row in self]
        widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
        for row, texts in zip(self, columns, strict=True):
            cells = [f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)]
            lines.append("  ".join((*cells, _why(row))).rstrip())
        return "\n".join((*lines, NEEDS_PACKAGE) if self.needs_package else lines)

    def _repr_html_(self) -> str:
        rows = ((row.name, row.kind, row.precision, row.mode, _why(row)) for row in self)
        head = ("operator", "kind", "bits", "mode", "why")
        return html_table(head, rows, self.summary, NEEDS_PACKAGE if self.needs_package else "")


def _why(row: OperatorRecord) -> str:
    located = f"{row.reason} ({row.source})" if row.reason and row.source else row.reason
    return replace(row, reason=located).explanation


def coverage(model: torch.jit.ScriptModule, method: str = "forward") -> Coverage:
    """List every operator with weights and every matrix product: its bits, or why it is in float.

    Operators with weights are convolutions, linears, recurrent layers, attention and embeddings, in
    any form. Matrix products are of computed tensors. Norms and prelu, with a number for each
    channel, are not listed.

    Operators of a part that was quantized before the model are listed too, "quantized already".

    Args:
        model: at any stage, before quantizing too, and after saving and loading.
        method: for a model that no stage has seen, or with several quantized methods, the method
            to look at.

    Raises:
        JitPassesError: not a ScriptModule.
    """
    model = part_of(model, method)
    report = Report.read(model)
    if report is not None:
        lowered = report.stage is ModelStage.LOWERED
        graph_text = getattr(model, report.method).inlined_graph.str(False) if lowered else ""
        parts = records_of(parts_of(model._c, report.method))
        return Coverage((*report.operators, *parts), OWN.search(graph_text) is not None)
    graph = normalized_graph(model, method)
    others = " and ".join(f"'{name}'" for name in quantized_methods(model))
    why = f"method '{method}' is not quantized, as {others} is" if others else "not quantized yet"
    nothing = Annotations(reasons={node.name: why for node in graph.nodes})
    parts = records_of(parts_of(model._c, method))
    return Coverage((*operator_records(graph, nothing), *parts))
