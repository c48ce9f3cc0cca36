"""Specifications, annotations, and who shares parameters with whom."""

from __future__ import annotations

import importlib
import io
import itertools
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.editor import GraphEditor
from jit_passes.graph.view import GraphView, NodeView, ValueView
from jit_passes.observers import (
    KLJ,
    Entropy,
    Histogram,
    MeanSquaredError,
    MinMax,
    MovingAverageMinMax,
    Percentile,
)
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    ComposableQuantizer,
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    Place,
    QParams,
    Quantization,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
    bias_qparams,
    resolve,
)
from jit_passes.stages.normalize import normalize
from jit_passes.stages.prepare import plan_observations
from jit_passes.testing.check import random_module

UINT8 = QuantizationSpec("uint8", observer=MinMax())
INT8 = QuantizationSpec("int8", observer=MinMax())
FIXED = FixedQParamsQuantizationSpec(1 / 256, 0)


class Given(Quantizer):
    """Annotates as a function says that gets the graph's nodes by name."""

    def __init__(self, annotate: Callable[[Nodes, Annotations], None]) -> None:
        self.annotate_nodes = annotate

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        self.annotate_nodes(Nodes(graph), annotations)
        return annotations


class Nodes:
    """A graph's nodes and inputs by name."""

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph

    def __getitem__(self, name: str) -> NodeView:
        return next(node for node in self.graph.nodes if node.name == name)

    @property
    def x(self) -> ValueView:
        return self.graph.inputs[0]


def nodes_of(model: nn.Module) -> Nodes:
    script = torch.jit.script(model.eval())
    return Nodes(GraphView.of(normalize(script._c, "forward").module))


def annotation(
    operands: Mapping[Any, Any] | None = None, result: Any = None, implicit: bool = True
) -> QuantizationAnnotation:
    return QuantizationAnnotation(operands or {}, result, implicit)


def places(nodes: Nodes, annotations: Annotations) -> dict[str, Quantization]:
    found = resolve(nodes.graph, annotations)
    by_name = {place.name: place for place in found}
    assert len(by_name) == len(found), "places of one name"
    return by_name


def groups(nodes: Nodes, annotations: Annotations) -> dict[str, int]:
    return {name: place.place.group for name, place in places(nodes, annotations).items()}


class Net(nn.Module):
    """Two convolutions of one input, added and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3)
        self.c2 = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.c1(x), self.c2(x)
        return (a + b).relu(), torch.cat([a, b], 1).sigmoid()


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().tanh().relu().exp()


@pytest.fixture
def nodes() -> Nodes:
    return nodes_of(Net())


@pytest.fixture
def chain() -> Nodes:
    return nodes_of(Chain())


# ---------------------------------------------------------------------------- specifications


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "uint8", "quant_max": 256}, r"\[0, 256\] does not fit uint8"),
        ({"dtype": "int8", "quant_min": -129}, r"\[-129, 127\] does not fit int8"),
        ({"dtype": "int8", "quant_min": 5, "quant_max": 5}, r"\[5, 5\] does not fit"),
        ({"dtype": "int32"}, r"more than 2\*\*16 codes"),
        ({"dtype": "int32", "quant_min": 0, "quant_max": 65536}, r"more than 2\*\*16 codes"),
        ({"dtype": "float16"}, "dtype is one of uint8, int8, int16, int32, not 'float16'"),
        ({"dtype": torch.quint8}, "dtype is one of .*not torch.quint8"),
        ({"qscheme": "per_row"}, "qscheme is one of .*not 'per_row'"),
        ({"qscheme": torch.per_channel_affine_float_qparams}, "qscheme is one of"),
        ({"ch_axis": 0}, "ch_axis = 0 does not go with per_tensor_affine"),
        ({"qscheme": torch.per_channel_symmetric}, "ch_axis = None does not go with per_channel"),
        ({"is_dynamic": True}, "is_dynamic=True is not supported"),
        ({"observer": MinMax}, "observer is one of jit_passes.observers, not a type"),
        ({"observer_or_fake_quant_ctr": dict}, "observer is one of .*not a dict"),
        ({"rounding": "up"}, "rounding is one of half_even.*not 'up'"),
        ({"range_form": "tf"}, "range_form is one of pytorch, glow, not 'tf'"),
    ],
)
def test_refused_specifications(arguments: dict[str, Any], message: str) -> None:
    """What a specification cannot be, and what it says of it."""
    with pytest.raises(ValueError, match=message):
        QuantizationSpec(**arguments)


def test_words_of_pytorch() -> None:
    """dtype, qscheme and the observer's constructor as PyTorch's own specification has them."""
    spec = QuantizationSpec(
        torch.int8, -127, 127, torch.per_channel_symmetric, 0, observer_or_fake_quant_ctr=MinMax
    )
    assert spec == QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
    percentile = QuantizationSpec(observer_or_fake_quant_ctr=Percentile(99.0))
    assert percentile.observer == Percentile(99.0)
    assert FixedQParamsQuantizationSpec(
        0.5, 0, torch.int16, qscheme=torch.per_tensor_symmetric
    ) == (FixedQParamsQuantizationSpec(0.5, 0, "int16", qscheme="per_tensor_symmetric"))
    widest = QuantizationSpec("int16")
    assert (widest.quant_min, widest.quant_max) == (-(2**15), 2**15 - 1)


def test_frozen() -> None:
    """Specifications and annotations do not change."""
    for spec in (UINT8, FIXED, annotation()):
        with pytest.raises(FrozenInstanceError):
            spec.dtype = "int8"  # type: ignore[misc, union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0, "zero_point": 0}, "scale is finite and above 0, not 0.0"),
        ({"scale": float("nan"), "zero_point": 0}, "scale is finite"),
        ({"scale": float("inf"), "zero_point": 0}, "scale is finite"),
        ({"scale": 1.0, "zero_point": 256}, r"zero_point = 256 is not within \[0, 255\]"),
        ({"scale": 1.0, "zero_point": 0, "quant_max": 300}, "does not fit uint8"),
        ({"scale": 1.0, "zero_point": 0, "qscheme": "per_channel_affine"}, "ch_axis = None"),
        ({"scale": 1.0, "zero_point": 0, "is_dynamic": True}, "is_dynamic"),
    ],
)
def test_refused_fixed(arguments: dict[str, Any], message: str) -> None:
    """What fixed parameters cannot be."""
    with pytest.raises(ValueError, match=message):
        FixedQParamsQuantizationSpec(**arguments)


def test_refused_derived(chain: Nodes) -> None:
    """What derived parameters cannot be; derived_from becomes a tuple."""
    for arguments, message in (
        ({"derived_from": ()}, "derived_from names no value"),
        ({"ch_axis": 0}, "ch_axis = 0 does not go with per_tensor_symmetric"),
        ({"qscheme": torch.per_channel_affine}, "ch_axis = None does not go"),
        ({"is_dynamic": True}, "is_dynamic"),
        ({"dtype": "int8", "quant_max": 128}, "does not fit int8"),
    ):
        with pytest.raises(ValueError, match=message):
            DerivedQuantizationSpec(
                **{"derived_from": (chain.x,), "derive_qparams_fn": bias_qparams, **arguments}
            )
    spec = DerivedQuantizationSpec([chain.x], bias_qparams)  # type: ignore[arg-type]
    assert spec.derived_from == (chain.x,)
    assert (spec.quant_min, spec.quant_max) == (-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    "spec",
    [
        UINT8,
        QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 1, MinMax()),
        QuantizationSpec.of_bits(13, False, observer=MovingAverageMinMax(0.3)),
        QuantizationSpec.of_bits(4, qscheme="per_tensor_power_of_two", observer=KLJ(bins=512)),
        QuantizationSpec(
            observer=Entropy("glow", bins=1024), rounding="half_up", range_form="glow"
        ),
        QuantizationSpec(observer=MeanSquaredError(50)),
        FIXED,
        GroupDerivation((3, 1), "a.b", "int32", -5, 5, "per_channel_affine", 0),
    ],
)
def test_text_round_trip(spec: Any) -> None:
    """What is written into a prepared model reads back equal; the text begins with the id."""
    place = Place(7, "a -> b", "input", spec, 3, False, "b", ("b", "c"), (2, 4), 5)
    assert Place.from_text(place.to_text()) == place
    assert place.to_text().startswith('{"id": 7, ')


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"spec": {"kind": "observed"}, "group": 3, "users": ["a"]}', "before it had a number"),
        (
            Place(0, "a", "input", UINT8, 0).to_text().replace('"format": 1', '"format": 9'),
            "format 9",
        ),
        ("", "before it had a number"),
        ("[1]", "before it had a number"),
    ],
)
def test_text_of_another_version(text: str, what: str) -> None:
    """A model that another version prepared is refused with what to do."""
    with pytest.raises(JitPassesError, match=f"another version.*{what}.*prepare the float model"):
        Place.from_text(text)


# ---------------------------------------------------------------------------- sharing


def test_an_edge_takes_its_makers_parameters(chain: Nodes) -> None:
    """An operand quantized as its maker's result is, is quantized once; otherwise once more."""
    annotations = Annotations()
    annotations[chain["sigmoid"]] = annotation(result=UINT8)
    annotations[chain["tanh"]] = annotation({chain["sigmoid"]: UINT8})
    assert groups(chain, annotations) == {"sigmoid": 0}
    annotations[chain["tanh"]] = annotation({chain["sigmoid"]: INT8})
    assert groups(chain, annotations) == {"sigmoid": 0, "sigmoid -> tanh": 1}


