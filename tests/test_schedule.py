"""When passes run: stages, handles, blocks, threads, and what comes back from script and trace."""

from __future__ import annotations

import contextvars
import itertools
import linecache
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.jit import script as script_imported_before
from torch.jit import trace as trace_imported_before
from torch.jit import trace_module as trace_module_imported_before

import jit_passes
from jit_passes import (
    GraphEditor,
    GraphView,
    JitPassesError,
    JitPassesWarning,
    PassError,
    Pipeline,
    RewriteRule,
    Stage,
    schedule,
    scheduled,
    scheduled_passes,
)

F = nn.functional
EXECUTOR_STAGES = [Stage.AFTER_AUTOGRAD, Stage.AFTER_FUSION]
PLACES = [
    (torch.jit._script, "_script_impl"),
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
    (torch.jit._trace, "make_module"),
    (torch.jit._trace, "_check_trace"),
    (torch.jit, "trace_module"),
]
ORIGINALS = [getattr(owner, name) for owner, name in PLACES]


def is_restored() -> bool:
    """Whether PyTorch's functions are the very same objects as when this file was loaded."""
    return all(getattr(o, n) is f for (o, n), f in zip(PLACES, ORIGINALS, strict=True))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test leaves PyTorch and the registry as they were."""
    names = set(jit_passes.passes)
    assert is_restored()
    yield
    left = scheduled_passes()
    for handle in left:
        handle.remove()
    assert left == ()
    assert is_restored()
    assert set(jit_passes.passes) == names


def relu_to_gelu(graph: GraphEditor) -> None:
    """Turn relu into gelu."""
    for node in graph.nodes:
        if node.kind == "aten::relu":
            gelu = graph.insert("aten::gelu", [node.inputs[0], "none"], before=node)
            graph.replace(node.output, gelu.output)
            graph.remove(node)


def swap(old: str, new: str) -> Callable[[GraphEditor], None]:
    """Return a pass that turns one unary operator into another."""

    def swap_operator(graph: GraphEditor) -> None:
        for node in graph.nodes:
            if node.kind == f"aten::{old}":
                made = graph.insert(f"aten::{new}", [node.inputs[0]], before=node)
                graph.replace(node.output, made.output)
                graph.remove(node)

    return swap_operator


def nothing(graph: GraphEditor) -> None:
    """Change nothing."""


def fail(graph: GraphEditor) -> None:
    """Fail, after a change."""
    relu_to_gelu(graph)
    raise ValueError("no more paper")


def kinds(view: GraphView) -> list[str]:
    """All operators but constants, in order."""
    return [node.kind for node in view.nodes if node.kind != "prim::Constant"]


@contextmanager
def graphs_seen(stage: Stage) -> Iterator[list[list[str]]]:
    """Collect the operators of all graphs that a stage sees inside the block."""
    seen: list[list[str]] = []

    def where(view: GraphView) -> bool:
        seen.append(kinds(view))
        return False

    with scheduled(nothing, stage=stage, where=where):
        yield seen


def fresh(
    body: str = "torch.relu(x)", arguments: str = "x: Tensor", **names: object
) -> Callable[..., Tensor]:
    """Return a function that PyTorch has not compiled yet, of its own source file."""

    name = f"<fresh {next(NUMBERS)}>"
    source = f"def function({arguments}) -> Tensor:\n    return {body}\n"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = {"__name__": __name__, "torch": torch, "Tensor": Tensor, **names}
    exec(compile(source, name, "exec"), scope)
    return scope["function"]  # type: ignore[return-value]


NUMBERS = itertools.count()
EMPTY = "graph(%x):\n  return (%x)"
X = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])


class Net(nn.Module):
    """A layer, a relu, an exported method and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return torch.relu(self.norm(self.linear(x))) * scale

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    @torch.jit.ignore
    def describe(self) -> str:
        return "a net"


# Which graphs the stages see.


