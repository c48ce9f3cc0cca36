"""Shared parameters: by annotation, by operator, and by default none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.view import ValueView
from jit_passes.observers import Histogram, Percentile
from jit_passes.quantizer import Annotations, QuantizationSpec, SharedQuantizationSpec, resolve
from jit_passes.stages.prepare import plan_observations
from tests.annotating import (
    FIXED,
    INT8,
    UINT8,
    Chain,
    Given,
    Net,
    Nodes,
    annotation,
    converted,
    groups,
    nodes_of,
    parameters,
    places,
    qparams,
)
from tests.annotating import chain_nodes as chain_nodes
from tests.annotating import net_nodes as net_nodes


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
    """The first observer in the program finds the range; all else has to be equal."""
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
    """The tensors that cat joins are operands of cat; its list sees them quantized."""
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
