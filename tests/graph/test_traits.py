"""The table of what is known of operators, against the operators themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView, JitPassesError, NodeView
from jit_passes.graph.traits import TRAITS, arguments_of, kinds
from jit_passes.graph.view import are_constant
from jit_passes.quantizers.signs import can_be_negative
from jit_passes.stages.normalize import normalize
from tests.operators import Apply

POOLS: dict[str, tuple[int, tuple[Any, ...]]] = {
    **{f"adaptive_{how}_pool{dims}d": (dims, (2,)) for how in ("avg", "max") for dims in (1, 2, 3)},
    **{f"{how}_pool{dims}d": (dims, (2,)) for how in ("avg", "max") for dims in (1, 2, 3)},
    **{f"max_pool{dims}d_with_indices": (dims, (2,)) for dims in (2, 3)},
}
ALIASES = {"aten::max_pool1d_with_indices"}  # max_pool1d with another result


def of_kind(kind: str) -> Any:
    """PyTorch's function of that name, whichever module has it."""
    name = kind.removeprefix("aten::")
    return getattr(torch.ops.aten, name)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def nodes_of(function: Callable[..., Tensor], *inputs: Tensor) -> dict[str, NodeView]:
    """The operators of a traced function, by kind."""
    graph = GraphView.of(torch.jit.trace(Apply(function).eval(), inputs, check_trace=False))
    return {node.kind: node for node in graph.nodes}


def scripted(function: Callable[..., Tensor]) -> GraphView:
    """A scripted function's graph."""
    return GraphView.of_graph(torch.jit.script(function).graph)


# ---------------------------------------------------------------------------- the table


def test_all_are_operators() -> None:
    """Every name is one of PyTorch's, and bounds and signs name operands that it has."""
    for kind, traits in TRAITS.items():
        schemas = torch._C._jit_get_schemas_for_operator(kind)
        assert schemas or kind.startswith(("mkldnn::", "prim::")), kind
        ends = [end for end in traits.clip or () if isinstance(end, str)]
        for name in (*ends, *(traits.nonnegative_if or ())):
            assert any(name in [a.name for a in schema.arguments] for schema in schemas), kind


def test_dropouts_are_all_that_pytorch_has() -> None:
    """Operators with the operands p and train are all dropouts: in eval mode they do nothing."""
    found = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if [a.name for a in schema.arguments[1:]] == ["p", "train"]
        and schema.name.startswith("aten::")
        and "native" not in schema.name
    }
    assert found == set(kinds(lambda traits: traits.dropout))
    x = noise(2, 3, 4, 4)
    for kind in found:
        assert torch.equal(of_kind(kind)(x.clone(), 0.5, False), x)


def test_weighted() -> None:
    """The axis of output channels, and the number of spatial axes, are where the table says."""
    for kind in kinds(lambda traits: traits.weighted):
        weighted = TRAITS[kind].weighted
        assert weighted is not None
        channels = (5, 3) if not weighted.transposed else (3, 5)
        window = (2,) * weighted.spatial_dims
        x, weight = noise(1, 3, *(4,) * weighted.spatial_dims), noise(*channels, *window)
        y = of_kind(kind)(x, weight)
        assert y.shape[1] == 5 and y.dim() == weighted.spatial_dims + 2


def test_clips() -> None:
    """Each clip is `torch.clamp` to the ends that the table says."""
    x = 5 * noise(100)
    calls: dict[str, tuple[tuple[float, ...], tuple[float | None, float | None]]] = {
        "relu": ((), (0, None)),
        "relu6": ((), (0, 6)),
        "hardtanh": ((-2.0, 3.0), (-2, 3)),
        "clamp": ((-2.0, 3.0), (-2, 3)),
        "clamp_min": ((-2.0,), (-2, None)),
        "clamp_max": ((3.0,), (None, 3)),
    }
    assert {f"aten::{name}" for name in calls} == set(kinds(lambda traits: traits.clip))
    for name, (ends, expected) in calls.items():
        node = nodes_of(lambda x, n=name, e=ends: of_kind(n)(x, *e), x)[f"aten::{name}"]
        assert node.clip == expected
        assert torch.equal(of_kind(name)(x, *ends), x.clamp(*expected))


def test_computed_ends_of_clips_are_not_known() -> None:
    def computed(x: Tensor, low: float) -> Tensor:
        return torch.clamp(x, low, 1.0)

    (node,) = (n for n in scripted(computed).nodes if n.kind == "aten::clamp")
    assert node.clip is None


WITHIN = [kind for kind in kinds(lambda traits: traits.within) if kind not in ALIASES]