def test_before_autograd_sees_the_plain_graph() -> None:
    """Once, when it is compiled, inlined; running it shows nothing more."""
    with graphs_seen(Stage.BEFORE_AUTOGRAD) as seen:
        compiled = torch.jit.script(fresh("torch.relu(x * y).cumsum(0)", "x: Tensor, y: Tensor"))
        assert seen == [["aten::mul", "aten::relu", "aten::cumsum"]]
        for _ in range(3):
            compiled(X.clone().requires_grad_(), X).sum().backward()
    assert len(seen) == 1


def test_before_autograd_sees_modules_inlined() -> None:
    """Every method, with what it calls."""
    with graphs_seen(Stage.BEFORE_AUTOGRAD) as seen:
        torch.jit.script(Net().eval())
    assert len(seen) == 2
    forward, encode = sorted(seen, key=len, reverse=True)
    assert encode == ["aten::relu"]
    assert {"aten::linear", "aten::batch_norm", "aten::relu", "aten::mul"} <= set(forward)
    assert not any("Call" in kind for kind in forward)


def test_after_autograd_without_gradients_sees_the_whole_graph() -> None:
    """At the second call, since the first one profiles, without the nodes that profile."""
    compiled = torch.jit.script(fresh("torch.relu(x * y).cumsum(0)", "x: Tensor, y: Tensor"))
    with graphs_seen(Stage.AFTER_AUTOGRAD) as seen:
        compiled(X, X)
        assert seen == []
        compiled(X, X)
        assert seen == [["aten::mul", "aten::relu", "aten::cumsum"]]
        compiled(X, X)
    assert len(seen) == 1


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_after_autograd_sees_what_was_differentiated(stage: Stage) -> None:
    """The differentiable part with what it keeps for the backward graph, then that one.

    PyTorch cannot differentiate cumsum ahead of time: it lies outside of the part, and is not seen.
    """
    compiled = torch.jit.script(fresh("torch.relu(x * y).cumsum(0)", "x: Tensor, y: Tensor"))
    x = X.clone().requires_grad_()
    with graphs_seen(stage) as seen:
        for _ in range(2):
            compiled(x, X)
        assert seen == []  # the whole graph is prepared, its part still profiles
        result = compiled(x, X)
        part = ["aten::mul", "aten::relu"]
        assert [[kind for kind in graph if kind in part] for graph in seen] == [part]
        assert "aten::_size_if_not_equal" in seen[0]  # for the gradient of a broadcast operand
        assert "aten::cumsum" not in seen[0]
        for _ in range(3):
            result = compiled(x, X)
            result.sum().backward()
        assert len(seen) == 2
        assert "prim::AutogradAllNonZero" in seen[1] and "aten::mul" in seen[1]
    (plan,) = compiled.get_debug_state().execution_plans.values()  # type: ignore[attr-defined]
    optimized = str(plan.graph)
    assert "prim::DifferentiableGraph" in optimized and "aten::cumsum" in optimized


