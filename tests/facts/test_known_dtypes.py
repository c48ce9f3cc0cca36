"""Known dtypes of results are the dtypes that PyTorch gives, for operands of all dtypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jit_passes import _C, GraphView

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of traces and odd dtypes

DTYPES = (
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
)  # fmt: skip

PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "remainder": torch.remainder,
    "atan2": torch.atan2,
    "where": lambda a, b: torch.where(a == a, a, b),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "lt": torch.lt,
    "eq": torch.eq,
    "matmul": torch.matmul,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "type_as": lambda a, b: a.type_as(b),
    "to": lambda a, b: a.to(b),
    "expand_as": lambda a, b: a.expand_as(b),
    "layer_norm": lambda a, b: F.layer_norm(a, a.shape[-1:], b[0], b[0]),
    "rms_norm": lambda a, b: F.rms_norm(a, a.shape[-1:], b[0]),
    "batch_norm": lambda a, b: F.batch_norm(a, b[0], b[0]),
    "linear": F.linear,
    "embedding": lambda a, b: F.embedding(torch.zeros(3, dtype=torch.long), a),
    "attention": lambda a, b: F.scaled_dot_product_attention(a, a, b),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
}
ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "floor": torch.floor,
    "abs": torch.abs,
    "scaled": lambda a: a * 1.5,
    "counted": lambda a: a + 1,
    "divided": lambda a: a / 2,
    "softmax": lambda a: torch.softmax(a, -1),
    "softmax of double": lambda a: torch.softmax(a, -1, dtype=torch.float64),
    "sum": torch.sum,
    "sum of integers": lambda a: torch.sum(a, dtype=torch.int64),
    "mean": torch.mean,
    "argmax": torch.argmax,
    "isnan": torch.isnan,
    "glu": lambda a: F.glu(a, -1),
    "max_pool": lambda a: F.max_pool1d(a, 2),
    "avg_pool": lambda a: F.avg_pool1d(a, 2),
    "indices": lambda a: F.max_pool1d(a, 2, return_indices=True)[1],
    "pad": lambda a: F.pad(a, (1, 1), value=0.5),
    "masked_fill": lambda a: a.masked_fill(a == 0, 1.0),
    "part": lambda a: a.chunk(2, -1)[1],
    "moved": lambda a: a.t().flatten().view(2, 8)[:, 1:].unsqueeze(0).squeeze(0),
    "zeros": lambda a: torch.zeros(2, dtype=torch.float16),
    "dropout": lambda a: F.dropout(a, 0.5, False),
}
NUMBERS = {"add", "mul", "div", "pow", "maximum", "remainder", "atan2", "where", "clamp"}


def check(functions: dict[str, Callable[[Tensor], Tensor]]) -> dict[str, torch.dtype | None]:
    """Compare known dtypes with the results; return the known ones. Errors do not count."""
    x = torch.rand(4, 4) + 1
    names = []
    for name, function in functions.items():
        try:
            function(x)
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            continue
        names.append(name)
    traced = torch.jit.trace(
        lambda x: tuple(functions[name](x) for name in names), x, check_trace=False
    )
    graph = GraphView.of_graph(traced.graph)
    made = graph.outputs[0].producer
    assert made is not None
    known = {name: value.facts.dtype for name, value in zip(names, made.inputs, strict=True)}
    given = {name: result.dtype for name, result in zip(names, traced(x), strict=True)}
    assert {n: d for n, d in known.items() if d is not None} == {
        n: given[n] for n, d in known.items() if d is not None
    }
    return known


def forms(name: str, one: torch.dtype, other: torch.dtype) -> dict[str, Callable[[Tensor], Tensor]]:
    """An operator on two tensors with axes, and with one that has none: computed, or a number."""
    function, number = PAIRS[name], torch.tensor(1.5).to(other)
    found: dict[str, Callable[[Tensor], Tensor]] = {
        name: lambda x: function(x.to(one), x.to(other)),
        f"{name}, element": lambda x: function(x.to(one), x.to(other)[0, 0]),
    }
    fails = other == torch.bool or (one.itemsize == 2 and other.is_complex)  # in PyTorch
    if name in NUMBERS and not fails:
        found[f"{name}, number"] = lambda x: function(x.to(one), number)
        found[f"number, {name}"] = lambda x: function(number, x.to(one))
        found[f"{name}, element, number"] = lambda x: function(x.to(one)[0, 0], number)
    return found


@pytest.mark.parametrize("one", DTYPES, ids=str)
def test_two_operands(one: torch.dtype) -> None:
    for other in DTYPES:
        functions: dict[str, Callable[[Tensor], Tensor]] = {}
        for name in PAIRS:
            functions |= forms(name, one, other)
        known = check(functions)
        if one == other and one.is_floating_point:
            assert [name for name, dtype in known.items() if dtype is None] == []


def on(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    known = check({name: on(function, dtype) for name, function in ALONE.items()})
    if dtype.is_floating_point:
        assert [name for name, found in known.items() if found is None] == ["indices"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_tells_its_input(dtype: torch.dtype) -> None:
    """A layer tells the dtype of its input, also in front of operators that keep a dtype."""
    net = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Softmax(-1), nn.Linear(8, 4)).eval().to(dtype)
    graph = GraphView.of(torch.jit.freeze(torch.jit.script(net)))
    assert [value.facts.dtype for value in graph.inputs if value.is_tensor] == [dtype]
    kinds = ("aten::relu", "aten::flatten", "aten::softmax", "aten::linear")
    found = [node.output.facts.dtype for node in graph.nodes if node.kind in kinds]
    assert found == [dtype] * 4


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    """All results of a recurrent layer have the dtype of its input."""
    layer = getattr(nn, kind)(4, 3).eval().requires_grad_(False)
    traced = torch.jit.trace(lambda x: layer(x.to(torch.float32)), torch.rand(2, 1, 4))
    graph = GraphView.of_graph(traced.graph)
    (node,) = [node for node in graph.nodes if node.traits.recurrent]
    assert [value.facts.dtype for value in node.outputs] == [torch.float32] * len(node.outputs)


class Branches(nn.Module):
    """Branches whose sides have one dtype, or are floats of two."""

    def forward(self, x: Tensor, chooses: bool) -> tuple[Tensor, Tensor]:
        if chooses:
            a, b = x.to(torch.float16), x.to(torch.float16)
        else:
            a, b = (x + 1).to(torch.float16), x.to(torch.float64)
        return a.relu(), b.relu()


def test_branches() -> None:
    """A result has a dtype if all sides have this one, and is floating if all are."""
    module = torch.jit.script(Branches().eval())
    told = _C.float_operators(module._c, "forward")
    found = [node for node in GraphView.of(module).nodes if node.kind == "aten::relu"]
    assert [node.output.facts.dtype for node in found] == [torch.float16, None]
    assert [told[node.index] for node in found] == [True, True]
