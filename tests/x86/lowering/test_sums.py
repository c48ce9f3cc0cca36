"""Sums with the result of a convolution or linear, which the target x86 rounds once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView
from jit_passes.configuration.options import LayerOptions, TensorOptions
from jit_passes.observers import MinMax
from jit_passes.targets import X86
from jit_passes.training.prepare import prepare_qat
from tests.advice import traced_branches
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, traced
from tests.qat_nets import makes_scales_positive
from tests.x86.program.test_state import mutate, restored

IMAGES = (2, 3, 12, 10)
ROWS = (3, 5, 24)


class Sum(nn.Module):
    """Layers `a` and `b` between two others, with what a function makes of these."""

    def __init__(self, function: Callable[..., Tensor], kernel: int, dims: int) -> None:
        super().__init__()
        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        window = {"kernel_size": kernel, "padding": kernel // 2} if dims else {}

        def layer(inputs: int, outputs: int) -> nn.Module:
            return kinds[dims](inputs, outputs, **window)

        self.first, self.last = layer(24 if dims == 0 else 3, 20), layer(20, 5)
        self.a, self.b = layer(20, 20), layer(20, 20)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.function(x, self.a, self.b))


def mean(x: Tensor) -> Tensor:
    """Over an axis that is not that of the channels."""
    return x.mean(1 if x.size(-1) == 20 else -1, keepdim=True)


# The computation, and the layers that are not rounded.
SUMS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "sum": (lambda x, a, b: a(x) + x, "a"),
    "second operand": (lambda x, a, b: x + a(x), "a"),
    "clipped": (lambda x, a, b: F.relu(a(x) + x), "a"),
    "function of a sum": (lambda x, a, b: F.hardswish(a(x) + x), "a"),
    "difference": (lambda x, a, b: a(x) - x, "a"),
    "other difference": (lambda x, a, b: F.relu6(x - a(x)), "a"),
    "alpha": (lambda x, a, b: torch.add(x, a(x), alpha=-0.3), "a"),
    "the later one": (lambda x, a, b: b(F.relu(x)) + a(x), "a"),
    "the later one, in front": (lambda x, a, b: F.relu(a(x).add(b(x))), "b"),
    "one after the other": (lambda x, a, b: b(y := F.relu(a(x) + x)) + y, "ab"),
    "a clip in between": (lambda x, a, b: F.relu(a(x)) + x, ""),
    "a function in between": (lambda x, a, b: F.hardswish(a(x)) + x, ""),
    "moved": (lambda x, a, b: a(x).contiguous() + x, ""),
    "with a number": (lambda x, a, b: F.hardswish(a(x) + 0.7), ""),
    "with itself": (lambda x, a, b: (y := a(x)) + y, ""),
    "read twice": (lambda x, a, b: (y := a(x)) + x - b(y), "b"),
    "product": (lambda x, a, b: a(x) * x, ""),
    "broadcast": (lambda x, a, b: a(x) + mean(x), "a"),
    "broadcast to the other": (lambda x, a, b: a(mean(x)) + F.relu(x), "a"),
}


def converted(model: nn.Module, shape: tuple[int, ...], **options: Any) -> Any:
    options = {"target": "x86", **options}
    script = torch.jit.trace(model.eval(), torch.randn(shape), check_trace=False)
    prepared = jit_passes.prepare(script, **options)
    batches = [torch.randn(shape) for _ in range(3)]
    return jit_passes.convert(jit_passes.calibrate(prepared, batches, progress=False))


def unrounded(model: Any) -> str:
    """Return the layers of which no result, nor a clip of it, is quantized."""
    found = ""
    for node in GraphView.of(model).nodes:
        name = node.name.split(":")[0]
        if node.traits.weighted is not None and name in ("a", "b"):
            users = [user for user, _ in node.output.uses]
            users += [u for user in users if "relu" in user.kind for u, _ in user.output.uses]
            found += "" if any(user.kind == "jit_passes::quantize" for user in users) else name
    return "".join(sorted(found))


def assert_one_region(reference: Any, x: Tensor, steps: float) -> Any:
    """All of the model is a plan, with the results of the reference model but for some steps."""
    lowered = jit_passes.lower(reference)
    partition = jit_passes.partition(reference, "x86")
    assert not partition.refused, str(partition)
    assert len(partition.regions) == 1
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))
    *_, last = jit_passes.encodings_of(reference).activations
    with torch.no_grad():
        apart = (reference(x) - lowered(x)).abs().max() / last.scale[0]
    assert apart <= steps
    return plan_of(partition.regions[0].module)


@traced_branches
@pytest.mark.parametrize("kernel,dims", [(1, 0), (3, 1), (1, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize("name", SUMS)
def test_what_is_rounded(name: str, kernel: int, dims: int) -> None:
    function, expected = SUMS[name]
    torch.manual_seed(0)
    shape = (2, 3, *(6,) * dims) if dims else ROWS
    reference = converted(Sum(function, kernel, dims), shape)
    assert unrounded(reference) == expected
    # A code of the sum is a step apart at a tie, and so is one behind it. Where operands broadcast,
    # many are, since that takes one rounding more.
    broadcasts = name.startswith("broadcast")
    plan = assert_one_region(reference, torch.randn(shape), 6.01 if broadcasts else 2.01)
    kernels = [kernel for _, kernel, *_ in plan.profile([torch.randn(shape)])]
    assert sum(name.endswith(" + add") for name in kernels) == len(expected) * (not broadcasts)


def test_other_targets_round() -> None:
    torch.manual_seed(0)
    model = Sum(SUMS["sum"][0], 3, 2)
    for target in ("reference", "stock"):
        assert unrounded(converted(model, IMAGES, target=target)) == ""


@pytest.mark.parametrize("by", ["layer", "value"])
def test_a_rule_for_the_result(by: str) -> None:
    """The rule says how a result is quantized, so it is."""
    torch.manual_seed(0)
    options = TensorOptions(calibration=MinMax())
    model, quantizer = Sum(SUMS["one after the other"][0], 3, 2), X86().quantizer()
    if by == "layer":
        quantizer = quantizer.set_module_name("a", LayerOptions(output=options))
    else:
        script = torch.jit.trace(model.eval(), torch.randn(IMAGES))
        prepared = jit_passes.prepare(script, target="x86")
        (name,) = (n.output.name for n in GraphView.of(prepared).nodes if n.name == "a:conv2d")
        quantizer = quantizer.set_value(name, options)
    reference = converted(model, IMAGES, quantizer=quantizer)
    assert unrounded(reference) == "b"
    plan = assert_one_region(reference, torch.randn(IMAGES), 2.01)
    assert [kernel for _, kernel, *_ in plan.profile([torch.randn(IMAGES)])].count("add") == 1


def test_a_rule_for_another_tensor() -> None:
    torch.manual_seed(0)
    options = LayerOptions(weight=TensorOptions(channelwise=False))
    quantizer = X86().quantizer().set_module_name("a", options)
    assert unrounded(converted(Sum(SUMS["sum"][0], 3, 2), IMAGES, quantizer=quantizer)) == "a"


class Branch(nn.Module):
    """A sum in another block than the convolution that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor, adds: bool) -> Tensor:
        x = self.first(x)
        y = self.a(x)
        return self.last(y + x) if adds else self.last(x)