def test_after_fusion_sees_fusion_groups() -> None:
    """With oneDNN's fuser, which works on CPUs; it was switched on after our hooks were there."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch has no oneDNN here, the only fuser for CPUs in its releases")
    compiled = torch.jit.script(fresh("torch.relu(x * y).exp()", "x: Tensor, y: Tensor"))
    x = torch.randn(4, 4)
    torch.jit.enable_onednn_fusion(True)
    try:
        with (
            graphs_seen(Stage.AFTER_AUTOGRAD) as before,
            graphs_seen(Stage.AFTER_FUSION) as after,
            torch.no_grad(),
        ):
            for _ in range(3):
                found = compiled(x, x)
    finally:
        torch.jit.enable_onednn_fusion(False)
    assert before == [["aten::mul", "aten::relu", "aten::exp"]]
    assert len(after) == 1
    assert "prim::oneDNNFusionGroup" in after[0] and "prim::oneDNNFusionGuard" in after[0]
    assert "aten::mul" not in after[0]
    torch.testing.assert_close(found, torch.relu(x * x).exp())


def test_fusers_keep_what_was_profiled() -> None:
    """A change after autograd leaves the fuser the shapes that it needs: it still fuses."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch has no oneDNN here, the only fuser for CPUs in its releases")
    compiled = torch.jit.script(fresh("torch.relu(x * y).tanh()", "x: Tensor, y: Tensor"))
    x = torch.randn(4, 4)
    torch.jit.enable_onednn_fusion(True)
    try:
        with (
            scheduled(swap("tanh", "exp"), stage=Stage.AFTER_AUTOGRAD) as handle,
            graphs_seen(Stage.AFTER_FUSION) as after,
            torch.no_grad(),
        ):
            for _ in range(3):
                found = compiled(x, x)
    finally:
        torch.jit.enable_onednn_fusion(False)
    assert (handle.runs, handle.changed) == (1, 1)
    assert "prim::oneDNNFusionGroup" in after[0] and "aten::tanh" not in after[0]
    torch.testing.assert_close(found, torch.relu(x * x).exp())


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_rules_match_after_autograd(stage: Stage) -> None:
    """No node that profiles stands between the operators of a pattern."""

    def pattern(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x * y)

    def replacement(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x + y)

    compiled = torch.jit.script(fresh("torch.relu(x * y)", "x: Tensor, y: Tensor"))
    with scheduled(RewriteRule("swap", pattern, replacement), stage=stage) as handle:
        for _ in range(3):
            found = compiled(X, X)
    assert (handle.runs, handle.changed) == (1, 1)
    assert torch.equal(found, torch.sigmoid(X + X))


# Gradients.


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of the sum at X."""
    x = X.clone().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad


def test_gradients_before_autograd() -> None:
    """Value and gradient are gelu's, from the first call on."""
    with scheduled(relu_to_gelu):
        compiled = torch.jit.script(fresh())
    for _ in range(4):
        torch.testing.assert_close(compiled(X), F.gelu(X), rtol=0, atol=0)
        torch.testing.assert_close(gradient(compiled), gradient(F.gelu))  # formulas differ
    assert not torch.allclose(gradient(F.gelu), gradient(torch.relu))


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_gradients_after_autograd(stage: Stage) -> None:
    """The value is gelu's, the gradient still relu's: it was derived before."""
    compiled = torch.jit.script(fresh("torch.relu(x) * 1.0"))
    with scheduled(relu_to_gelu, stage=stage) as handle:
        for _ in range(4):
            x = X.clone().requires_grad_()
            value = compiled(x)
            value.sum().backward()
    assert handle.changed == 1
    torch.testing.assert_close(value, F.gelu(X))
    assert x.grad is not None
    assert torch.equal(x.grad, gradient(torch.relu))


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_small_parts_are_not_seen(stage: Stage) -> None:
    """PyTorch leaves a single operator to plain autograd: no stage of the executor sees it."""
    compiled = torch.jit.script(fresh())
    with scheduled(relu_to_gelu, stage=stage) as handle:
        for _ in range(4):
            assert torch.equal(gradient(compiled), gradient(torch.relu))
            assert torch.equal(compiled(X.clone().requires_grad_()), torch.relu(X))
    assert handle.runs == 0


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_executor_keeps_its_plan(stage: Stage) -> None:
    """A graph that is ready is not prepared again, neither with the pass nor without it."""
    early, late = torch.jit.script(fresh()), torch.jit.script(fresh())
    for _ in range(2):
        early(X)
    with scheduled(relu_to_gelu, stage=stage) as handle:
        assert torch.equal(early(X), torch.relu(X))
        assert handle.runs == 0
        for _ in range(2):
            late(X)
    assert torch.equal(late(X), F.gelu(X))
    assert torch.equal(early(X), torch.relu(X))
    late._debug_flush_compilation_cache()  # type: ignore[attr-defined]
    for _ in range(3):
        assert torch.equal(late(X), torch.relu(X))


