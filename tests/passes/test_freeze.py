"""Freezing: what a method does not change becomes constants, what it changes stays state.

The table of models is run scripted, loaded from a file, and traced where a trace can record it. A
frozen module does what the eager model does, call after call, to the bit: freezing computes
nothing.
"""

import gc
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.compare import assert_same, clone
from tests.models.freezing.attributes import ConvNormRelu, Nested, NestedTensor, Never, TwoNames
from tests.models.freezing.case import Case, images, vectors
from tests.models.freezing.containers import Holder
from tests.models.freezing.layers import Recurrent, Shapes, WrittenParameter
from tests.passes.freezing import (
    assert_freezes,
    assert_same_state,
    build,
    everywhere,
    freeze,
    graphs,
    kinds,
    reload,
    run,
    state,
)

# Tests of all models.


@everywhere
def test_runs_as_before(case: Case, frontend: str) -> None:
    """The results and the state of consecutive calls are those of the eager model."""
    model, module = build(case, frontend)
    frozen = freeze(module)
    if frontend == "load":  # nobody else has its classes
        del module
        gc.collect()
    expected = run(model, case.calls())
    assert len({str(outcome) for outcome in expected}) > 1
    assert_same(expected, run(frozen, case.calls()), "frozen")
    assert_same_state(model, state(frozen, model), "state")


@everywhere
def test_caller_keeps_its_module(case: Case, frontend: str) -> None:
    """Freezing leaves it as it was, and so does running what was frozen; then it runs as ever."""
    model, module = build(case, frontend)
    attributes, text = state(module, model), graphs(module)
    tensors = {name: (value, clone(value)) for name, value in module.state_dict().items()}
    frozen = freeze(module)
    assert_same(attributes, state(module, model), "freezing")
    run(frozen, case.calls())
    assert_same(attributes, state(module, model), "running")
    assert graphs(module) == text
    assert all(torch.equal(value, before) for value, before in tensors.values())
    assert_same(run(model, case.calls()), run(module, case.calls()), "the caller's")


@everywhere
def test_what_stays(case: Case, frontend: str) -> None:
    """Attributes that the method changes, at their paths, and one mode; their kinds stay."""
    model, module = build(case, frontend)
    frozen = freeze(module)
    assert sorted(state(frozen, model)) == case.paths(frontend)
    if "prim::fork" not in kinds(frozen):  # which PyTorch freezes
        assert frozen._c.hasattr("training") and not frozen.training
    paths = {
        name: {path for path, _ in getattr(module, name)(remove_duplicate=False)}
        for name in ("named_buffers", "named_parameters")
    }
    for name, known in paths.items():
        found = {path for path, _ in getattr(frozen, name)(remove_duplicate=False)}
        assert found == known & set(case.paths(frontend)), name
    assert frozen._c._method_names() == ["forward"]
    frozen.eval()
    assert_same(run(model, case.calls()), run(frozen, case.calls()), "after eval()")


@everywhere
def test_survives_a_file(case: Case, frontend: str) -> None:
    """Saved fresh or after two calls: equal to the bit in the calls that follow."""
    model, module = build(case, frontend)
    frozen, calls = freeze(module), case.calls()
    loaded = reload(frozen)
    expected = run(model, calls)
    assert_same(expected, run(loaded, calls), "saved fresh")
    run(frozen, calls[:2])
    assert_same(expected[2:], run(reload(frozen), calls[2:]), "saved later")
    assert_same_state(model, state(loaded, model), "state")


@everywhere
def test_freezing_again(case: Case, frontend: str) -> None:
    """Of a frozen module that has run: what stays is the same, with its values of now."""
    model, module = build(case, frontend)
    once, calls = freeze(module), case.calls()
    expected = run(model, calls)
    run(once, calls[:2])
    twice = freeze(once)
    assert sorted(state(twice, model)) == case.paths(frontend)
    assert_same(expected[2:], run(once, calls[2:]), "frozen once")
    assert_same(expected[2:], run(twice, calls[2:]), "frozen twice")


@everywhere
def test_constants_need_no_gradient(case: Case, frontend: str) -> None:
    """Constants need no gradient, also where they were parameters."""
    frozen = freeze(build(case, frontend)[1])
    for node in frozen.graph.findAllNodes("prim::Constant"):
        value = node.output().toIValue()
        assert not isinstance(value, Tensor) or not value.requires_grad


def test_nothing_is_left() -> None:
    """Of a model without state: no parameter, no module, and no read of an attribute."""
    frozen = freeze(build(Case(ConvNormRelu), "script")[1])
    assert not list(frozen.named_parameters()) and not list(frozen.named_buffers())
    assert not list(frozen.named_children()) and not frozen.state_dict()
    assert not kinds(frozen) & {"prim::GetAttr", "prim::SetAttr"}


def test_unused_modules_vanish() -> None:
    """And their parameters are not in the file."""
    _, module = build(Case(Never), "script")
    file, frozen = io.BytesIO(), freeze(module)
    torch.jit.save(frozen, file)
    assert len(file.getvalue()) < 100 * 100 * 4 // 2
    assert not any(hasattr(frozen, name) for name in ("used", "unused", "counter", "switch"))