@pytest.mark.parametrize("kind", WITHIN)
def test_within(kind: str) -> None:
    """Results lie between the ends of the operand's range."""
    name = kind.removeprefix("aten::")
    if name.startswith("upsample"):
        dims = int(name[-2])
        x = noise(1, 2, *(5,) * dims)
        corners = () if "nearest" in name else (False,)
        y = of_kind(kind)(x, [9] * dims, *corners)
    elif name == "mean":
        x = noise(7, 5)
        y = of_kind(kind)(x)
    else:
        dims, arguments = POOLS[name]
        x = noise(1, 2, *(8,) * dims)
        y = of_kind(kind)(x, [*arguments] * dims)
        y = y[0] if isinstance(y, tuple) else y
    assert x.min() <= y.min() and y.max() <= x.max()


def test_bicubic_interpolation_overshoots() -> None:
    """Its results leave the range of its operand, and can be negative."""
    x = torch.zeros(1, 1, 8, 8)
    x[..., 4, 4] = 1
    assert F.interpolate(x, scale_factor=2.0, mode="bicubic").min() < 0
    assert not TRAITS["aten::upsample_bicubic2d"].within


def test_signs() -> None:
    """Operators that are never negative, alone or if their operands are not."""
    x = 3 * noise(100)
    calls: dict[str, tuple[Any, ...]] = {"softmax": (0,), "_safe_softmax": (0,)}
    for kind in kinds(lambda traits: traits.nonnegative_if == ()):
        name = kind.removeprefix("aten::")
        result = of_kind(name)(x.abs() if name == "sqrt" else x, *calls.get(name, ()))
        assert result.min() >= 0, name
    for kind in kinds(lambda traits: traits.nonnegative_if):
        name, two = kind.removeprefix("aten::"), (x.abs(), x.flip(0).abs())
        result = of_kind(name)(two) if name in ("cat", "stack") else of_kind(name)(*two)
        assert result.min() >= 0, name


def test_dtypes() -> None:
    """Operators give the dtypes of the table, whatever the operands hold."""
    x = noise(10)
    for kind in kinds(lambda traits: traits.gives is not None):
        of_one = len(torch._C._jit_get_schemas_for_operator(kind)[0].arguments) < 2
        single = of_one or kind in ("aten::argmax", "aten::argmin", "aten::argsort")
        operands = (x.abs().long(),) if kind == "aten::bincount" else (x,) if single else (x, x)
        assert of_kind(kind)(*operands).dtype == TRAITS[kind].gives, kind


NEGATIVE: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "bicubic": (True, lambda x: F.interpolate(x.relu(), scale_factor=2.0, mode="bicubic")),
    "bilinear": (False, lambda x: F.interpolate(x.relu(), scale_factor=2.0, mode="bilinear")),
    "clip below 0": (True, lambda x: x.relu().clamp(-3, -1)),
    "empty clip below 0": (True, lambda x: x.clamp(0, -1)),
    "clip of a relu": (False, lambda x: x.relu().clamp(-3, 1)),
    "clip from above": (False, lambda x: torch.clamp_max(x.relu(), 1.0)),
    "negative alpha": (True, lambda x: torch.add(x.relu(), x.abs(), alpha=-1)),
    "sum": (False, lambda x: torch.add(x.relu(), x.abs(), alpha=2)),
    "cat": (False, lambda x: torch.cat([x.relu(), x.exp()], -1)),
    "cat with x": (True, lambda x: torch.cat([x.relu(), x], -1)),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_what_can_be_negative(case: str) -> None:
    """Where there are negative numbers, the graph tells; where the graph tells not, there are."""
    expected, function = NEGATIVE[case]
    x = torch.zeros(1, 2, 8, 8)
    x[..., 4, 4] = 1
    x[..., 2, 2] = -1
    graph = GraphView.of(torch.jit.trace(Apply(function).eval(), x, check_trace=False))
    assert can_be_negative(graph.outputs[0], {}) == expected
    assert bool(function(x).min() < 0) == expected


class Dropped(nn.Module):
    """A dropout between quantized operators."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.dropout(self.a(x)))


@pytest.mark.parametrize("dropout", [nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Dropout])
def test_every_dropout_passes_codes_on(dropout: type[nn.Module]) -> None:
    """In use they do nothing, so training quantizes the value in between once."""
    model = torch.jit.script(Dropped(dropout()))
    trained = jit_passes.prepare_qat(model, target="reference")
    places = [n.kind() for n in trained.graph.nodes() if n.kind() == "jit_passes::train_lsq"]
    assert len(places) == 5  # the input, two weights, what is in between, the result


# ---------------------------------------------------------------------------- operands by name


class Many(nn.Module):
    """Overloads with the same name, defaults, lists."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.up = nn.ConvTranspose2d(4, 4, 2, groups=2)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor, n: int) -> Tensor:
        y = torch.cat([self.norm(self.same(x)), x + 1, torch.add(x, x, alpha=n)], 1)
        return self.up(y.mean([2], True)[:, :4].sum() + x)