def test_modules_of_a_type_share_what_is_prepared() -> None:
    """PyTorch compiles a type once; a pass before autograd gives a module graphs of its own."""
    first, second = torch.jit.script(nn.Hardswish()), torch.jit.script(nn.Hardswish())
    with scheduled(swap("hardswish", "exp"), stage=Stage.AFTER_AUTOGRAD) as handle:
        for _ in range(2):
            first(X)
    assert handle.changed == 1
    assert torch.equal(second(X), torch.exp(X))
    first.forward._debug_flush_compilation_cache()
    assert torch.equal(second(X), F.hardswish(X))
    with scheduled(swap("hardswish", "cos")):
        own = torch.jit.script(nn.Hardswish())
    assert torch.equal(own(X), torch.cos(X)) and torch.equal(second(X), F.hardswish(X))


def test_number_of_profiled_runs() -> None:
    """The graph is prepared after that many calls; without any, at the first one."""
    runs = torch._C._jit_get_num_profiled_runs()
    try:
        for number in (0, 1, 3):
            torch._C._jit_set_num_profiled_runs(number)
            compiled = torch.jit.script(fresh())
            with scheduled(relu_to_gelu, stage=Stage.AFTER_AUTOGRAD) as handle:
                counts = []
                for _ in range(5):
                    compiled(X)
                    counts.append(handle.runs)
            assert counts == [int(call >= number) for call in range(5)]
    finally:
        torch._C._jit_set_num_profiled_runs(runs)


def test_simple_executor_calls_no_passes() -> None:
    """As the docstring of `schedule` says."""
    before = torch._C._jit_set_profiling_mode(False)
    try:
        compiled = torch.jit.script(fresh())
        with scheduled(relu_to_gelu, stage=Stage.AFTER_AUTOGRAD) as handle:
            for _ in range(3):
                assert torch.equal(compiled(X), torch.relu(X))
        assert handle.runs == 0
    finally:
        torch._C._jit_set_profiling_mode(before)


@pytest.mark.parametrize("stage", EXECUTOR_STAGES)
def test_legacy_executor(stage: Stage) -> None:
    """It prepares graphs at the first call; with a gradient, parts of five operators and more."""
    before = torch._C._jit_set_profiling_executor(False)
    try:
        compiled = torch.jit.script(fresh("torch.relu(x).mul(2).mul(2).mul(2).mul(2)"))
        with scheduled(relu_to_gelu, stage=stage) as handle:
            assert torch.equal(compiled(X), F.gelu(X) * 16)
            assert torch.equal(gradient(compiled), gradient(torch.relu) * 16)
        assert handle.changed == 2
    finally:
        torch._C._jit_set_profiling_executor(before)


# What script and trace return.


def test_scripted_module() -> None:
    """The same Python object, parameters, buffers and state; all methods were processed."""
    net = Net().train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with scheduled(relu_to_gelu) as handle:
        scripted = torch.jit.script(net)
    assert type(scripted) is torch.jit.RecursiveScriptModule
    assert handle.changed == handle.runs == 2
    assert scripted.training
    assert list(scripted.state_dict()) == list(state)
    for (name, ours), (other, theirs) in zip(
        scripted.named_parameters(), net.named_parameters(), strict=True
    ):
        assert name == other and ours is theirs
    for (name, ours), (other, theirs) in zip(
        scripted.named_buffers(), net.named_buffers(), strict=True
    ):
        assert name == other and ours.data_ptr() == theirs.data_ptr()
    assert torch.equal(scripted.encode(X), F.gelu(X))
    assert scripted.describe() == "a net"
    x = torch.randn(8, 5)
    expected = F.gelu(F.batch_norm(net.linear(x), None, None, training=True)) * 2.0
    torch.testing.assert_close(scripted(x), expected)  # the default of `scale`
    assert int(net.norm.num_batches_tracked) == 1  # the same buffers
    scripted.eval()
    torch.testing.assert_close(scripted(x, 3.0), F.gelu(net.eval().norm(net.linear(x))) * 3.0)
    assert torch.equal(torch.jit.script(Net()).encode(X), torch.relu(X))


