"""Passes on ScriptModules ahead of autograd: what the result has in common with the module."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    GraphEditor,
    JitPassesError,
    PassError,
    Pipeline,
    RewriteRule,
    diff_graphs,
    register_pass,
    run_pass,
)

TANH, WRONG = "test_relu_to_tanh", "test_wrong"


@pytest.fixture(autouse=True)
def _passes() -> Iterator[None]:
    """Passes: one turns relu into tanh, and one fails halfway."""

    @register_pass(TANH, summary="Turn relu into tanh.", replace=True)
    def relu_to_tanh(graph: GraphEditor) -> None:
        for node in graph.nodes:
            if node.kind == "aten::relu":
                tanh = graph.insert("aten::tanh", [node.inputs[0]], before=node)
                graph.replace(node.output, tanh.output)
                graph.remove(node)

    @register_pass(WRONG, summary="Fail.", replace=True)
    def fail(graph: GraphEditor) -> None:
        relu_to_tanh(graph)
        raise ValueError("on purpose")

    yield
    jit_passes.passes.remove(TANH)
    jit_passes.passes.remove(WRONG)


class Net(nn.Module):
    """Layers that behave differently in training, a buffer, an unused parameter, two methods."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.full((4,), 0.5))
        self.register_buffer("volatile", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.linear(x)))
        return self.tied(self.dropout(y)) + self.offset

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * self.volatile


def shape(*sizes: int) -> Tensor:
    """A seeded tensor."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def module() -> torch.jit.ScriptModule:
    """Scripted, in training mode."""
    torch.manual_seed(0)
    return torch.jit.script(Net())


def test_parameters_and_buffers(module: torch.jit.ScriptModule) -> None:
    """Are the same tensors, with the same names in the same order."""
    result = run_pass(TANH, module)
    for left, right in [
        (list(module.named_parameters()), list(result.named_parameters())),
        (list(module.named_buffers()), list(result.named_buffers())),
    ]:
        assert [name for name, _ in left] == [name for name, _ in right]
        assert all(a is b for (_, a), (_, b) in zip(left, right, strict=True))
    assert list(module.state_dict()) == list(result.state_dict())
    assert result.tied.weight is result.linear.weight
    changed = {name: torch.ones_like(value) for name, value in module.state_dict().items()}
    result.load_state_dict(changed)
    assert all(bool((value == 1).all()) for value in module.state_dict().values())
    module.load_state_dict(run_pass(TANH, module).state_dict())


def test_optimizers_built_before(module: torch.jit.ScriptModule) -> None:
    """Train the result."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    result = run_pass(TANH, module)
    before = result.linear.weight.detach().clone()
    result(shape(8, 4)).square().sum().backward()
    assert module.linear.weight.grad is result.linear.weight.grad is not None
    optimizer.step()
    assert not torch.equal(before, result.linear.weight)


def test_training_mode(module: torch.jit.ScriptModule) -> None:
    """train() and eval() switch dropout and batch norm of the result."""
    result = run_pass(TANH, module)
    x = shape(8, 4)
    assert result.training
    mean = result.norm.running_mean.clone()
    assert not torch.equal(result(x), result(x))
    assert not torch.equal(mean, result.norm.running_mean)
    result.eval()
    assert torch.equal(result(x), result(x))
    module.eval()
    with torch.no_grad():
        y = torch.tanh(module.norm(module.linear(x)))
        expected = nn.functional.linear(y, module.tied.weight) + 0.5
        torch.testing.assert_close(result(x), expected)
    result.train()
    assert not torch.equal(result(x), result(x))


