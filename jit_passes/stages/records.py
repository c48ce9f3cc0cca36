"""The record of the operators that could be quantized: on integers or in float, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..errors import JitPassesError, count_of, warn
from ..graph.view import GraphView, NodeView, ValueView
from ..quantizers.rearranged import origin_of
from ..specification.annotation import Annotations
from ..specification.resolve import Quantization
from ..specification.slots import is_split, place_at, slot_of
from ..specification.specification import ResolvedSpec
from ..targets import Target
from .module import OperatorRecord
from .parts import is_quantized, record_of


class QuantizedUses:
    """Finds how an operator sees its operands quantized.

    Args:
        places: the result of `resolve`.
    """

    def __init__(self, places: Sequence[Quantization]) -> None:
        self.results = {place.value.id: place for place in places if not place.uses}
        self.edges = {(node.index, i): place for place in places for node, i in place.uses}

    def at(self, node: NodeView, position: int, element: int | None) -> ResolvedSpec | None:
        """Return how an operand is quantized, or the result that it is rearranged from.

        Also where it was quantized before: by an operator that trains.
        """
        user, operand = node.use(position, element)
        value = user.inputs[operand]
        found = self.edges.get((user.index, operand))
        found = found or self.results.get(origin_of(value, self.results).id)
        earlier = place_at(value.producer) if value.producer is not None else None
        place = found.place if found else earlier
        return None if place is None else place.spec

    def seen(self, node: NodeView) -> list[tuple[int, ValueView, ResolvedSpec]]:
        """Return the quantized operands, with their positions."""
        seen = (
            (position, value, self.at(node, position, element))
            for position, element, value in node.operands
        )
        return [(position, value, spec) for position, value, spec in seen if spec is not None]

    def is_dynamic(self, node: NodeView) -> bool:
        """Say whether an operand is quantized with parameters that are chosen as the model runs."""
        return any(getattr(spec, "is_dynamic", False) for _, _, spec in self.seen(node))

    def precision(self, node: NodeView) -> tuple[str, str]:
        """Return bits of weights and activations, and the mode.

        Bits are `w4a8`, `a8` for a product, "" for none. A convolution or linear with one of them
        in float has `w8 only` or `a8 only`, and so has an embedding; `w4g32 only` has a scale for
        each group of 32 inputs. Operands of different widths stand side by side: `a8x4`. Biases do
        not count. The mode is `dynamic`, or `weight_only` where just the weight is quantized, or
        `static`.
        """
        found: dict[str, list[str]] = {"w": [], "a": []}
        convolves = node.traits.weighted is not None or is_split(node)
        mode = "static"
        for position, value, spec in self.seen(node):
            if getattr(spec, "is_dynamic", False):
                mode = "dynamic"
            if convolves and position > 1:
                continue
            weight = position == 1 if convolves else value.is_constant
            groups = getattr(spec, "group_size", None)
            bits = (spec.quant_max - spec.quant_min).bit_length()
            found["w" if weight else "a"].append(f"{bits}g{groups}" if groups else str(bits))
        text = "".join(f"{kind}{'x'.join(dict.fromkeys(n))}" for kind, n in found.items() if n)
        if not (convolves or node.traits.holds_weights) or not text or all(found.values()):
            return text, mode
        return f"{text} only", "weight_only" if mode == "static" and found["w"] else mode

    def is_alone(self, node: NodeView, operand: int) -> bool:
        """Say whether an operand is a weight whose operator has its input in float."""
        if slot_of(node, operand) != "weight":
            return False
        return operand == 0 or self.at(node, 0, None) is None


def operator_records(
    graph: GraphView,
    annotations: Annotations,
    target: Target | None = None,
    places: Sequence[Quantization] = (),
) -> list[OperatorRecord]:
    """List all operators with weights and all matrix products, and how each will compute.

    Args:
        graph: the normalized graph.
        annotations: a quantizer's annotations of it.
        target: the backend, for the reason why something stays in float.
        places: the result of `resolve` for the annotations.
    """
    records = []
    quantized, uses = annotations.quantized, QuantizedUses(places)
    for node in graph.nodes:
        if is_quantized(node):
            records.append(record_of(node))
        if not node.traits.counts:
            continue
        int8 = node.name in quantized
        reason = "" if int8 else float_reason(node, annotations, target)
        kind = node.kind.rpartition("::")[2]
        dtype = "int8" if int8 else "float"
        bits, mode = uses.precision(node) if int8 else ("", "")
        why = annotations.chosen.get(node.name, "") if int8 else ""
        records.append(OperatorRecord(node.name, kind, dtype, reason, node.source, bits, mode, why))
    return records


def float_reason(node: NodeView, annotations: Annotations, target: Target | None) -> str:
    """Say why an operator that is not annotated stays in float."""
    if node.name in annotations.reasons:
        return annotations.reasons[node.name]
    refusal = target.refusal(node) if target is not None else None
    if refusal is None:
        return "the quantizer did not annotate it"
    assert target is not None
    return refusal.replace("the target", f"the target '{target.name}'", 1)


def check_refusals(
    annotations: Annotations, operators: Sequence[OperatorRecord], strict: bool, fails: bool
) -> None:
    """Warn of operators that stay in float against a wish; with `strict`, raise an error.

    Args:
        annotations: of the model.
        operators: the rows of its report.
        strict: whether they are an error.
        fails: whether an error with the reasons follows, since nothing is quantized.
    """
    kept = annotations.kept
    unwanted = [row for row in operators if row.dtype == "float" and row.name not in kept]
    if strict:
        refuse(unwanted)
    if strict and not operators and not annotations.quantized:
        raise JitPassesError(
            "strict: the model has no operator with weights, and no matrix product, so nothing "
            "would be quantized: leave strict out where that is meant"
        )
    if annotations.idle:
        rules = "".join(f"\n  {rule}" for rule in annotations.idle)
        count = count_of(len(annotations.idle), "rule")
        message = f"the configuration has {count} without any effect:{rules}"
        if strict:
            raise JitPassesError(f"strict: {message}\nremove them, or leave strict out")
        warn(message)
    if annotations.lossy:
        first = next(iter(annotations.lossy))
        warn(
            "signal processing is put on integers, where small values are lost:"
            f"{_listed(annotations.lossy, annotations.lossy)}\na rule leaves one in float, "
            f"{{value: {first!r}, keep_float: true}}; one with a mode means it so"
        )
    if annotations.refused and not fails:
        listed = _listed(annotations.refused, {row.name for row in operators})
        outcome = "they stay in float" if annotations.quantized else "nothing is quantized"
        message = (
            f"the target cannot quantize these as they are asked for, so {outcome}:{listed}\n"
            f"{annotations.advice}"
        )
        if strict:
            raise JitPassesError(f"strict: {message}, or leave strict out")
        warn(message)


def _listed(reasons: Mapping[str, str], known: Collection[str]) -> str:
    """Return the first operators with their reasons, one a line, and how many more there are.

    Only operators that the report names too, `known`, are left out.
    """
    names = [n for number, n in enumerate(reasons) if number < 5 or n not in known]
    more = len(reasons) - len(names)
    rows = "".join(f"\n  {name}: {reasons[name]}" for name in names)
    return rows + (f"\n  and {more} more" if more else "")


def refuse(unwanted: Sequence[OperatorRecord]) -> None:
    """Raise an error, with `strict`, for operators that would stay in float, if there are any."""
    if unwanted:
        rows = "".join(f"\n  {row.name}: {row.reason}" for row in unwanted)
        raise JitPassesError(
            f"strict: {count_of(len(unwanted), 'operator')} would stay in float:{rows}\n"
            "say keep_float: true where that is meant, or leave strict out"
        )