def test_saved_module(tmp_path: object) -> None:
    """A file of a processed module loads, and holds what the pass made."""
    with scheduled(relu_to_gelu):
        scripted = torch.jit.script(Net().eval())
    torch.jit.save(scripted, f"{tmp_path}/net.pt")
    x = torch.randn(3, 5)
    loaded = torch.jit.load(f"{tmp_path}/net.pt")
    assert torch.equal(loaded(x), scripted(x))
    assert torch.equal(loaded.encode(X), F.gelu(X))


def test_module_in_a_module() -> None:
    """Only the whole is processed, once; a finished part goes into a later whole."""
    with scheduled(nothing) as handle:
        torch.jit.script(nn.Sequential(Net(), nn.ReLU()))
    assert handle.runs == 1  # Sequential has one method; encode was compiled for its part
    with scheduled(swap("relu", "sigmoid")):
        part = torch.jit.script(nn.Sequential(nn.ReLU()))
    whole = torch.jit.script(nn.Sequential(part, nn.ReLU()))
    assert torch.equal(whole(X), torch.relu(torch.sigmoid(X)))


def test_unchanged_module_is_as_pytorch_made_it() -> None:
    """With its submodules' methods, which a processed module has inlined."""
    with scheduled(nothing) as handle:
        scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    assert handle.runs == 1 and handle.changed == 0
    assert "CallMethod" in str(scripted.graph)
    assert torch.equal(scripted[0](X), torch.relu(X))


def test_functions() -> None:
    """A new function with the same name, arguments and defaults; PyTorch's own stays."""
    function = fresh("torch.relu(x) * k", "x: Tensor, k: float = 2.0")
    plain = torch.jit.script(function)
    with scheduled(relu_to_gelu):
        processed = torch.jit.script(function)
    assert isinstance(processed, torch.jit.ScriptFunction)
    assert str(processed.schema) == str(plain.schema)
    assert (processed.name, processed.qualified_name) == (plain.name, plain.qualified_name)
    assert torch.equal(processed(X), F.gelu(X) * 2.0)
    assert torch.equal(processed(X, k=3.0), F.gelu(X) * 3.0)
    assert torch.equal(plain(X), torch.relu(X) * 2.0)
    assert torch.equal(torch.jit.script(function)(X), torch.relu(X) * 2.0)


def test_function_that_calls_functions() -> None:
    """The callee is part of the caller, and processed with it alone."""
    inner = fresh()
    outer = fresh("inner(x) + inner(2 * x)", inner=inner)
    with scheduled(relu_to_gelu) as handle:
        processed = torch.jit.script(outer)
    assert handle.runs == 1
    assert torch.equal(processed(X), F.gelu(X) + F.gelu(2 * X))
    assert torch.equal(torch.jit.script(inner)(X), torch.relu(X))
    assert torch.equal(torch.jit.script(outer)(X), torch.relu(X) + torch.relu(2 * X))


def test_compiled_objects_come_back() -> None:
    """Unchanged, and nothing runs on them."""
    function, module = torch.jit.script(fresh()), torch.jit.script(nn.ReLU())
    with scheduled(relu_to_gelu) as handle:
        assert torch.jit.script(function) is function
        assert torch.jit.script(module) is module
        with pytest.warns(UserWarning, match="already a ScriptModule"):
            assert torch.jit.trace(module, X) is module
    assert handle.runs == 0


