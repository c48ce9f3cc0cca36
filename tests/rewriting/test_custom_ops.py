"""Operators of the user's own, put in by rules: values, gradients, training, files, misfits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError, PassError, RewriteRule, register_pass, rewrite, run_pass
from jit_passes.passes.registry import passes
from tests.processes import run_code, run_python

DEFINITION = '''
import torch
from torch import Tensor


@torch.library.custom_op("tests_custom::soft_clip", mutates_args=())
def soft_clip(x: Tensor, limit: float) -> Tensor:
    """x / (1 + |x| / limit)."""
    return x / (1 + x.abs() / limit)


@soft_clip.register_fake
def _(x: Tensor, limit: float) -> Tensor:
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    x, ctx.limit = inputs
    ctx.save_for_backward(x)


def derive(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient / (1 + x.abs() / ctx.limit) ** 2, None


soft_clip.register_autograd(derive, setup_context=keep)
'''
exec(DEFINITION)  # the same text defines it in other processes


def soft_clip_by_hand(x: Tensor, limit: float) -> Tensor:
    """The operator's formula, differentiated by PyTorch."""
    return x / (1 + x.abs() / limit)


class Net(nn.Module):
    """A convolution, a relu, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean([2, 3]))


class ByHand(Net):
    """The net with the formula in place of the relu."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(soft_clip_by_hand(self.conv(x), 2.0).mean([2, 3]))


def pattern(x: Tensor) -> Tensor:
    return torch.relu(x)


def replacement(x: Tensor, limit: float) -> Tensor:
    return torch.ops.tests_custom.soft_clip(x, limit)


RULE = RewriteRule("relu_to_soft_clip", pattern, replacement, compute=lambda match: {"limit": 2.0})
X = torch.linspace(-3, 3, 2 * 2 * 6 * 6).reshape(2, 2, 6, 6)


@pytest.fixture(params=["script", "trace"])
def net(request: pytest.FixtureRequest) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = Net()
    return torch.jit.script(model) if request.param == "script" else torch.jit.trace(model, X)


def by_hand(net: torch.jit.ScriptModule) -> ByHand:
    model = ByHand()
    model.load_state_dict(net.state_dict())
    return model


def test_values_and_gradients(net: torch.jit.ScriptModule) -> None:
    """Values and gradients are the formula's; calls beyond the executor's profiling are equal."""
    changed = RULE.apply(net).module
    assert "tests_custom::soft_clip" in str(changed.graph)
    expected = by_hand(net)
    for _ in range(4):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        wanted, found = expected(x), changed(y)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        wanted_grads = torch.autograd.grad(wanted.sin().sum(), [x, *expected.parameters()])
        found_grads = torch.autograd.grad(found.sin().sum(), [y, *changed.parameters()])
        for a, b in zip(wanted_grads, found_grads, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_training(net: torch.jit.ScriptModule) -> None:
    """Step by step the same as the formula's; the parameters are those of the float model."""
    changed, expected = RULE.apply(net).module, by_hand(net)
    target = torch.tensor([0, 2])
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (changed, expected)]
    for _ in range(5):
        losses = []
        for model, step in zip((changed, expected), steps, strict=True):
            step.zero_grad()
            loss = nn.functional.cross_entropy(model(X), target)
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for mine, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_file(net: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Loads where the operator is defined, and says what is missing where it is not."""
    changed = RULE.apply(net).module.eval()
    file, result = tmp_path / "net.pt", tmp_path / "result.pt"
    torch.jit.save(changed, str(file))
    load = "import sys; module = torch.jit.load(sys.argv[1])\n"
    use = "torch.save(module(torch.load(sys.argv[2])), sys.argv[3])\n"
    torch.save(X, tmp_path / "x.pt")
    files = [str(file), str(tmp_path / "x.pt"), str(result)]
    definition = tmp_path / "definition.py"  # PyTorch reads the source of its functions
    definition.write_text(DEFINITION + load + use)
    run_python(definition, *files, cwd=tmp_path)
    assert torch.equal(torch.load(result), changed(X))
    done = run_code("import torch\n" + load, *files, cwd=tmp_path)
    assert done.returncode != 0 and "tests_custom::soft_clip" in done.stderr


def test_from_a_python_pass(net: torch.jit.ScriptModule) -> None:
    """The editor inserts it like PyTorch's own, with the same result as the rule."""

    @register_pass("relu_to_soft_clip", summary="Turn relu into the tests' soft clip.")
    def relu_to_soft_clip(graph, limit: float) -> None:  # type: ignore[no-untyped-def]
        for node in graph.nodes:
            if node.kind == "aten::relu":
                inputs = [node.inputs[0], limit]
                made = graph.insert("tests_custom::soft_clip", inputs, before=node)
                graph.replace(node.output, made.output)
                graph.remove(node)

    try:
        changed = run_pass("relu_to_soft_clip", net, options={"limit": 2.0})
        assert torch.equal(changed(X), RULE.apply(net).module(X))
    finally:
        passes.remove("relu_to_soft_clip")


IR = "graph(%x):\n  %y = aten::relu(%x)\n  return (%y)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tests_custom::soft_clip(%x)", r"soft_clip does not take \(Tensor\); it is .*float limit"),
        ("tests_custom::soft_clip(%x, %x)", r"does not take \(Tensor, Tensor\)"),
        ("tests_custom::hard_clip(%x)", "there is no operator tests_custom::hard_clip"),
    ],
)
def test_misfits(net: torch.jit.ScriptModule, call: str, message: str) -> None:
    """The error names the rule, the operator, what it got and takes; nothing has changed."""
    before = str(net.graph)
    rule = RewriteRule("misfit", IR, f"graph(%x):\n  %y = {call}\n  return (%y)")
    with pytest.raises((JitPassesError, PassError), match=message) as caught:
        rule.apply(net)
    assert "'misfit'" in str(caught.value)
    assert str(net.graph) == before


def test_misfit_of_a_function(net: torch.jit.ScriptModule) -> None:
    """TorchScript sees it when the rule is compiled, and the error shows the line."""

    def wrong(x: Tensor) -> Tensor:
        return torch.ops.tests_custom.soft_clip(x)

    rule = RewriteRule("misfit", pattern, wrong)
    with pytest.raises(JitPassesError, match=r"(?s)'misfit': the replacement.*limit.*soft_clip\(x"):
        rewrite(net, [rule])


def test_result_of_another_type(net: torch.jit.ScriptModule) -> None:
    """A replacement whose result does not fit where it goes is refused, and the model stays."""
    rule = RewriteRule("shape", IR, "graph(%x):\n  %y : int = aten::dim(%x)\n  return (%y)")
    with pytest.raises(PassError, match="'shape'"):
        rule.apply(net)
    assert net(X).shape == (2, 3)


def test_deep_copies_and_files_of_the_result(net: torch.jit.ScriptModule) -> None:
    """In this process the file gives the same, to the bit."""
    changed = RULE.apply(net).module
    buffer = io.BytesIO()
    torch.jit.save(changed, buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(X), changed(X))
