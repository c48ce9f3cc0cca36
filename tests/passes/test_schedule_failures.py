"""Scheduled passes that fail or do not fit, and schedules for some graphs only."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from jit_passes import (
    GraphEditor,
    GraphView,
    JitPassesWarning,
    PassError,
    Stage,
    schedule,
    scheduled,
)
from tests.passes.scheduling import EXECUTOR_STAGES, F, Net, X, fail, fresh, gradient, relu_to_gelu
from tests.passes.scheduling import nothing_is_left as nothing_is_left


def test_failing_pass_before_autograd() -> None:
    """The error names stage and pass; what PyTorch keeps of the function is as it was."""
    function = fresh()
    with scheduled(fail) as handle:
        for what in (function, nn.ReLU()):
            with pytest.raises(
                PassError, match=r"before autograd: pass 'fail' .*no more paper"
            ) as e:
                torch.jit.script(what)
            assert e.value.name == "fail" and e.value is handle.error
        with pytest.raises(PassError, match="no more paper"):
            torch.jit.trace(nn.ReLU(), X)
        assert handle.runs == 0
    assert torch.equal(torch.jit.script(function)(X), torch.relu(X))


def test_failing_pass_names_the_node() -> None:
    """The C++ visit of nodes adds the node, the lint too."""

    def twist(graph: GraphEditor) -> None:
        relu, exp = [node for node in graph.nodes if node.kind in ("aten::relu", "aten::exp")]
        graph.set_input(relu, 0, exp.output)

    with scheduled(twist), pytest.raises(PassError, match=r"'twist'.*aten::relu"):
        torch.jit.script(fresh("torch.relu(x).exp()"))


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_failing_pass_in_the_executor(stage: Stage) -> None:
    """Out of the user's call; the graph is as it was, and the next call goes well."""
    compiled = torch.jit.script(fresh())
    with scheduled(fail, stage=stage) as handle:
        compiled(X)
        for _ in range(2):
            with pytest.raises(PassError, match=f"{stage.value}: pass 'fail' .*no more paper"):
                compiled(X)
        handle.disable()
        assert torch.equal(compiled(X), torch.relu(X))
    assert torch.equal(compiled(X), torch.relu(X))


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_failing_pass_in_a_differentiated_part(stage: Stage) -> None:
    """The interpreter keeps the text and loses the type; the handle has the error itself."""
    compiled = torch.jit.script(fresh("torch.relu(x) * 1.0"))
    x = X.clone().requires_grad_()
    with scheduled(fail, stage=stage) as handle:
        for _ in range(2):
            compiled(x)
        with pytest.raises(RuntimeError, match=f"{stage.value}: pass 'fail' .*no more paper"):
            compiled(x)
        assert isinstance(handle.error, PassError)
    assert torch.equal(gradient(compiled), gradient(torch.relu))


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_pass_that_needs_a_module(stage: Stage) -> None:
    """No module exists after autograd, and the error says so."""
    compiled = torch.jit.script(fresh())
    with scheduled("freeze", stage=stage):
        compiled(X)
        with pytest.raises(PassError, match="needs the module that the graph belongs to"):
            compiled(X)


def test_pass_that_drops_methods() -> None:
    """Freezing keeps one method: refused where there are more, fine where there is one."""
    with scheduled("freeze"):
        assert torch.equal(torch.jit.script(nn.ReLU().eval())(X), torch.relu(X))
        with pytest.raises(PassError, match="'freeze' left no method"):
            torch.jit.script(Net().eval())


def test_module_with_hooks() -> None:
    """Hooks of the module itself would be lost: it stays as it is, with a warning at the call."""
    module = nn.ReLU()
    module.register_forward_hook(_hook)
    with (
        scheduled(relu_to_gelu) as handle,
        pytest.warns(JitPassesWarning, match="ReLU stays.*'relu_to_gelu': .*hooks") as caught,
    ):
        scripted = torch.jit.script(module)
    ours = [warning for warning in caught if warning.category is JitPassesWarning]
    assert [warning.filename for warning in ours] == [__file__]
    assert handle.runs == 0
    assert torch.equal(scripted(X), torch.relu(X) + 1)