def test_traces() -> None:
    """Of functions, modules and several methods; PyTorch's check of the trace is none of ours."""

    class Plain(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

        def encode(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    net, x = Plain(5, 5), torch.randn(3, 5)
    with scheduled(relu_to_gelu) as handle:
        function = torch.jit.trace(lambda x: torch.relu(x) + 1, X)
        assert handle.runs == 1
        module = torch.jit.trace(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), x)
        assert handle.runs == 2
        several = torch.jit.trace_module(mod=net, inputs={"forward": x, "encode": x})
        assert handle.runs == 4
    assert isinstance(function, torch.jit.ScriptFunction)
    assert torch.equal(function(X), F.gelu(X) + 1)
    assert isinstance(module, torch.jit.TopLevelTracedModule)
    assert "aten::gelu" in str(module.graph) and "aten::relu" not in str(module.graph)
    torch.testing.assert_close(several(x), F.gelu(F.linear(x, net.weight, net.bias)))
    assert torch.equal(several.encode(x), F.gelu(x))
    assert next(several.parameters()) is next(net.parameters())


def test_names_that_were_imported_before() -> None:
    """script and trace are replaced inside; for trace_module there is a warning."""
    with scheduled(relu_to_gelu) as handle:
        assert torch.equal(script_imported_before(fresh())(X), F.gelu(X))
        assert torch.equal(trace_imported_before(torch.relu, X)(X), F.gelu(X))
        assert handle.runs == 2
        with pytest.warns(JitPassesWarning, match=r"call torch\.jit\.trace_module"):
            traced = trace_module_imported_before(nn.ReLU(), {"forward": X})
    assert torch.equal(traced(X), torch.relu(X))


def test_names_of_the_caller_are_found() -> None:
    """A class is compiled with the names around the call: one frame more must not hide them."""

    @torch.jit.script
    def triple(x: Tensor) -> Tensor:
        return x * 3

    with scheduled(nothing):

        @torch.jit.script
        class Scale:
            def __init__(self, x: Tensor) -> None:
                self.x = triple(x)

        @torch.jit.script
        def use(x: Tensor) -> Tensor:
            return Scale(x).x

    assert torch.equal(use(X), X * 3)


# Handles.


def test_schedule_for_the_process() -> None:
    """From any thread, until it is removed."""
    found: list[Tensor] = []
    handle = schedule(relu_to_gelu)
    try:
        thread = threading.Thread(target=lambda: found.append(torch.jit.script(fresh())(X)))
        thread.start()
        thread.join()
        assert not is_restored()
    finally:
        handle.remove()
    assert torch.equal(found[0], F.gelu(X))
    assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))


def test_enable_and_disable() -> None:
    """PyTorch's functions are replaced only while a pass is on."""
    with scheduled(relu_to_gelu) as handle:
        for _ in range(2):
            handle.disable()
            assert not handle.enabled and is_restored()
            assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))
            handle.enable()
            handle.enable()
            assert handle.enabled and not is_restored()
            assert torch.equal(torch.jit.script(fresh())(X), F.gelu(X))
        assert handle.runs == handle.changed == 2


def test_order() -> None:
    """Lower first; ties as they were scheduled; settable."""
    with (
        scheduled(swap("relu", "exp"), order=1) as first,
        scheduled(swap("relu", "cos"), order=1) as second,
        scheduled(swap("exp", "sin"), order=0) as third,
    ):
        assert [handle.order for handle in scheduled_passes()] == [0, 1, 1]
        assert torch.equal(torch.jit.script(fresh())(X), torch.exp(X))
        third.order = 2
        assert scheduled_passes() == (first, second, third)
        assert torch.equal(torch.jit.script(fresh())(X), torch.sin(X))
        second.order = -1
        assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))


def test_removed_handle() -> None:
    """It keeps its counts, and nothing else."""
    handle = schedule(relu_to_gelu)
    torch.jit.script(fresh())
    handle.remove()
    assert (handle.runs, handle.changed, handle.enabled) == (1, 1, False)
    assert repr(handle).endswith("order 0, removed, runs 1, changed 1>")

    def set_order() -> None:
        handle.order = 1

    for use in (handle.remove, handle.enable, handle.disable, set_order):
        with pytest.raises(JitPassesError, match=r"'relu_to_gelu' was removed.*schedule it"):
            use()
    with scheduled(relu_to_gelu) as handle:
        handle.remove()
        assert is_restored()
    with pytest.raises(JitPassesError, match="was removed"):
        handle.enable()