def test_two_users_of_an_input(nodes: Nodes) -> None:
    """With equal specifications they see it quantized once; with unequal ones, twice."""
    annotations = Annotations()
    annotations[nodes["c1:conv2d"]] = annotation({nodes.x: UINT8})
    annotations[nodes["c2:conv2d"]] = annotation({nodes.x: UINT8})
    (place,) = resolve(nodes.graph, annotations)
    assert place.uses == ((nodes["c1:conv2d"], 0), (nodes["c2:conv2d"], 0))
    assert place.place.users == ("c1:conv2d", "c2:conv2d")
    annotations[nodes["c2:conv2d"]] = annotation({nodes.x: INT8})
    assert groups(nodes, annotations) == {"x -> c1:conv2d": 0, "x -> c2:conv2d": 1}


def test_no_implicit_sharing(nodes: Nodes, chain: Nodes) -> None:
    """An operator that does not want it shares neither with its operand's maker nor other users.

    PT2E asks the operator only at which it looks; here both have to agree, so that the order of
    operators does not matter.
    """
    for first, second in itertools.product((True, False), repeat=2):
        annotations = Annotations()
        annotations[nodes["c1:conv2d"]] = annotation({nodes.x: UINT8}, implicit=first)
        annotations[nodes["c2:conv2d"]] = annotation({nodes.x: UINT8}, implicit=second)
        assert len(set(groups(nodes, annotations).values())) == 2 - (first and second)
    annotations = Annotations()
    annotations[chain["sigmoid"]] = annotation(result=UINT8)
    annotations[chain["tanh"]] = annotation({chain["sigmoid"]: UINT8}, implicit=False)
    assert groups(chain, annotations) == {"sigmoid": 0, "sigmoid -> tanh": 1}


def test_observers_are_not_compared(chain: Nodes) -> None:
    """Whoever comes first in the program finds the range; all else has to be equal."""
    other = QuantizationSpec("uint8", observer=Percentile(99.0))
    annotations = Annotations()
    annotations[chain["sigmoid"]] = annotation(result=UINT8)
    annotations[chain["tanh"]] = annotation({chain["sigmoid"]: other})
    (place,) = resolve(chain.graph, annotations)
    assert place.spec == UINT8
    for unlike in (
        QuantizationSpec("uint8", 0, 127),
        QuantizationSpec("uint8", qscheme="per_tensor_symmetric"),
        QuantizationSpec("uint8", range_form="glow"),
        FIXED,
    ):
        annotations[chain["tanh"]] = annotation({chain["sigmoid"]: unlike})
        assert len(places(chain, annotations)) == 2


def test_explicit_sharing(nodes: Nodes) -> None:
    """With an edge, a value, or a node, the parameters are those of that."""
    first, second, add = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["add"]
    for target in ((nodes.x, first), first, first.output):
        annotations = Annotations()
        annotations[first] = annotation({nodes.x: INT8}, UINT8)
        annotations[second] = annotation(result=SharedQuantizationSpec(target))
        annotations[add] = annotation({first: INT8}, SharedQuantizationSpec(second))
        found = places(nodes, annotations)
        wanted = found["x -> c1:conv2d" if isinstance(target, tuple) else "c1:conv2d"]
        for name in ("c2:conv2d", "add"):  # the second by way of the first
            assert found[name].place.group == wanted.place.group
            assert found[name].spec == wanted.spec
        assert len(set(groups(nodes, annotations).values())) == 3


def test_sharing_with_what_comes_later(chain: Nodes) -> None:
    """An operand may share with the result of a later operator, and a chain may go both ways."""
    annotations = Annotations()
    annotations[chain["sigmoid"]] = annotation({chain.x: SharedQuantizationSpec(chain["exp"])})
    annotations[chain["tanh"]] = annotation(
        result=SharedQuantizationSpec((chain.x, chain["sigmoid"]))
    )
    annotations[chain["exp"]] = annotation(result=INT8)
    found = places(chain, annotations)
    assert {(place.place.group, place.spec) for place in found.values()} == {(0, INT8)}


