"""Stages of a schedule: the graphs that each one sees, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from jit_passes import RewriteRule, Stage, scheduled
from tests.passes.scheduling import (
    EXECUTOR_STAGES,
    F,
    Net,
    X,
    fresh,
    gradient,
    graphs_seen,
    relu_to_gelu,
    swap,
)
from tests.passes.scheduling import nothing_is_left as nothing_is_left


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
    """Graphs are prepared at the first call; with a gradient, parts of five operators and more."""
    before = torch._C._jit_set_profiling_executor(False)
    try:
        compiled = torch.jit.script(fresh("torch.relu(x).mul(2).mul(2).mul(2).mul(2)"))
        with scheduled(relu_to_gelu, stage=stage) as handle:
            assert torch.equal(compiled(X), F.gelu(X) * 16)
            assert torch.equal(gradient(compiled), gradient(torch.relu) * 16)
        assert handle.changed == 2
    finally:
        torch._C._jit_set_profiling_executor(before)