def test_table() -> None:
    """A header and a line for each, in order."""
    assert str(scheduled_passes()).split() == ["stage", "order", "pass", "state", "runs", "changed"]
    with (
        scheduled(relu_to_gelu, stage=Stage.AFTER_FUSION),
        scheduled("remove_dropout", order=5) as handle,
    ):
        torch.jit.script(fresh())
        handle.disable()
        lines = [re.split(r"\s{2,}", line) for line in str(scheduled_passes()).splitlines()]
        assert lines[1:] == [
            ["before autograd", "5", "remove_dropout", "off", "1", "0"],
            ["after fusion", "0", "relu_to_gelu", "on", "0", "0"],
        ]
        assert repr(handle) == (
            "<ScheduledPass 'remove_dropout' before autograd, order 5, off, runs 1, changed 0>"
        )


def test_kinds_of_passes() -> None:
    """Names, pipelines, rules and functions, with options."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(x)

    def replacement(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def repeat(graph: GraphEditor, kind: str) -> None:
        node = next(node for node in graph.nodes if node.kind == "aten::sigmoid")
        after = graph.insert(kind, [node.inputs[0]], before=node)
        graph.set_input(node, 0, after.output)

    model = nn.Sequential(nn.ReLU6(), nn.ReLU())
    with (
        scheduled("canonicalize_clamp") as by_name,
        scheduled(Pipeline("clean", ("remove_dead_code", "pool_constants"))) as pipeline,
        scheduled(RewriteRule("to_sigmoid", pattern, replacement)) as rule,
        scheduled(repeat, options={"kind": "aten::exp"}) as function,
    ):
        scripted = torch.jit.script(model)
    assert [h.name for h in (by_name, pipeline, rule, function)] == [
        "canonicalize_clamp",
        "clean",
        "to_sigmoid",
        "repeat",
    ]
    assert all(handle.runs == 1 for handle in (by_name, pipeline, rule, function))
    assert torch.equal(scripted(X), torch.sigmoid(torch.exp(X.clamp(0, 6))))
    assert "aten::clamp" in str(scripted.graph) and "aten::hardtanh" not in str(scripted.graph)


def test_names_of_functions() -> None:
    """Two of one name are two passes; a lambda has one too; the registry knows none of them."""
    with (
        scheduled(swap("relu", "exp")) as one,
        scheduled(swap("exp", "cos")) as two,
        scheduled(lambda graph: None) as three,
    ):
        assert [h.name for h in (one, two, three)] == [
            "swap_operator",
            "swap_operator",
            "lambda",
        ]
        assert not {"swap_operator", "lambda"} & set(jit_passes.passes)
        assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))


def test_rules_compile_their_patterns_in_peace() -> None:
    """A scheduled pass does not touch the pattern of a rule that is compiled meanwhile."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(x)

    def replacement(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    module = torch.jit.script(nn.ReLU())
    with scheduled(relu_to_gelu) as handle:
        rule = RewriteRule("to_sigmoid", pattern, replacement)
        assert torch.equal(rule.apply(module).module(X), torch.sigmoid(X))
    assert handle.runs == 0


@pytest.mark.parametrize(
    ("pass_", "options", "message"),
    [
        ("nonsense", {}, "'nonsense', which is not registered"),
        (Pipeline("mine", ("nonsense",)), {}, "'mine' names the pass 'nonsense'"),
        (RewriteRule("bad", "nonsense", "nonsense"), {}, "rule 'bad'"),
        (
            RewriteRule("rule", EMPTY, EMPTY),
            {"a": 1},
            "rule set 'rule' of pipeline 'rule' has no option 'a'",
        ),
        (3, {}, "a function that takes a GraphEditor, not 3"),
    ],
)
def test_bad_passes(pass_: object, options: dict[str, int], message: str) -> None:
    """Refused when they are scheduled, with nothing left behind."""
    with pytest.raises(JitPassesError, match=message):
        schedule(pass_, options=options)  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match=r"Stage\.AFTER_FUSION, not 'late'"):
        schedule("remove_dropout", stage="late")  # type: ignore[arg-type]