def test_sharing_with_a_value_at_its_uses(nodes: Nodes) -> None:
    """A value without a result of its own, as an input, stands for its uses, which then agree."""
    first, second, add = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["add"]
    annotations = Annotations()
    annotations[first] = annotation({nodes.x: UINT8}, implicit=False)
    annotations[second] = annotation({nodes.x: UINT8}, implicit=False)
    annotations[add] = annotation(result=SharedQuantizationSpec(nodes.x))
    assert set(groups(nodes, annotations).values()) == {0}
    annotations[second] = annotation({nodes.x: SharedQuantizationSpec(nodes.x)})
    assert set(groups(nodes, annotations).values()) == {0}
    annotations[second] = annotation({nodes.x: SharedQuantizationSpec(nodes["cat"])})
    annotations[nodes["cat"]] = annotation(result=INT8)
    with pytest.raises(JitPassesError) as error:
        resolve(nodes.graph, annotations)
    for part in ("'add'", "'x', whose uses differ", "'x -> c1:conv2d'", "'x -> c2:conv2d'"):
        assert part in str(error.value)


class Branches(nn.Module):
    def forward(self, x: Tensor, flag: bool, count: int) -> Tensor:
        y = x.sigmoid()
        if flag:  # noqa: SIM108
            z = y.exp()
        else:
            z = y.tanh()
        for _ in range(count):
            z = y + z.relu()
        return z


def test_sharing_across_blocks() -> None:
    """Users in branches and loops have the parameters of a value outside, in each block once."""
    nodes = nodes_of(Branches())
    y, outside = nodes["sigmoid"].output, nodes["sigmoid"]
    annotations = Annotations()
    annotations[nodes["exp"]] = annotation({y: UINT8}, SharedQuantizationSpec((y, nodes["exp"])))
    annotations[nodes["tanh"]] = annotation({y: UINT8})
    annotations[nodes["relu"]] = annotation(result=SharedQuantizationSpec(nodes["exp"]))
    annotations[nodes["add"]] = annotation({y: UINT8, nodes["relu"]: INT8})
    found = groups(nodes, annotations)
    first = found["sigmoid -> exp"]
    assert found == {
        "sigmoid -> exp": first,
        "sigmoid -> tanh": first,
        "sigmoid -> add": first,
        "relu": first,
        "exp": first,
        "relu -> add": found["relu -> add"],
    }
    assert found["relu -> add"] != first
    annotations[outside] = annotation({nodes.x: INT8}, UINT8)
    assert "sigmoid -> add" not in groups(nodes, annotations)
    prepared = jit_passes.prepare(
        torch.jit.script(Branches().eval()),
        quantizer=Given(lambda n, a: a.update(_same(nodes, annotations, n))),
        target="reference",
    )
    x = torch.randn(3, 4)
    for flag, count in ((True, 0), (False, 3), (True, 2)):
        assert torch.equal(prepared(x, flag, count), Branches()(x, flag, count))


def _same(old: Nodes, annotations: Annotations, new: Nodes) -> Annotations:
    """Annotations again for another snapshot of the same graph."""
    pairs = zip(old.graph.nodes, new.graph.nodes, strict=True)
    values = {
        value: again
        for one, other in pairs
        for value, again in zip(
            (*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=True
        )
    }

    def place(p: Any) -> Any:
        if isinstance(p, tuple):
            return place(p[0]), new.graph.nodes[p[1].index]
        return values[p] if isinstance(p, ValueView) else new.graph.nodes[p.index]

    def spec(s: Any) -> Any:
        shared = isinstance(s, SharedQuantizationSpec)
        return SharedQuantizationSpec(place(s.edge_or_node), s.observed) if shared else s

    made = Annotations()
    for node in annotations:
        old_one = annotations[node]
        operands = {place(v): spec(s) for v, s in old_one.input_qspec_map.items()}
        made[new.graph.nodes[node.index]] = annotation(
            operands, spec(old_one.output_qspec), old_one.allow_implicit_sharing
        )
    return made


def test_elements_of_lists(nodes: Nodes) -> None:
    """What cat joins are operands of cat; its list sees them quantized."""
    first, second, cat = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["cat"]
    annotations = Annotations()
    annotations[cat] = annotation(
        {first: UINT8, second: SharedQuantizationSpec((first, cat))},
        SharedQuantizationSpec((first, cat)),
    )
    found = places(nodes, annotations)
    assert {place.place.group for place in found.values()} == {0}
    assert list(found) == ["c1:conv2d -> cat", "c2:conv2d -> cat", "cat"]
    assert found["c2:conv2d -> cat"].uses == ((nodes["ListConstruct"], 1),)


class OneList(nn.Module):
    """One list that two operators in different blocks read."""

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        both = [x.sigmoid(), x.tanh()]
        if flag:  # noqa: SIM108
            z = torch.cat(both, 0)
        else:
            z = torch.cat(both, 1)
        return z


def test_one_list_for_two_operators() -> None:
    """Both see its elements quantized once, and cannot want different things of them."""
    nodes = nodes_of(OneList())
    value = nodes["sigmoid"].output
    annotations = Annotations()
    annotations[nodes["cat"]] = annotation({value: UINT8})
    annotations[nodes["cat#1"]] = annotation({value: UINT8})
    (place,) = resolve(nodes.graph, annotations)
    assert place.uses == ((nodes["ListConstruct"], 0),)
    assert place.place.users == ("cat", "cat#1")
    annotations[nodes["cat#1"]] = annotation({value: INT8})
    with pytest.raises(JitPassesError, match="'sigmoid -> cat' and 'sigmoid -> cat#1' are elem"):
        resolve(nodes.graph, annotations)


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + x).relu()


def test_an_operand_twice() -> None:
    """x + x has one operand in two places, quantized once."""
    nodes = nodes_of(Double())
    annotations = Annotations()
    annotations[nodes["add"]] = annotation({nodes.x: UINT8})
    (place,) = resolve(nodes.graph, annotations)
    assert place.uses == ((nodes["add"], 0), (nodes["add"], 1))