def test_other_methods(module: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Stay, and work, in a file too."""
    result = run_pass(TANH, module)
    x = shape(3, 4)
    assert torch.equal(result.encode(x), module.encode(x))
    changed = run_pass(TANH, module, "encode")
    assert torch.equal(changed.encode(x), torch.tanh(module.linear(x)))
    torch.jit.save(changed, str(tmp_path / "changed.pt"))
    assert torch.equal(torch.jit.load(str(tmp_path / "changed.pt")).encode(x), changed.encode(x))
    with pytest.raises(JitPassesError, match="no method 'decode', only: encode, forward"):
        run_pass(TANH, module, "decode")


class Hooked(nn.Module):
    """A layer that may have hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def hook(self: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """Doubles the result."""
    return output * 2


def before(self: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """Adds one to the argument."""
    return inputs[0] + 1


def test_hooks() -> None:
    """The module's own are refused, those of submodules become part of the graph."""
    for name in ("register_forward_hook", "register_forward_pre_hook"):
        net = Hooked()
        getattr(net, name)(hook if name == "register_forward_hook" else before)
        with pytest.raises(JitPassesError, match="forward hooks of its own"):
            run_pass(TANH, torch.jit.script(net))
    net = Hooked()
    net.register_forward_hook(hook)
    encoded = run_pass(TANH, torch.jit.script(net), method="encode").encode(shape(3))
    assert torch.equal(encoded, torch.tanh(shape(3)))  # hooks of forward are not its
    net = Hooked()
    net.layer.register_forward_hook(hook)
    net.layer.register_forward_pre_hook(before)
    x = shape(3)
    assert torch.equal(run_pass(TANH, torch.jit.script(net))(x), torch.tanh(x + 1) * 2)


@torch.jit.interface
class Layer(nn.Module):
    """The interface of the layers of Picks."""

    def forward(self, x: Tensor) -> Tensor:
        pass


class One(nn.Module):
    """One of them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + 1


class Two(nn.Module):
    """Another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Picks(nn.Module):
    """Picks a layer at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([One(), Two()])

    def forward(self, x: Tensor, index: int) -> Tensor:
        layer: Layer = self.layers[index]
        return layer.forward(torch.relu(x))


def test_modules_picked_at_run_time() -> None:
    """Their calls become branches, whose operators a pass and a rule see."""
    module = torch.jit.script(Picks())
    rule = RewriteRule(
        "tanh",
        "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)",
        "graph(%x):\n  %y = aten::tanh(%x)\n  return (%y)",
    )
    x = shape(3)
    for tanh in (rule.apply(module).module, run_pass(TANH, module)):
        assert torch.equal(tanh(x, 0), torch.tanh(torch.tanh(x)) + 1)
        assert torch.equal(tanh(x, 1), torch.tanh(x) * 3)
        with pytest.raises(torch.jit.Error, match="no module is at the place"):
            tanh(x, 2)
    result = run_pass("remove_dead_code", module)
    for index in (0, 1):
        assert torch.equal(result(x, index), module(x, index))
    assert [n for n, _ in result.named_parameters()] == [n for n, _ in module.named_parameters()]


class Exchanges(nn.Module):
    """Calls another layer from the second call on."""

    __annotations__ = {"now": Layer, "then": Layer}

    def __init__(self) -> None:
        super().__init__()
        self.now, self.then = One(), Two()

    def forward(self, x: Tensor) -> Tensor:
        y = self.now.forward(torch.relu(x))
        self.now = self.then
        return y


def test_modules_exchanged_at_run_time() -> None:
    """Their calls stay: the pass works around them, or says that it needs them inlined."""
    x = shape(3)
    module = torch.jit.script(Exchanges())
    with pytest.raises(PassError, match="'inlined', which does not hold"):
        run_pass(TANH, module)
    result, expected = run_pass("remove_dead_code", module), torch.jit.script(Exchanges())
    for _ in range(2):
        assert torch.equal(result(x), expected(x))


class Color(Enum):
    """An enumeration."""

    RED = 1
    BLUE = 2


@torch.jit.script
class Pair:
    """A script class."""

    def __init__(self, x: Tensor) -> None:
        self.first = x
        self.second = x * 2

    def total(self) -> Tensor:
        return self.first + self.second


class Attributes(nn.Module):
    """Attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.names = [1, 2, 3], {"a": 1.5, "b": 2.5}
        self.pair, self.text = (1, torch.full((2,), 2.0)), "text"
        self.tensors, self.color = [torch.ones(2), torch.full((2,), 3.0)], Color.BLUE
        self.none: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.color == Color.BLUE:
            x = torch.relu(x) + self.numbers[1] + self.names["b"]
        if self.none is None and self.text == "text":
            x = x * self.pair[1]
        for tensor in self.tensors:
            x = x + tensor
        self.numbers.append(4)
        return Pair(x).total() + len(self.numbers)


def test_attributes_of_all_kinds(tmp_path: Path) -> None:
    """Lists, dicts, tuples, enumerations, script classes."""
    module = torch.jit.script(Attributes())
    expected = torch.jit.script(Attributes())
    result = run_pass(TANH, module)
    x = shape(2)
    with torch.no_grad():
        y = ((torch.tanh(x) + 2 + 2.5) * 2 + 4) * 3
        torch.testing.assert_close(result(x), y + 4)
        torch.testing.assert_close(result(x), y + 5)
        assert torch.isfinite(expected(x)).all()
    torch.jit.save(result, str(tmp_path / "m.pt"))
    torch.testing.assert_close(torch.jit.load(str(tmp_path / "m.pt"))(x), y + 6)


def test_inplace(module: torch.jit.ScriptModule) -> None:
    """The module that has run changes itself: its first form is not needed any more."""
    x, parameters = shape(8, 4), list(module.parameters())
    module.eval()
    for _ in range(3):
        module(x)
    result = run_pass(TANH, module, inplace=True)
    assert result is module
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert "aten::tanh" in str(module.graph)
    y = torch.tanh(module.norm.running_var.new_tensor(0.0))
    assert torch.isfinite(module(x)).all() and float(y) == 0
    module.train()
    assert not torch.equal(module(x), module(x))


def test_verify(module: torch.jit.ScriptModule) -> None:
    """Compares with the same random numbers; statistics and the module stay as they were."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    run_pass("remove_dead_code", module, verify=(shape(8, 4),))
    text = str(module.graph)
    with pytest.raises(
        PassError, match="changed the results of the module: output differs"
    ) as caught:
        run_pass(TANH, module, verify=(shape(8, 4),), inplace=True)
    assert caught.value.name == TANH and str(module.graph) == text
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
    run_pass("remove_dead_code", module, verify={"x": shape(8, 4)})


def test_errors(module: torch.jit.ScriptModule) -> None:
    """Leave the module as it was, after a pass that had changed something."""
    text, parameters = str(module.graph), list(module.parameters())
    with pytest.raises(PassError, match="on purpose") as caught:
        Pipeline("mine", (TANH, WRONG)).run(module, inplace=True)
    assert (caught.value.name, caught.value.done) == (WRONG, (TANH,))
    assert str(module.graph) == text
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))


def test_names_that_are_none(module: torch.jit.ScriptModule) -> None:
    pipeline = Pipeline("mine", (TANH,))
    with pytest.raises(JitPassesError, match=r"not a Pipeline; a Pipeline has `run` for that"):
        run_pass(pipeline, module)  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match="the name of a pass, then a module, not a Rec"):
        run_pass(module, TANH)  # type: ignore[arg-type]


def test_results(module: torch.jit.ScriptModule) -> None:
    """Records, text and difference."""
    result = Pipeline("mine", (TANH, TANH)).run(module)
    assert [record.changed for record in result.records] == [True, False]
    assert "(no change)" in str(result).splitlines()[1]
    lines = result.diff(color=False).splitlines()
    assert any(line.startswith("-") and "aten::relu" in line for line in lines)
    assert any(line.startswith("+") and "aten::tanh" in line for line in lines)
    same = run_pass("remove_dead_code", module)
    assert diff_graphs(same, result.module, color=False) == result.diff(color=False)
    assert diff_graphs(same, same) == ""


def test_nothing_leaks() -> None:
    """The result's parameters go with it, in place or not."""
    module = torch.jit.script(Net())
    result = run_pass(TANH, module)
    run_pass(TANH, module, inplace=True)
    module.eval()(shape(3, 4))
    result.eval()(shape(3, 4))
    parameter = weakref.ref(module.unused)
    del module, result
    gc.collect()
    assert parameter() is None