def test_a_sum_in_a_branch() -> None:
    torch.manual_seed(0)
    prepared = jit_passes.prepare(torch.jit.script(Branch().eval()), target="x86")
    for adds in (True, False):
        prepared(torch.randn(IMAGES), adds)
    reference = jit_passes.convert(prepared)
    assert unrounded(reference) == ""
    lowered, x = jit_passes.lower(reference), torch.randn(IMAGES)
    for adds in (True, False):
        assert sqnr(reference(x, adds), lowered(x, adds)) > 40


@makes_scales_positive
def test_training() -> None:
    """Training rounds where the converted model does."""
    torch.manual_seed(0)
    model = Sum(SUMS["one after the other"][0], 3, 2).train()
    prepared = prepare_qat(torch.jit.trace(model, torch.randn(IMAGES)), target="x86")
    optimizer = torch.optim.SGD(prepared.parameters(), 1e-3)
    for _ in range(3):
        prepared(torch.randn(IMAGES)).square().mean().backward()
        optimizer.step()
    reference = jit_passes.convert(prepared.eval())
    assert unrounded(reference) == "ab"
    x = torch.randn(IMAGES)
    assert sqnr(prepared(x), reference(x)) > 80
    assert_one_region(reference, x, 2.01)


class Block(nn.Module):
    """A sum with one rounding, and the same one with two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Weighted(nn.Conv2d(6, 6, 3, padding=1))
        self.x, self.y, self.z = Grid(0.1, 120), Grid(0.31, 110), Grid(0.3, 130)

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        return self.z(self.layer(x) + x)


def test_state_of_a_sum() -> None:
    """Two inputs and two factors come together; mutated states never crash."""
    torch.manual_seed(0)
    x = torch.randn(2, 6, 7, 9) * 5
    plan = plan_of(traced(Block(), x))
    state = plan.__getstate__()[0]
    (index,) = (i for i, op in enumerate(state[2]) if op[0][0] == "convolution")
    kind, numbers, tensors = state[2][index]
    assert len(numbers[0]) == 2
    assert tensors[3].tolist() == [1, 1]
    assert torch.equal(restored(state).run([x])[0], plan.run([x])[0])
    for other, message in (
        ((kind, [numbers[0][:1], *numbers[1:]], tensors), "an operand and factors"),
        ((kind, numbers, tensors[:3]), "an operand and factors"),
        ((kind, numbers, [*tensors[:3], torch.ones(3).double()]), "factors are float64, 2"),
        ((kind, numbers, [*tensors[:3], torch.tensor([0.0, 1.0]).double()]), "result is 0"),
        ((kind, numbers, [*tensors[:3], torch.tensor([1e-60, 1.0]).double()]), "result is 0"),
        ((kind, numbers, [*tensors[:3], torch.tensor([1.0, float("inf")]).double()]), "not finite"),
        ((kind, [[numbers[0][0], 7], *numbers[1:]], tensors), "value 7, is not computed"),
    ):
        operators = [*state[2][:index], other, *state[2][index + 1 :]]
        with pytest.raises(RuntimeError, match=message):
            restored((*state[:2], operators))
    refused, ran = mutate(plan, x, 1000)
    assert refused > 300 and ran > 30


class Both(nn.Module):
    """Of two results that are added, neither is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (Weighted(nn.Conv2d(6, 6, 1)) for _ in range(2))
        self.x, self.z = Grid(0.1, 120), Grid(0.3, 130)

    def forward(self, x: Tensor) -> Tensor:
        x = self.x(x)
        return self.z(self.a(x) + self.b(x))