class Written(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sigmoid()
        first = y[0].exp()
        y[0] = 1.0
        return first, y.tanh() + y.relu()


def test_written_values() -> None:
    """A value that is written to is quantized anew at each use, and shares when told to only."""
    nodes = nodes_of(Written())
    y = nodes["sigmoid"].output
    assert y.written
    annotations = Annotations()
    annotations[nodes["tanh"]] = annotation({y: UINT8})
    annotations[nodes["relu"]] = annotation({y: UINT8})
    found = groups(nodes, annotations)
    assert found == {"sigmoid -> tanh": 0, "sigmoid -> relu": 1}
    annotations[nodes["relu"]] = annotation({y: SharedQuantizationSpec((y, nodes["tanh"]))})
    assert groups(nodes, annotations) == {"sigmoid -> tanh": 0, "sigmoid -> relu": 0}


def test_share_places(nodes: Nodes) -> None:
    """annotations.share() unites what has equal specifications: results, edges, values at uses."""
    first, second, add, cat = (nodes[n] for n in ("c1:conv2d", "c2:conv2d", "add", "cat"))
    annotations = Annotations()
    annotations[first] = annotation({nodes.x: UINT8}, UINT8, implicit=False)
    annotations[second] = annotation({nodes.x: UINT8}, UINT8, implicit=False)
    annotations[add] = annotation({first: INT8, second: INT8}, UINT8)
    annotations[cat] = annotation(result=UINT8)
    assert len(set(groups(nodes, annotations).values())) == 8
    annotations.share((first, add), (second, add))
    annotations.share(add, cat.output, nodes.x)
    found = groups(nodes, annotations)
    assert found["c1:conv2d -> add"] == found["c2:conv2d -> add"]
    assert found["add"] == found["cat"] == found["x -> c1:conv2d"]
    assert "x -> c2:conv2d" not in found  # x is quantized once for both
    assert len(set(found.values())) == 4


def test_a_range_seen_by_a_user_only(chain: Nodes) -> None:
    """A result that leaves observing to a user that it shares with has that user's range."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        result = nodes["tanh"]
        edge = (result, nodes["relu"])
        annotations[result] = annotation(result=SharedQuantizationSpec(edge, observed=False))
        annotations[nodes["relu"]] = annotation({result: UINT8})

    annotations = Annotations()
    annotate(chain, annotations)
    (place,) = resolve(chain.graph, annotations)
    assert place.place.observed
    x = torch.linspace(-3, 3, 50)
    found = converted(Chain(), annotate, [x])
    scale, zero_point = qparams(x.sigmoid().tanh())
    assert parameters(found) == [("tanh", scale, zero_point, 0, 255, torch.uint8)]


def test_none_is_left_as_it_is(chain: Nodes) -> None:
    """An operand with None is no operand that is quantized."""
    annotations = Annotations()
    annotations[chain["sigmoid"]] = annotation({chain.x: None})
    assert resolve(chain.graph, annotations) == []
    assert "quantized" in str(annotations)


# ---------------------------------------------------------------------------- order


def test_the_order_of_annotations_does_not_matter() -> None:
    """All permutations of operators and operands give the same places."""
    nodes = nodes_of(Net())
    first, second, add, cat = (nodes[n] for n in ("c1:conv2d", "c2:conv2d", "add", "cat"))
    other = QuantizationSpec("uint8", observer=Histogram())
    of_first = SharedQuantizationSpec((first.inputs[1], first))
    wanted = [
        (first, {nodes.x: UINT8, first.inputs[1]: INT8}, SharedQuantizationSpec((nodes.x, first))),
        (second, {nodes.x: other, second.inputs[1]: of_first},
         SharedQuantizationSpec(cat)),
        (add, {first: other, second: UINT8}, INT8),
        (cat, {first: UINT8, second: SharedQuantizationSpec((first, cat))}, other),
    ]  # fmt: skip
    seen = []
    for order in itertools.permutations(wanted):
        for reverse in (False, True):
            annotations = Annotations()
            for node, operands, result in order:
                items = list(operands.items())
                annotations[node] = annotation(dict(items[::-1] if reverse else items), result)
            seen.append(resolve(nodes.graph, annotations))
    assert all(found == seen[0] for found in seen)
    assert plan_observations(seen[0])


# ---------------------------------------------------------------------------- slow rules

Item = tuple[str, ...]  # ("edge", value, node) or ("result", node)
Toy = dict[Item, tuple[str, Any]]  # "own" and a number that equal specifications have; or "shared"


def slow_groups(
    toy: Toy, implicit: Mapping[str, bool], written: set[str], maker: Mapping[str, str]
) -> set[frozenset[Item]] | None:
    """Group as PT2E does: union of pairs, closed by brute force. None for a circle of sharing.

    It differs from PT2E in three places, on purpose: users share implicitly when both allow it,
    not one; values that are written to never do; and what is shared with may come later.
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


@pytest.mark.parametrize("seed", range(4))
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
    compared = 0
    for index in range(60):
        drawn = random_module(index, 21)
        model = drawn.compile(training=False, dtype=torch.float32)
        try:
            prepared = jit_passes.prepare(model, quantizer=Drawn(index), target="reference")
        except JitPassesError as error:
            assert "in a circle" in str(error) or "elements of one list" in str(error)
            continue
        expected = tensors(model(*drawn.arguments(torch.float32)))
        found = tensors(prepared(*drawn.arguments(torch.float32)))
        for one, other in zip(expected, found, strict=True):
            assert torch.allclose(one.float(), other.float(), 1e-4, 1e-5), drawn.name
        jit_passes.calibrate(prepared, [drawn.arguments(torch.float32)])
        converted = jit_passes.convert(prepared)
        for value in tensors(converted(*drawn.arguments(torch.float32))):
            assert value.isfinite().all()
        compared += 1
    assert compared > 30


# ---------------------------------------------------------------------------- derived parameters


def half(sources: Sequence[QParams]) -> tuple[float, int]:
    return float(sources[0].scale) / 2, 0


def derived(*sources: Any, function: Any = half, **options: Any) -> DerivedQuantizationSpec:
    return DerivedQuantizationSpec(sources, function, **{"dtype": "int16", **options})


def converted(
    model: nn.Module, annotate: Callable[[Nodes, Annotations], None], data: list[Any]
) -> torch.jit.ScriptModule:
    model = model.eval()
    script = torch.jit.script(model)
    prepared = jit_passes.prepare(script, quantizer=Given(annotate), target="reference")
    jit_passes.calibrate(prepared, data)
    return jit_passes.convert(prepared)


CODES = (torch.uint8, torch.int8, torch.int16, torch.int32)


def parameters(module: torch.jit.ScriptModule) -> list[tuple[Any, ...]]:
    """Value, scale, zero point, range and dtype of each quantize that is left, in program order."""
    found: list[tuple[Any, ...]] = []
    for node in GraphView.of(module).nodes:
        if node.kind == "jit_passes::quantize":
            value, *grid = node.inputs
            scale, zero_point, low, high, code = (operand.constant for operand in grid)
            found.append((value.name, scale, zero_point, low, high, CODES[code]))
    return found


def qparams(*values: Tensor, dtype: torch.dtype = torch.quint8) -> tuple[float, int]:
    """Scale and zero point that PyTorch's own observer finds."""
    observer = torch.ao.quantization.MinMaxObserver(dtype=dtype)
    for value in values:
        observer(value)
    scale, zero_point = observer.calculate_qparams()
    return float(scale), int(zero_point)


def test_derived_in_order_of_dependence() -> None:
    """Parameters derive from derived, shared and fixed ones, in whatever order they come."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        sigmoid, tanh, relu, exp = (nodes[n] for n in ("sigmoid", "tanh", "relu", "exp"))
        annotations[sigmoid] = annotation({nodes.x: derived(relu)}, derived((nodes.x, sigmoid)))
        annotations[tanh] = annotation(result=FIXED)
        annotations[relu] = annotation(result=SharedQuantizationSpec(tanh))
        annotations[exp] = annotation(result=derived(sigmoid))

    assert [row[1] for row in parameters(converted(Chain(), annotate, [torch.randn(20)]))] == [
        FIXED.scale / 2, FIXED.scale / 4, FIXED.scale, FIXED.scale, FIXED.scale / 8
    ]  # fmt: skip


def test_a_long_chain_of_derivations() -> None:
    """Deriving does not recurse too deep."""

    def same(sources: Sequence[QParams]) -> tuple[float, int]:
        return float(sources[0].scale), 0

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        later: Any = None
        for node in reversed(nodes.graph.nodes):
            if node.kind == "aten::sigmoid":
                spec = FIXED if later is None else derived(later, function=same)
                annotations[node] = annotation(result=spec)
                later = node

    long = nn.Sequential(*(nn.Sigmoid() for _ in range(600)))
    assert {row[1] for row in parameters(converted(long, annotate, [torch.ones(4)]))} == {1 / 256}


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())


def bias_annotation(nodes: Nodes, annotations: Annotations, **options: Any) -> None:
    conv = nodes["conv:conv2d"]
    x, weight, bias = conv.inputs[:3]
    spec = DerivedQuantizationSpec(
        ((x, conv), (weight, conv)),
        options.pop("function", bias_qparams),
        **{"dtype": "int32", "qscheme": torch.per_channel_symmetric, "ch_axis": 0, **options},
    )
    annotations[conv] = annotation({x: UINT8, weight: WEIGHT, bias: spec})


def test_a_bias_in_steps_of_the_accumulator() -> None:
    """Per channel, its scale is input scale times weight scale, its codes the rounded quotients."""
    model, data = Bias().eval(), [torch.randn(2, 2, 3, 3) for _ in range(3)]
    found = converted(model, bias_annotation, data)
    (scale,) = {qparams(*data)[0]}
    weights = model.conv.weight.detach().reshape(3, -1).abs().amax(1) / 127
    rows = [n for n in GraphView.of(found).nodes if n.kind == "jit_passes::dequantize_per_channel"]
    by_dtype = {row.inputs[0].constant.dtype: row for row in rows}
    assert torch.equal(by_dtype[torch.int8].inputs[1].constant, weights.double())
    bias = by_dtype[torch.int32]
    assert torch.equal(bias.inputs[1].constant, scale * weights.double())
    codes = (model.conv.bias.detach().double() / (scale * weights.double())).round()
    assert (bias.inputs[0].constant.double() - codes).abs().max() <= 1


def test_channels_of_what_is_not_observed() -> None:
    """A weight that is not looked at has the scales of the one that it shares with."""

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        first, second = nodes["c1:conv2d"], nodes["c2:conv2d"]
        shared = SharedQuantizationSpec((second.inputs[1], second), observed=False)
        annotations[first] = annotation({first.inputs[1]: shared})
        annotations[second] = annotation({second.inputs[1]: WEIGHT})

    model = Net()
    found = converted(model, annotate, [torch.randn(1, 3, 5, 5)])
    scales = model.c2.weight.detach().reshape(4, -1).abs().amax(1) / 127
    rows = [n for n in GraphView.of(found).nodes if n.kind == "jit_passes::dequantize_per_channel"]
    assert len(rows) == 2
    for row in rows:
        assert torch.equal(row.inputs[1].constant, scales.double())


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda s: 1 / 0, {}, "'conv.bias -> conv:conv2d' with .*failed: division by zero"),
        (lambda s: 1.0, {}, "failed: cannot unpack"),
        (lambda s: (1.0, 0), {}, "gave one scale, and the specification's ch_axis is 0"),
        (lambda s: (s[1].scale[:2], 0), {}, "has 3 channels, and .*lambda.* parameters for 2"),
        (lambda s: (s[1].scale[None], 0), {}, r"gave scales of shape \[1, 3\]"),
        (lambda s: (-s[1].scale, 0), {}, "not finite and above 0"),
        (lambda s: (s[1].scale * float("nan"), 0), {}, "not finite and above 0"),
        (lambda s: (s[1].scale, torch.zeros(2)), {}, "failed: The expanded size"),
        (lambda s: (s[1].scale, 2**31), {}, r"zero point outside of \[-2147483648, 2147483647\]"),
        (
            bias_qparams,
            {"qscheme": "per_tensor_symmetric", "ch_axis": None},
            "gave scales of shape",
        ),
    ],
)
def test_functions_that_do_not_derive(function: Any, options: Any, message: str) -> None:
    """What a function returns is checked, and the message names the value and the function."""
    with pytest.raises(JitPassesError, match=message) as error:
        converted(
            Bias(),
            lambda n, a: bias_annotation(n, a, function=function, **options),
            [torch.randn(1, 2, 3, 3)],
        )
    assert "conv" in str(error.value)


# ---------------------------------------------------------------------------- errors


class Odd(nn.Module):
    """Operands that are no float tensors, and a node with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.zeros(2, 3, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(2, 3, dtype=torch.bool))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.gather(x, 1, self.index)
        high, _ = torch.max(torch.where(self.mask, y, x.sigmoid()), 1)
        return high, x.reshape([-1]) + 2.0


class Compares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, torch.gather(x, 1, x.argmax(1, keepdim=True)))