@torch.jit.interface
class Interface(nn.Module):
    """A module that is picked at run time."""

    def forward(self, x: Tensor) -> Tensor:
        pass


class Implementation(nn.Module):
    """One of them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class WithInterface(nn.Module):
    """Calls a module by its interface, and another one from the second call on."""

    # Not as strings, which the compiler does not take.
    __annotations__ = {"part": Interface, "other": Interface}

    def __init__(self, swaps: bool) -> None:
        super().__init__()
        self.part, self.other, self.swaps = Implementation(), Implementation(), swaps

    def forward(self, x: Tensor) -> Tensor:
        y = self.part.forward(x)
        if self.swaps:
            self.part = self.other
        return y


def test_calls_that_cannot_be_inlined() -> None:
    """Nobody knows what a member will be that the model exchanges: a warning as well."""
    with scheduled(relu_to_gelu), pytest.warns(JitPassesWarning, match="a call is left"):
        scripted = torch.jit.script(WithInterface(swaps=True))
    assert torch.equal(scripted(X), torch.relu(X))


class ByInterface(nn.Module):
    """Calls a module by its interface."""

    __annotations__ = {"part": Interface}

    def __init__(self) -> None:
        super().__init__()
        self.part = Implementation()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.forward(x)


def test_calls_through_an_interface() -> None:
    """The member that is there says what it is."""
    with scheduled(relu_to_gelu) as handle:
        scripted = torch.jit.script(ByInterface())
    assert handle.changed == 1
    assert torch.equal(scripted(X), F.gelu(X))


def _hook(self, inputs: tuple[Tensor], output: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    return output + 1


@pytest.mark.parametrize("stage", list(Stage))
def test_where(stage: Stage) -> None:
    """The pass runs on graphs with a tanh alone; runs elsewhere do not count."""

    def has_tanh(view: GraphView) -> bool:
        return any(node.kind == "aten::tanh" for node in view.nodes)

    with scheduled(relu_to_gelu, stage=stage, where=has_tanh) as handle:
        plain = torch.jit.script(fresh())
        chosen = torch.jit.script(fresh("torch.relu(x).tanh()"))
        for _ in range(3):
            assert torch.equal(plain(X), torch.relu(X))
            found = chosen(X)
    assert torch.equal(found, F.gelu(X).tanh())
    assert (handle.runs, handle.changed) == (1, 1)


@pytest.mark.parametrize("everywhere", [True, False])
def test_graphs_of_other_threads(everywhere: bool) -> None:
    """PyTorch prepares the differentiated parts of a forked call in a thread of its own."""
    inner = fresh("torch.relu(x) * 1.0")
    compiled = torch.jit.script(fresh("torch.jit.wait(torch.jit.fork(inner, x))", inner=inner))
    with ExitStack() as stack:
        if everywhere:
            handle = schedule(relu_to_gelu, stage=Stage.AFTER_AUTOGRAD)
            stack.callback(handle.remove)
        else:
            handle = stack.enter_context(scheduled(relu_to_gelu, stage=Stage.AFTER_AUTOGRAD))
        for _ in range(4):
            found = compiled(X.clone().requires_grad_())
    assert handle.changed == int(everywhere)
    assert torch.equal(found, F.gelu(X) if everywhere else torch.relu(X))


def test_where_that_fails() -> None:
    """The error says that it was this function."""
    with (
        scheduled(relu_to_gelu, where=lambda view: view.nodes[99] is None),
        pytest.raises(PassError, match=r"`where` of 'relu_to_gelu' failed: IndexError"),
    ):
        torch.jit.script(fresh())