# Blocks and threads.


def test_nested_blocks() -> None:
    """Each ends what it began, the same pass twice as well, exceptions included."""

    def compiled() -> Tensor:
        result: Tensor = torch.jit.script(fresh())(X)
        return result

    outer, inner = swap("relu", "exp"), swap("exp", "cos")
    for _ in range(2):
        with scheduled(outer):
            assert torch.equal(compiled(), torch.exp(X))
            with pytest.raises(ZeroDivisionError), scheduled(inner):
                assert torch.equal(compiled(), torch.cos(X))
                with scheduled(inner) as again:
                    compiled()
                    assert again.runs == 1 and again.changed == 0
                assert len(scheduled_passes()) == 2
                raise ZeroDivisionError
            assert torch.equal(compiled(), torch.exp(X))
        assert torch.equal(compiled(), torch.relu(X))
        assert is_restored()


def test_blocks_that_end_in_another_order() -> None:
    """The pass ends with its block, whatever else is open."""
    one, two = ExitStack(), ExitStack()
    one.enter_context(scheduled(swap("relu", "exp")))
    two.enter_context(scheduled(swap("relu", "cos")))
    assert torch.equal(torch.jit.script(fresh())(X), torch.exp(X))
    one.close()
    assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))
    two.close()
    assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))


def test_copied_contexts() -> None:
    """A task that was begun inside has the pass, until the block ends."""
    with scheduled(relu_to_gelu):
        context = contextvars.copy_context()
        assert torch.equal(context.run(lambda: torch.jit.script(fresh())(X)), F.gelu(X))
    assert torch.equal(context.run(lambda: torch.jit.script(fresh())(X)), torch.relu(X))


@pytest.mark.parametrize("stage", list(Stage))
def test_threads_see_their_own(stage: Stage) -> None:
    """Two threads compile and run at the same time, each with its own pass."""
    barrier = threading.Barrier(2)
    problems: list[str] = []

    def work(name: str, function: Callable[[Tensor], Tensor]) -> None:
        try:
            with scheduled(swap("relu", name), stage=stage) as handle:
                barrier.wait(timeout=60)
                assert scheduled_passes() == (handle,)
                for _ in range(20):
                    compiled = torch.jit.script(fresh())
                    for _ in range(3):
                        found = compiled(X)
                    assert torch.equal(found, function(X)), name
                assert handle.runs == handle.changed == 20
                barrier.wait(timeout=60)
        except Exception as error:
            problems.append(repr(error))

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in (("exp", torch.exp), ("cos", torch.cos))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_scheduling_while_others_compile() -> None:
    """Each compilation has the pass or has it not, and PyTorch is restored at the end."""
    problems: list[str] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                found = torch.jit.script(fresh())(X)
                assert torch.equal(found, torch.relu(X)) or torch.equal(found, F.gelu(X))
        except Exception as error:
            problems.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(100):
        handle = schedule(relu_to_gelu)
        handle.disable()
        handle.enable()
        assert torch.equal(torch.jit.script(fresh())(X), F.gelu(X))
        handle.remove()
    stop.set()
    thread.join()
    assert problems == []


# Failures, and where.


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
    """There is none after autograd, and the error says so."""
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
    """Calls a module by its interface."""

    __annotations__ = {"part": Interface}  # not as a string, which the compiler does not take

    def __init__(self) -> None:
        super().__init__()
        self.part = Implementation()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.forward(x)


def test_calls_that_cannot_be_inlined() -> None:
    """Nobody knows what an interface will be: a warning as well."""
    with scheduled(relu_to_gelu), pytest.warns(JitPassesWarning, match="a call is left"):
        scripted = torch.jit.script(WithInterface())
    assert torch.equal(scripted(X), torch.relu(X))


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
