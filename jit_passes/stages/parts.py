"""Parts of a model that are quantized already: they stay as they are.

A submodule that has been through a stage is called and not inlined, see `isOpaque` in
cpp/graph/calls.h. Quantized operators of PyTorch stand in the graph like others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from .. import _C
from ..errors import JitPassesError, shortened
from ..graph.view import CALL, GraphView, NodeView
from ..quantizers.deferred import DEFERRED, FOLD_BIAS
from .module import ALREADY, ModelStage, OperatorRecord, Report

_PYTORCH = "quantized::"
# Operators that reports count: convolutions, linears, recurrent layers, embeddings.
_WEIGHTED = re.compile(
    r"quantized::(conv|linear|embedding|quantized_\w+_cell)|aten::quantized_(lstm|gru)"
)
_DYNAMIC = re.compile(r"dynamic|lstm|gru|cell")
_NO_LAYER = re.compile(r"pack|_(stride|padding|dilation|groups|transpose)$")
_NEXT = {
    ModelStage.PREPARED: "calibrate and convert it first",
    ModelStage.QAT: "convert it first",
}


def parts_of(module: Any, method: str) -> dict[str, Report]:
    """Return the reports of the submodules that a method calls and stages have seen, by path."""
    return {path: Report.from_text(text) for path, text in _C.parts(module, method)}


def is_quantized(node: NodeView) -> bool:
    """Say whether it is one of PyTorch's quantized operators with weights."""
    return _is_layer(node.kind)


@cache
def _is_layer(kind: str) -> bool:
    return bool(_WEIGHTED.match(kind)) and not _NO_LAYER.search(kind)


def record_of(node: NodeView) -> OperatorRecord:
    """Return the record of one of PyTorch's quantized operators for reports."""
    mode = "weight_only" if "embedding" in node.kind else "static"
    mode = "dynamic" if _DYNAMIC.search(node.kind) else mode
    return OperatorRecord(node.name, node.kind, "int8", "", node.source, "", mode, ALREADY)


def records_of(parts: Mapping[str, Report]) -> list[OperatorRecord]:
    """Return the records of the operators of quantized submodules for reports."""
    return [
        replace(row, name=f"{path}.{row.name}", why=ALREADY if row.dtype == "int8" else "")
        for path, report in parts.items()
        for row in report.operators
    ]


def check_parts(module: Any, method: str, graph: GraphView) -> None:
    """Check that something of a model in canonical form is left to be quantized.

    Raises:
        JitPassesError: all of it is quantized already, or its own graph holds operators of this
            package; or a submodule is on its way.
    """
    kinds = {node.kind for node in graph.nodes}
    for path, report in (parts_of(module, method) if CALL in kinds else {}).items():
        if report.stage in _NEXT:
            raise JitPassesError(
                f"'{path}', a part of the model, is {report.stage} already: "
                f"{_NEXT[report.stage]}, or put its float module there"
            )
    own = any(k.startswith("jit_passes::") for k in kinds - {DEFERRED, FOLD_BIAS})
    before = CALL in kinds or any(k.startswith(_PYTORCH) or _is_layer(k) for k in kinds)
    if own or (before and not any(node.traits.counts for node in graph.nodes)):
        raise JitPassesError("the model is quantized already: start from the float model")


def describe_parts(module: Any, method: str, graph: GraphView, trains: bool) -> str:
    """Say which parts of a model stay as they are; "" for none."""
    calls = any(node.kind == CALL for node in graph.nodes)
    parts = parts_of(module, method) if calls else {}
    modules = [node.module or node.name for node in graph.nodes if is_quantized(node)]
    names = [repr(name) for name in dict.fromkeys((*parts, *modules))]
    if not names:
        return ""
    said = f"quantized already, and kept as it is: {shortened(names)}"
    reference = [repr(p) for p, r in parts.items() if r.stage is ModelStage.REFERENCE]
    if reference:
        said += f"; {shortened(reference)} computes in float: lower it first, to change that"
    return said + "; no gradient goes through it" * trains