class Unlike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x))


ERRORS: dict[str, tuple[type[nn.Module], Callable[[Nodes], dict[str, Any]], list[str]]] = {
    "shares with what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec(n["cat"]))},
        ["'add' (", "shares with 'cat', which is not quantized itself"],
    ),
    "shares with an operand that is not quantized there": (
        Net,
        lambda n: {
            "c1:conv2d": annotation(result=UINT8),
            "add": annotation(result=SharedQuantizationSpec((n["c1:conv2d"], n["add"]))),
        },
        ["'add' (", "shares with 'c1:conv2d -> add', which is not"],
    ),
    "derives from what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=derived(n["cat"]))},
        ["'add' (", "is derived from 'cat', which is not quantized itself"],
    ),
    "a circle of two": (
        Net,
        lambda n: {
            "add": annotation(result=SharedQuantizationSpec(n["cat"])),
            "cat": annotation(result=SharedQuantizationSpec(n["add"])),
        },
        ["share parameters in a circle", "'add' -> 'cat' -> 'add'"],
    ),
    "a circle of one": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec(n["add"]))},
        ["share parameters in a circle", "'add' -> 'add'"],
    ),
    "a circle of derivations": (
        Net,
        lambda n: {
            "add": annotation(result=derived(n["cat"])),
            "cat": annotation(result=derived(n["relu"])),
            "relu": annotation(result=SharedQuantizationSpec(n["add"])),
        },
        ["derived from each other in a circle", "'add' -> 'cat' -> 'add'"],
    ),
    "derived from itself": (
        Net,
        lambda n: {"add": annotation(result=derived(n["add"]))},
        ["derived from each other in a circle", "'add' -> 'add'"],
    ),
    "two fixed ones in a group": (
        Net,
        lambda n: {
            "add": annotation(result=FIXED),
            "cat": annotation(result=FixedQParamsQuantizationSpec(1 / 128, 128)),
            "share": (n["add"], n["cat"]),
        },
        [
            "'add' (",
            "and 'cat' (",
            "scale 0.00390625 zero_point 0",
            "scale 0.0078125 zero_point 12",
        ],
    ),
    "shares with a value that is fixed in two ways": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: FIXED}),
            "c2:conv2d": annotation({n.x: FixedQParamsQuantizationSpec(1 / 128, 128)}),
            "add": annotation(result=SharedQuantizationSpec(n.x)),
        },
        ["'add' (", "shares with 'x', whose uses differ", "'x -> c1:conv2d'", "'x -> c2:conv2d'"],
    ),
    "derives from a value that is quantized in two ways": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "c2:conv2d": annotation({n.x: INT8}),
            "add": annotation(result=derived(n.x)),
        },
        ["'add' (", "is derived from 'x', whose uses differ"],
    ),
    "derives from a value with parameters for each use": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}, implicit=False),
            "c2:conv2d": annotation({n.x: UINT8}, implicit=False),
            "add": annotation(result=derived(n.x)),
        },
        ["'add' (", "derived from 'x', whose uses have parameters of their own", "c2:conv2d'"],
    ),
    "share() with what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=UINT8), "share": (n["add"], n["cat"])},
        ["annotations.share() is about 'cat', which is not quantized itself"],
    ),
    "not its operand": (
        Net,
        lambda n: {"add": annotation({n["cat"]: UINT8})},
        ["'cat' is annotated as an operand of 'add' (aten::add)", "'c1:conv2d', 'c2:conv2d'"],
    ),
    "one operand twice": (
        Net,
        lambda n: {"add": annotation({n["c1:conv2d"]: UINT8, n["c1:conv2d"].output: INT8})},
        ["'c1:conv2d' is annotated twice as an operand of 'add'"],
    ),
    "a node of another graph": (
        Net,
        lambda n: {nodes_of(Net())["add"]: annotation(result=UINT8)},
        ["'add' is annotated and is not a node of this graph"],
    ),
    "shares with a value of another graph": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "add": annotation(result=SharedQuantizationSpec(nodes_of(Net()).x)),
        },
        ["'add' (", "shares with 'x', which is of another graph"],
    ),
    "an edge of another graph": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "add": annotation(result=derived((n.x, nodes_of(Net())["c1:conv2d"]))),
        },
        ["'add' (", "is derived from 'x -> c1:conv2d', which is of another graph"],
    ),
    "an operand of another graph": (
        Net,
        lambda n: {"c1:conv2d": annotation({nodes_of(Net()).x: UINT8})},
        ["'x' is annotated as an operand of 'c1:conv2d'"],
    ),
    "no edge": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec((n["add"], n.x)))},
        ["'add' (", "refers to (NodeView, ValueView)", "(value, node)"],
    ),
    "no place": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec("cat"))},
        ["a value or node of the graph is expected, got str"],
    ),
    "no operand": (
        Net,
        lambda n: {"add": annotation({"c1:conv2d": UINT8})},
        ["a value or node of the graph is expected, got str"],
    ),
    "no specification": (
        Net,
        lambda n: {"add": annotation(result=QuantizationSpec)},
        ["'add' (", "is annotated with <class", "a QuantizationSpec, a SharedQuantizationSpec"],
    ),
    "an int tensor": (
        Odd,
        lambda n: {"gather": annotation({n["gather"].inputs[2]: UINT8})},
        ["index", "it holds int64: only float tensors"],
    ),
    "a mask": (
        Odd,
        lambda n: {"where": annotation({n["where"].inputs[0]: UINT8})},
        ["mask", "it holds bool: only float tensors"],
    ),
    "a comparison": (
        Compares,
        lambda n: {"gt": annotation(result=UINT8)},
        ["'gt' (", "it holds bool: only float tensors"],
    ),
    "indices": (
        Compares,
        lambda n: {"gather": annotation({n["argmax"]: UINT8})},
        ["'argmax -> gather' (", "it holds int64: only float tensors"],
    ),
    "a number": (
        Odd,
        lambda n: {"add": annotation({n["add"].inputs[1]: UINT8})},
        ["add[1]", "it is no tensor: only float tensors"],
    ),
    "a list": (
        Net,
        lambda n: {"cat": annotation({n["cat"].inputs[0]: UINT8})},
        [
            "'ListConstruct' is annotated as an operand of 'cat'",
            "which has 'c1:conv2d', 'c2:conv2d'",
        ],
    ),
    "two results": (
        Odd,
        lambda n: {"max": annotation(result=UINT8)},
        ["'max' (aten::max) has 2 results", "node.outputs[i]"],
    ),
    "an operand with two makers' results": (
        Odd,
        lambda n: {"where": annotation({n["max"]: UINT8})},
        ["'max' (aten::max) has 2 results"],
    ),
    "unknown channels": (
        Net,
        lambda n: {"add": annotation(result=WEIGHT)},
        ["'add' is to be quantized per channel along axis 0", "not known ahead of time"],
    ),
    "no such axis": (
        Net,
        lambda n: {"c1:conv2d": annotation({n["c1:conv2d"].inputs[2]: replace(WEIGHT, ch_axis=1)})},
        ["'c1.bias -> c1:conv2d'", "along axis 1, and its shape is [4]"],
    ),
    "other numbers of channels": (
        Unlike,
        lambda n: {
            "conv:conv2d": annotation({n["conv:conv2d"].inputs[1]: WEIGHT}),
            "fc:linear": annotation(
                {
                    n["fc:linear"].inputs[1]: SharedQuantizationSpec(
                        (n["conv:conv2d"].inputs[1], n["conv:conv2d"]), observed=False
                    )
                }
            ),
        },
        ["'conv.weight -> conv:conv2d' and 'fc.weight -> fc:linear'", "3 and 5 channels"],
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    """What cannot be is an error that names the values, and the caller's model stays as it was."""
    model, wanted, parts = ERRORS[case]

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        found = wanted(nodes)
        if share := found.pop("share", ()):
            annotations.share(*share)
        for name, said in found.items():
            annotations[nodes[name] if isinstance(name, str) else name] = said

    script = torch.jit.script(model().eval())
    before = to_bytes(script)
    with pytest.raises(JitPassesError) as error:
        jit_passes.prepare(script, quantizer=Given(annotate), target="reference")
    for part in parts:
        assert part in str(error.value)
    assert to_bytes(script) == before


def test_annotating_what_is_no_node(chain: Nodes) -> None:
    """annotations[...] takes nodes and annotations only."""
    for node, said in ((chain.x, annotation()), (chain["exp"], UINT8)):
        with pytest.raises(JitPassesError, match="= QuantizationAnnotation"):
            Annotations()[node] = said  # type: ignore[index, assignment]


def to_bytes(module: torch.jit.ScriptModule) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


# ---------------------------------------------------------------------------- from end to end


class Residual(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def steps(self, x: Tensor) -> dict[str, Tensor]:
        """The float values that are quantized, in eager PyTorch."""
        stem = self.stem(x).relu()
        pool = self.pool(stem)
        inner = self.conv1(pool).relu()
        outer = self.conv2(inner)
        total = (outer + pool).relu()
        flat = total.mean([2, 3])
        logits = self.fc(flat)
        return {"x": x, "stem": stem, "pool": pool, "inner": inner, "outer": outer,
                "total": total, "flat": flat, "logits": logits}  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        pool = self.pool(self.stem(x).relu())
        total = (self.conv2(self.conv1(pool).relu()) + pool).relu()
        return self.fc(total.mean([2, 3])).sigmoid()


class ThirdParty(Quantizer):
    """Annotates every convolution, pool, addition, linear and sigmoid, with all four kinds."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            x = node.inputs[0] if node.inputs else None
            if node.kind in ("aten::conv2d", "aten::linear"):
                annotations[node] = self.weighted(node)
            elif node.kind == "aten::add":
                shared = SharedQuantizationSpec((node.inputs[0], node))
                operands = {node.inputs[0]: INT8, node.inputs[1]: shared}
                annotations[node] = QuantizationAnnotation(operands, None)
            elif node.kind in ("aten::relu", "aten::mean"):
                annotations[node] = QuantizationAnnotation({}, UINT8)
            elif node.kind == "aten::max_pool2d":
                shared = SharedQuantizationSpec((x, node), observed=False)  # type: ignore[arg-type]
                annotations[node] = QuantizationAnnotation({x: UINT8}, shared)  # type: ignore[dict-item]
            elif node.kind == "aten::sigmoid":
                annotations[node] = QuantizationAnnotation({x: UINT8}, FIXED)  # type: ignore[dict-item]
        return annotations

    def weighted(self, node: NodeView) -> QuantizationAnnotation:
        x, weight, bias = node.inputs[:3]
        of_bias = DerivedQuantizationSpec(
            ((x, node), (weight, node)), bias_qparams, "int32",
            qscheme="per_channel_symmetric", ch_axis=0,
        )  # fmt: skip
        return QuantizationAnnotation({x: UINT8, weight: WEIGHT, bias: of_bias})


def images(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(count)]


def compile_model(model: nn.Module, frontend: str) -> torch.jit.ScriptModule:
    model = model.eval()
    return torch.jit.script(model) if frontend == "script" else torch.jit.trace(model, images()[0])


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_all_four_kinds(frontend: str) -> None:
    """The converted graph has the parameters that plain PyTorch finds, and nothing else."""
    torch.manual_seed(0)
    model = Residual()
    prepared = jit_passes.prepare(
        compile_model(model, frontend), quantizer=ThirdParty(), target="reference"
    )
    found = jit_passes.convert(jit_passes.calibrate(prepared, images()))
    with torch.no_grad():
        steps = [model.steps(x) for x in images()]
    seen = {name: [step[name] for step in steps] for name in steps[0]}
    uint8 = (0, 255, torch.uint8)
    expected = {
        name: (*qparams(*seen[name]), *uint8)
        for name in ("x", "stem", "inner", "total", "flat", "logits")
    }
    both = (*qparams(*seen["outer"], *seen["pool"], dtype=torch.qint8), -128, 127, torch.int8)
    order = ["x", "stem", "stem", "inner", "both", "both", "total", "flat", "logits", "fixed"]
    expected |= {"both": both, "fixed": (1 / 256, 0, *uint8)}
    assert [row[1:] for row in parameters(found)] == [expected[name] for name in order]

    sources = {"stem": "x", "conv1": "stem", "conv2": "inner", "fc": "flat"}
    constants = {
        tuple(node.inputs[1].constant.tolist()): node.inputs[0].constant
        for node in GraphView.of(found).nodes
        if node.kind == "jit_passes::dequantize_per_channel"
    }
    assert len(constants) == 8
    for name, source in sources.items():
        layer = getattr(model, name)
        weight = layer.weight.detach().flatten(1)
        scale = (weight.abs().amax(1) / 127).double()
        codes = (weight / scale[:, None].float()).round().clamp(-127, 127)
        stored = constants[tuple(scale.tolist())]
        assert stored.dtype == torch.int8
        assert (stored.flatten(1) - codes).abs().max() <= 1
        product = scale * expected[source][0]
        stored = constants[tuple(product.tolist())]
        assert stored.dtype == torch.int32
        assert (stored - (layer.bias.detach() / product).round()).abs().max() <= 1


def reload(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    return torch.jit.load(io.BytesIO(to_bytes(module)))


def test_files_between_the_stages() -> None:
    """A prepared model may be saved before and after calibration; the result is the same."""
    torch.manual_seed(0)
    model = compile_model(Residual(), "script")
    results = []
    for before, after in itertools.product((False, True), repeat=2):
        prepared = jit_passes.prepare(model, quantizer=ThirdParty(), target="reference")
        prepared = reload(prepared) if before else prepared
        jit_passes.calibrate(prepared, images())
        found = jit_passes.convert(reload(prepared) if after else prepared)
        results.append(([row[1:] for row in parameters(found)], found(images()[0])))
    for rows, output in results:
        assert rows == results[0][0]
        assert torch.equal(output, results[0][1])


MODULE = """
import sys, torch, jit_passes
from jit_passes.quantizer import {imports}

{mark}
def third(sources):
    return float(sources[0].scale) / 3, 0

class Q(Quantizer):
    def annotate(self, graph):
        relu, exp = [node for node in graph.nodes if node.name in ("relu", "exp")]
        annotations = Annotations()
        fixed = FixedQParamsQuantizationSpec(0.75, 0)
        annotations[relu] = QuantizationAnnotation(output_qspec=fixed)
        derived = DerivedQuantizationSpec((relu,), third, "int16")
        annotations[exp] = QuantizationAnnotation(output_qspec=derived)
        return annotations
"""
IMPORTS = (
    "Annotations, DerivedQuantizationSpec, FixedQParamsQuantizationSpec, "
    "QuantizationAnnotation, Quantizer, derivation"
)
CONVERT = """
import torch, jit_passes, warnings
{first}
prepared = torch.jit.load({file!r})
warnings.simplefilter("ignore")
try:
    print(jit_passes.convert(prepared).graph)
except jit_passes.JitPassesError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("marked", [True, False])
def test_derivations_in_another_process(marked: bool, tmp_path: Path) -> None:
    """There the function's module is imported and marks it, or the error says what to do."""
    mark = "@derivation" if marked else ""
    name = f"own_rules_{marked}".lower()
    (tmp_path / f"{name}.py").write_text(MODULE.format(imports=IMPORTS, mark=mark))
    file = str(tmp_path / "calibrated.pt")
    sys.path.insert(0, str(tmp_path))
    try:
        own_rules = importlib.import_module(name)
        script = torch.jit.script(Chain().eval())
        prepared = jit_passes.prepare(script, quantizer=own_rules.Q(), target="reference")
        torch.jit.save(jit_passes.calibrate(prepared, [torch.randn(5)]), file)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop(name, None)
    for first in ("", f"import {name}"):
        script = textwrap.dedent(CONVERT.format(first=first, file=file))
        run = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{Path.cwd()}:{tmp_path}", "PATH": ""},
            check=False,
        )
        assert run.returncode == 0, run.stderr
        if first and marked:
            assert "value=0.25" in run.stdout and "refused" not in run.stdout
        else:
            assert "refused: the model derives parameters with the function" in run.stdout
            assert f"'{name}.third'" in run.stdout
            assert "@jit_passes.quantizer.derivation" in run.stdout


def test_transform_for_annotation() -> None:
    """A quantizer may change the graph first; the model that was given stays as it is."""

    class Clipped(ThirdParty):
        def transform_for_annotation(self, graph: GraphEditor) -> None:
            for node in graph.nodes:
                if node.kind == "aten::mean":
                    clip = graph.insert("aten::relu", [node.output], before=None, like=node)
                    graph.remove(clip)
                    user, _ = node.output.uses[0]
                    relu = graph.insert("aten::neg", [node.output], before=user)
                    graph.replace(node.output, relu.output)

        def annotate(self, graph: GraphView) -> Annotations:
            self.kinds = [node.kind for node in graph.nodes]
            return super().annotate(graph)

    model = compile_model(Residual(), "script")
    before = to_bytes(model)
    quantizer = Clipped()
    prepared = jit_passes.prepare(model, quantizer=quantizer, target="reference")
    assert "aten::neg" in quantizer.kinds
    assert to_bytes(model) == before
    x = images()[0]
    eager = Residual()
    eager.load_state_dict(model.state_dict())
    flat = -eager.steps(x)["flat"]
    assert torch.allclose(prepared(x), eager.fc(flat).sigmoid(), atol=1e-6)
    names = [name for name in jit_passes.passes if name.startswith("transform_for")]
    assert names == []


def test_validate_may_refuse() -> None:
    """What validate raises comes out as it is, and the model is as it was."""

    class Refusing(ThirdParty):
        def validate(self, annotations: Annotations) -> None:
            raise JitPassesError(f"cannot do {len(annotations)} of these")

    model = compile_model(Residual(), "script")
    before = to_bytes(model)
    for quantizer in (Refusing(), ComposableQuantizer(ThirdParty(), Refusing())):
        with pytest.raises(JitPassesError, match="cannot do 11 of these"):
            jit_passes.prepare(model, quantizer=quantizer, target="reference")
    assert to_bytes(model) == before


def test_annotate_returns_nothing() -> None:
    """A forgotten return is told, in a composed quantizer too."""

    class Forgets(Quantizer):
        def annotate(self, graph: GraphView) -> Annotations:
            return None  # type: ignore[return-value]

    model = compile_model(Residual(), "script")
    for quantizer in (Forgets(), ComposableQuantizer(ThirdParty(), Forgets())):
        with pytest.raises(JitPassesError, match=r"Forgets\.annotate returned NoneType"):
            jit_passes.prepare(model, quantizer=quantizer, target="reference")


# ---------------------------------------------------------------------------- several quantizers


class Sigmoids(Quantizer):
    """Annotates sigmoids alone."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind == "aten::sigmoid":
                fixed = FixedQParamsQuantizationSpec(1 / 128, 0)
                annotations[node] = QuantizationAnnotation({}, fixed)
        return annotations


def test_composed() -> None:
    """The later quantizer's word holds, the former ones' elsewhere; what it overwrote is told."""
    model = compile_model(Residual(), "script")
    composed = ComposableQuantizer(ThirdParty(), Sigmoids())
    with pytest.warns(jit_passes.JitPassesWarning, match="'sigmoid': 2. Sigmoids over 1. Third"):
        prepared = jit_passes.prepare(model, quantizer=composed, target="reference")
    assert composed.overwritten == [("sigmoid", "1. ThirdParty", "2. Sigmoids")]
    rows = parameters(jit_passes.convert(jit_passes.calibrate(prepared, images())))
    assert rows[-1][1] == 1 / 128
    assert rows[0][0] == "x"
    same = ComposableQuantizer(Sigmoids(), Sigmoids())
    jit_passes.prepare(model, quantizer=same, target="reference")  # equal is no overwriting
    assert same.overwritten == []


def test_composed_forgets_what_was_overwritten() -> None:
    """Operands that an earlier quantizer shared are not looked for when a later one took over."""

    def shares(nodes: Nodes, annotations: Annotations) -> None:
        first, second, add = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["add"]
        annotations[add] = annotation({first: UINT8, second: UINT8}, UINT8)
        annotations.share((first, add), (second, add), add)
        annotations.refused = {"add": "because"}

    def only_result(nodes: Nodes, annotations: Annotations) -> None:
        annotations[nodes["add"]] = annotation(result=INT8)

    graph = nodes_of(Net()).graph
    composed = ComposableQuantizer(Given(shares), Given(only_result))
    with pytest.warns(jit_passes.JitPassesWarning):
        found = composed.annotate(graph)
    assert [place.spec for place in resolve(graph, found)] == [INT8]
    assert not found.refused and not found.shared


def test_composed_for_different_backends() -> None:
    """Quantizers of different backends, or none at all, are refused; a target of one is taken."""
    one, other = ThirdParty(), ThirdParty()
    one.target, other.target = "reference", "stock"
    with pytest.raises(JitPassesError, match="different backends: 'reference', 'stock'"):
        ComposableQuantizer(one, other)
    with pytest.raises(JitPassesError, match="no quantizers were given"):
        ComposableQuantizer()
    assert ComposableQuantizer(Sigmoids(), one).target == "reference"
    assert isinstance(jit_passes.targets.Reference().quantizer(), BackendQuantizer)


def test_printing_annotations(nodes: Nodes) -> None:
    """Annotations print as a table, one line for each place."""
    first = nodes["c1:conv2d"]
    annotations = Annotations()
    weight, bias = first.inputs[1:3]
    annotations[first] = annotation(
        {nodes.x: UINT8, weight: WEIGHT, bias: derived((nodes.x, first), (weight, first))}, FIXED
    )
    annotations[nodes["add"]] = annotation(result=SharedQuantizationSpec(first))
    annotations[nodes["cat"]] = annotation()
    assert str(annotations).splitlines() == [
        "c1:conv2d (aten::conv2d)  x          uint8 [0, 255]  per_tensor_affine  MinMax",
        "                          c1.weight  int8 [-127, 127]  "
        "per_channel_symmetric axis 0  MinMax",
        "                          c1.bias    int16  derived from x -> c1:conv2d, "
        "c1.weight -> c1:conv2d",
        "                          result     uint8  fixed scale 0.00390625 zero_point 0",
        "add (aten::add)           result     as c1:conv2d",
        "cat (aten::cat)                      its operands and result come quantized",
    ]