def test_modules_without_state_vanish() -> None:
    """Modules on the way to state stay, those beside it do not."""
    frozen = freeze(build(Case(Nested), "script")[1])
    assert [name for name, _ in frozen.named_modules()] == ["", "middle", "middle.inner"]


def test_names_of_constants() -> None:
    """A constant is named after the first path that leads to it, and is there once."""
    frozen = freeze(build(Case(Nested), "script")[1])
    constants = [node.output() for node in frozen.graph.findAllNodes("prim::Constant")]
    found = [value.debugName() for value in constants if isinstance(value.toIValue(), Tensor)]
    assert sorted(found) == [
        "last.bias",
        "last.weight",
        "middle.inner.scale",
        "middle.linear.bias",
        "middle.linear.weight",
    ]


def test_two_names_stay_one() -> None:
    """A module that has two names has them in the frozen one, and after a file."""
    frozen = freeze(build(Case(TwoNames), "script")[1])
    loaded = reload(frozen)
    for module in (frozen, loaded):
        module(torch.ones(1, 4))
        assert module.one.calls == module.two.calls == 4
        assert module.other.calls == 2
        assert module.one.total.data_ptr() == module.two.total.data_ptr()


def test_frozen_modules_are_independent() -> None:
    """Two of one module each have a state of their own, which starts where the caller's is."""
    model, module = build(Case(Nested), "script")
    x = vectors()[0][0]
    module(x)
    model(x)
    first, second = freeze(module), freeze(module)
    expected = run(model, vectors())
    assert_same(expected, run(first, vectors()), "first")
    assert_same(expected, run(second, vectors()), "second")


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_outlives_the_original(frontend: str) -> None:
    """Loaded, frozen, and run when the module that it was made from is gone."""
    model, module = build(Case(NestedTensor), frontend)
    loaded, total = reload(module), module.middle.inner.total.clone()
    del module
    frozen = freeze(loaded)
    del loaded
    gc.collect()
    file = io.BytesIO()
    torch.jit.save(frozen, file)
    assert_same(run(model, vectors()), run(frozen, vectors()), "frozen")
    del frozen
    gc.collect()
    file.seek(0)
    assert torch.equal(torch.jit.load(file).middle.inner.total, total)


def test_trace_forgets_shapes() -> None:
    """Values have no shape in the graph, and batches of any size run."""
    model, module = build(Case(Shapes), "trace")
    assert "Float(2, 6" in str(module.inlined_graph)
    frozen = freeze(module)
    values = [output for node in frozen.graph.nodes() for output in node.outputs()]
    values += list(frozen.graph.inputs())
    for value in values:
        if value.node().kind() != "prim::Constant":
            assert "Float(" not in str(value.type()), value
    for batch in (1, 2, 7):
        calls = [(torch.randn(batch, 4),)] * 3
        assert_same(run(model, calls), run(frozen, calls), f"batch of {batch}")


def test_long_chain() -> None:
    """The operands of 300 convolutions are constants, in order."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(300):
        layers += [nn.Conv2d(2, 2, 1), nn.ReLU()]
    module = torch.jit.script(nn.Sequential(*layers).eval())
    frozen = freeze(module)
    convolutions = frozen.graph.findAllNodes("aten::conv2d")
    assert len(convolutions) == 300
    for node, layer in zip(convolutions, layers[::2], strict=True):
        _, weight, bias = list(node.inputs())[:3]
        assert weight.node().kind() == bias.node().kind() == "prim::Constant"
        assert torch.equal(weight.toIValue(), layer.weight)
        assert torch.equal(bias.toIValue(), layer.bias)
    assert not frozen.state_dict() and not kinds(frozen) & {"prim::GetAttr", "prim::CallMethod"}


# Sharing.


class SharedView(nn.Module):
    """One tensor is a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a[1:3])

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        return self.b * x.mean()


def test_shared_view() -> None:
    """Writing to the one is writing to the other."""
    frozen = assert_freezes(SharedView)
    assert [name for name, _ in frozen.named_buffers()] == ["a", "b"]


class SharedWithHolder(nn.Module):
    """A buffer is also the tensor of an instance of a class, through which it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.holder = Holder(self.a, 0)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(2)
        return self.a + x


def test_shared_with_an_instance() -> None:
    """Writing to the one is writing to the other."""
    frozen = assert_freezes(SharedWithHolder)
    assert [name for name, _ in frozen.named_buffers()] == ["a"]


# Gradients.


@pytest.mark.parametrize(
    "make",
    [
        ConvNormRelu,
        WrittenParameter,
        Recurrent,
    ],
)
def test_gradients_stay_away(make: Callable[[], nn.Module]) -> None:
    """A gradient goes to the input, and not on to the caller's parameters."""
    _, module = build(Case(make), "script")
    frozen = freeze(module)
    assert all(parameter.is_leaf for parameter in frozen.parameters())
    calls = images() if make is ConvNormRelu else vectors()
    x = calls[0][0].requires_grad_()
    frozen(x).sum().backward()
    assert x.grad is not None and x.grad.any()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(p.requires_grad for p in module.parameters())