def test_operands_by_name() -> None:
    """The name means what the node's own schema, read by PyTorch, calls so."""
    module = normalize(torch.jit.script(Many().eval())._c).module
    view = GraphView.of(module)
    nodes = {node.debugName(): owner for owner in all_nodes(module) for node in owner.outputs()}
    assert {n.overload for n in view.nodes if n.kind == "aten::add"} == {"Tensor", "Scalar"}
    seen = 0
    for node in view.nodes:
        if not node.kind.startswith("aten::"):
            continue
        owner = next(o for o in nodes.values() if same_operator(o, node))
        for position, argument in enumerate(torch._C.parse_schema(owner.schema()).arguments):
            assert node.operand(argument.name) is node.inputs[position]
            assert node.position(argument.name) == position
            seen += 1
    assert seen > 40


def all_nodes(module: Any) -> list[Any]:
    return list(module._get_method("forward").graph.nodes())


def same_operator(owner: Any, node: NodeView) -> bool:
    ids = [int(value.unique()) for value in owner.outputs()]
    return owner.kind() == node.kind and ids == [value.id for value in node.outputs]


def test_a_wrong_name() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.clamp([x][0], 0, 1)

    nodes = {node.kind: node for node in scripted(function).nodes}
    with pytest.raises(JitPassesError, match=r"has no operand 'low': it has self, min, max"):
        nodes["aten::clamp"].operand("low")
    with pytest.raises(JitPassesError, match=r"has no operand 'self': its operands have no names"):
        nodes["prim::ListConstruct"].operand("self")


def test_operands_behind_others() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(torch.clamp(x, -1, 1), y, alpha=2)

    nodes = {node.kind: node for node in scripted(function).nodes}
    clamp, add = nodes["aten::clamp"], nodes["aten::add"]
    assert [value.constant for value in clamp.other_operands] == [-1, 1]
    assert [value.constant for value in clamp.operands_behind("min")] == [1]
    assert clamp.operands_behind("max") == []
    assert [value.name for value in add.other_operands][:1] == ["y"]
    assert [value.constant for value in add.operands_behind("other")] == [2]
    assert are_constant(clamp.other_operands) and not are_constant(add.other_operands)
    with pytest.raises(JitPassesError, match=r"has no operand 'low': it has self, min, max"):
        clamp.operands_behind("low")


def test_an_operator_whose_library_is_loaded_later() -> None:
    kind = "traits_test::thrice"
    assert arguments_of(kind, "") == {}
    with torch.library._scoped_library("traits_test", "DEF") as library:
        library.define("thrice(Tensor x, int by) -> Tensor")
        assert arguments_of(kind, "") == {"x": 0, "by": 1}


def test_inserted_nodes_have_names() -> None:
    found = []

    @jit_passes.register_pass("insert_clamp_by_name", summary="Insert one.", replace=True)
    def insert(graph: jit_passes.GraphEditor) -> None:
        made = graph.insert("aten::clamp", [graph.inputs[0], 0.0, 1.0], before=graph.nodes[0])
        found.append((made.operand("max").constant, made.clip, made.overload))

    jit_passes.run_pass("insert_clamp_by_name", torch.jit.trace(Apply(torch.relu), noise(3)))
    jit_passes.passes.remove("insert_clamp_by_name")
    assert found == [(1.0, (0.0, 1.0), "")]


def test_elements_of_lists_are_operands() -> None:
    def function(x: Tensor, y: Tensor, many: list[Tensor]) -> Tensor:
        return torch.cat([x, y, x], 1) + torch.cat(many)

    graph = scripted(function)
    made, taken = (node for node in graph.nodes if node.kind == "aten::cat")
    maker = made.inputs[0].producer
    x, y, many = graph.inputs
    assert made.operands[:3] == [(0, 0, x), (0, 1, y), (0, 2, x)]
    assert [(place, k) for place, k, _ in made.operands[3:]] == [(1, None)]
    assert [made.use(*operand[:2]) for operand in made.operands] == [
        (maker, 0), (maker, 1), (maker, 2), (made, 1),
    ]  # fmt: skip
    assert taken.operands[0] == (0, None, many) and taken.use(0, None) == (taken, 0)