def test_two_results_that_are_not_quantized() -> None:
    """Both are float32, and so is the sum until it is quantized."""
    torch.manual_seed(0)
    net, x = Both(), torch.randn(1, 6, 3, 3)
    plan = plan_of(traced(net, x))
    kinds = [texts[0] for texts, _, _ in plan.__getstate__()[0][2]]
    assert kinds.count("convolution_to_floats") == 2
    step = net.z.scale * 1.001  # a number next to a tie may get the other code
    assert float((plan.run([x])[0] - net(x)).abs().max()) <= step


class Broadcast(nn.Module):
    """The sum broadcasts for some sizes, and not for others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor, q: Tensor) -> Tensor:
        return self.c(torch.relu(self.a(x) + self.b(q)))


@pytest.mark.parametrize("threads", [1, 6])
def test_sizes_that_match_then_sizes_that_broadcast(threads: int) -> None:
    """Weights are released by the first call, and needed again for the second."""
    torch.manual_seed(0)
    x, q = torch.randn(5, 16), torch.randn(1, 16)
    model = torch.jit.trace(Broadcast().eval(), (x, q))
    quantized = jit_passes.quantize_script(model, [(x, q)], target="x86")
    one, several = quantized(x[:1], q), quantized(x, q)
    assert sqnr(model(x, q), several) > 30
    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(quantized, x[: 1 + i % 5], q) for i in range(60)]
        copies = [pool.submit(copy.deepcopy, quantized) for _ in range(6)]
        for i, call in enumerate(calls):
            expected = one if i % 5 == 0 else several[: 1 + i % 5]
            torch.testing.assert_close(call.result(), expected, rtol=0, atol=1e-5)
        for other in copies:
            assert torch.equal(other.result()(x, q), several)
