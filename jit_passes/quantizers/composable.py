"""Several quantizers, one after another."""

from __future__ import annotations

from ..errors import JitPassesError, count_of, shortened, warn
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView
from ..specification.annotation import Annotations
from ..specification.specification import EdgeOrNode
from .base import Quantizer, annotations_of


class ComposableQuantizer(Quantizer):
    """Runs quantizers in order; where two annotate the same operator, the later one's holds.

    Args:
        quantizers: at least one.

    Attributes:
        overwritten: after `annotate`: the operator, the quantizer whose annotation was overwritten,
            and the quantizer that did it.

    Raises:
        JitPassesError: there is none, or they are made for different backends.
    """

    def __init__(self, *quantizers: Quantizer) -> None:
        if not quantizers:
            raise JitPassesError("no quantizers were given: ComposableQuantizer(first, second)")
        made_for = {repr(q.target): q.target for q in quantizers if q.target is not None}
        if len(made_for) > 1:
            names = ", ".join(sorted(made_for))
            raise JitPassesError(f"the quantizers are made for different backends: {names}")
        self.quantizers = quantizers
        self.overwritten: list[tuple[str, str, str]] = []
        self.target = next(iter(made_for.values()), None)

    def transform_for_annotation(self, graph: GraphEditor) -> None:
        for quantizer in self.quantizers:
            quantizer.transform_for_annotation(graph)

    def annotate(self, graph: GraphView) -> Annotations:
        """Annotate with each quantizer.

        An operator that a later one annotates is no longer among the reasons, refusals and shared
        operands of earlier ones.

        Warns:
            JitPassesWarning: one overwrote another's annotation; see `overwritten`.
        """
        annotations = Annotations()
        owners: dict[NodeView, str] = {}
        self.overwritten = []
        for number, quantizer in enumerate(self.quantizers, 1):
            name = f"{number}. {type(quantizer).__name__}"
            found = annotations_of(quantizer, graph)
            for node in found:
                if node in annotations and annotations[node] != found[node]:
                    self.overwritten.append((node.name, owners[node], name))
                annotations[node] = found[node]
                owners[node] = name
            annotations.kept |= found.kept
            annotations.idle += found.idle
            annotations.reasons |= found.reasons
            annotations.refused |= found.refused
            annotations.lossy |= found.lossy
            for name in annotations.quantized:
                annotations.reasons.pop(name, None)
                annotations.refused.pop(name, None)
            annotations.shared = _about_others(annotations.shared, found) + found.shared
        if self.overwritten:
            shown = shortened([f"'{n}': {new} over {old}" for n, old, new in self.overwritten])
            count = count_of(len(self.overwritten), "operator")
            warn(f"quantizers overwrote each other's annotations of {count}: {shown}")
        return annotations

    def validate(self, annotations: Annotations) -> None:
        for quantizer in self.quantizers:
            quantizer.validate(annotations)


def _about_others(
    shared: list[tuple[EdgeOrNode, ...]], annotations: Annotations
) -> list[tuple[EdgeOrNode, ...]]:
    """Return the shared places, except operands of operators that are annotated now."""
    rest = []
    for places in shared:
        kept = [p for p in places if not (isinstance(p, tuple) and p[1] in annotations)]
        if len(kept) > 1 or len(kept) == len(places):
            rest.append(tuple(kept))
    return rest
