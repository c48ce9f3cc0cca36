"""Sharing in annotations drawn at random, against slow rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.view import GraphView, NodeView, ValueView
from jit_passes.observers import Histogram
from jit_passes.quantizer import (
    Annotations,
    Quantization,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
    resolve,
)
from jit_passes.stages.normalize import normalize
from jit_passes.testing.check import random_module
from tests.annotating import FIXED, INT8, UINT8, annotation
from tests.seeds import seeds

Item = tuple[str, ...]  # ("edge", value, node) or ("result", node)
Toy = dict[Item, tuple[str, Any]]  # "own" and a number that equal specifications have; or "shared"


def slow_groups(
    toy: Toy, implicit: Mapping[str, bool], written: set[str], maker: Mapping[str, str]
) -> set[frozenset[Item]] | None:
    """Group as PT2E does: union of pairs, closed by brute force. None for a circle of sharing.

    The rule differs from PT2E in three points: users share implicitly when both allow it,
    not one; values that are written to never do; and a value to share with may come later.
    """

    def root(item: Item) -> Any:
        seen = set()
        while toy[item][0] == "shared":
            if item in seen:
                return None
            seen.add(item)
            item = toy[item][1]
        return toy[item][1]

    if any(root(item) is None for item in toy):
        return None
    pairs = []
    for item in toy:
        if toy[item][0] == "shared":
            pairs.append((item, toy[item][1]))
        if item[0] == "edge" and implicit[item[2]] and item[1] not in written:
            for other in toy:
                user = other[0] == "edge" and other[1] == item[1] and implicit[other[2]]
                made = other[0] == "result" and maker.get(item[1]) == other[1]
                if (user or made) and root(other) == root(item):
                    pairs.append((item, other))
    label = {item: number for number, item in enumerate(toy)}
    changed = True
    while changed:
        changed = False
        for one, other in pairs:
            least = min(label[one], label[other])
            changed |= label[one] != label[other]
            label[one] = label[other] = least
    return {frozenset(i for i in toy if label[i] == number) for number in set(label.values())}


def draw_annotations(
    graph: GraphView, rng: random.Random
) -> tuple[Toy, dict[str, bool], Annotations, dict[Item, tuple[ValueView, NodeView]]]:
    own = [UINT8, INT8, QuantizationSpec("uint8", observer=Histogram()), FIXED]
    equal = [0, 1, 0, 3]
    where: dict[Item, tuple[ValueView, NodeView]] = {}
    for node in graph.nodes:
        if node.kind.startswith("prim::") or not node.name:
            continue
        operands = list(node.inputs)
        for operand in node.inputs:
            if operand.producer is not None and operand.producer.kind == "prim::ListConstruct":
                operands += operand.producer.inputs
        for value in dict.fromkeys(operands):
            constant = value.constant
            floating = not isinstance(constant, Tensor) or constant.is_floating_point()
            known = value.dtype is None or value.dtype.is_floating_point
            known = known and not (value.producer and value.producer.traits.gives)
            if value.is_tensor and floating and known and rng.random() < 0.7:
                where["edge", str(value.id), str(node.index)] = value, node
        floating = len(node.outputs) == 1 and node.output.is_tensor
        floating = floating and (node.output.dtype or torch.float).is_floating_point
        floating = floating and node.traits.gives is None
        if floating and rng.random() < 0.7:
            where["result", str(node.index)] = node.output, node
    toy: Toy = {}
    specs: dict[Item, Any] = {}
    items = list(where)
    for item in items:
        if rng.random() < 0.3:
            target = rng.choice(items)
            value, node = where[target]
            toy[item] = "shared", target
            specs[item] = SharedQuantizationSpec((value, node) if target[0] == "edge" else node)
        else:
            choice = rng.randrange(len(own))
            toy[item] = "own", equal[choice]
            specs[item] = own[choice]
    implicit = {str(node.index): rng.random() < 0.8 for node in graph.nodes}
    annotations = Annotations()
    users = list(dict.fromkeys(where[item][1] for item in items))
    rng.shuffle(users)
    for node in users:
        mine = [item for item in items if where[item][1] is node]
        rng.shuffle(mine)
        edges = {where[item][0]: specs[item] for item in mine if item[0] == "edge"}
        result = next((specs[item] for item in mine if item[0] == "result"), None)
        annotations[node] = annotation(edges, result, implicit[str(node.index)])
    return toy, implicit, annotations, where


def group_at(found: Sequence[Quantization], value: ValueView, node: NodeView, edge: bool) -> int:
    lists = [o.producer for o in node.inputs if o.producer is not None]
    users = [node, *(maker for maker in lists if maker.kind == "prim::ListConstruct")]
    for place in found:
        if place.value is value and edge and any(user in users for user, _ in place.uses):
            return place.place.group
    (result,) = [place for place in found if place.value is value and not place.uses]
    return result.place.group


@pytest.mark.parametrize("seed", seeds(4, few=2))
def test_groups_of_random_modules(seed: int) -> None:
    """Random annotations of random modules fall into the groups that the slow rules give."""
    rng = random.Random(seed)
    compared = circles = 0
    for index in range(25):
        module = random_module(index, seed + 100).compile(training=False)
        graph = GraphView.of(normalize(module._c, "forward").module)
        for _ in range(3):
            toy, implicit, annotations, where = draw_annotations(graph, rng)
            written = {str(value.id) for value, _ in where.values() if value.written}
            maker = {str(v.id): str(v.producer.index) for v, _ in where.values() if v.producer}
            wanted = slow_groups(toy, implicit, written, maker)
            if wanted is None:
                circles += 1
                with pytest.raises(JitPassesError, match="in a circle"):
                    resolve(graph, annotations)
                continue
            try:
                found = resolve(graph, annotations)
            except JitPassesError as error:
                assert "elements of one list" in str(error)
                continue
            labels: dict[int, set[Item]] = {}
            for item, (value, node) in where.items():
                labels.setdefault(group_at(found, value, node, item[0] == "edge"), set()).add(item)
            assert {frozenset(group) for group in labels.values()} == wanted
            compared += 1
    assert compared > 20 and circles > 3


class Drawn(Quantizer):
    """Annotates at random."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def annotate(self, graph: GraphView) -> Annotations:
        return draw_annotations(graph, random.Random(self.seed))[2]


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return (
        [t for part in parts for t in tensors(part)]
        if isinstance(value, (tuple, list, dict))
        else []
    )


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")
def test_random_annotations_of_random_modules() -> None:
    """A prepared model computes what the model does, in-place operators and branches included."""
    compared, count = 0, len(seeds(60, few=30))
    for index in range(count):
        drawn = random_module(index, 21)
        if "'-inf'" in drawn.source:  # which has no range
            continue
        model = drawn.compile(training=False, dtype=torch.float32)
        try:
            prepared = jit_passes.prepare(model, quantizer=Drawn(index), target="reference")
        except JitPassesError as error:
            assert "in a circle" in str(error) or "elements of one list" in str(error)
            continue
        try:
            expected = tensors(model(*drawn.arguments(torch.float32)))
        except torch.jit.Error:  # PyTorch's executor takes a convolution to have a batch axis
            continue
        found = tensors(prepared(*drawn.arguments(torch.float32)))
        for one, other in zip(expected, found, strict=True):
            assert torch.allclose(one.float(), other.float(), 1e-4, 1e-5), drawn.name
        jit_passes.calibrate(prepared, [drawn.arguments(torch.float32)])
        converted = jit_passes.convert(prepared)
        try:
            results = tensors(converted(*drawn.arguments(torch.float32)))
        except RuntimeError as error:  # scripts do not know dtypes, nor does this quantizer
            assert "only floating-point tensors are quantized" in str(error)
            continue
        assert all(value.isfinite().all() for value in results)
        compared += 1
    assert compared > count // 2
