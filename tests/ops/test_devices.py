"""The forms of operators for devices without kernels of their own, on the CPU: the same bits.

Where there is a GPU, the same models are calibrated and trained on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import jit_passes
from jit_passes.stages.gptq import Grid, gptq
from tests.qat_nets import makes_scales_positive
from tests.quantizing import seeded

OTHERS = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)  # has no kernels of ours
# Look for ranges in histograms, which are on the CPU.
SEARCHES = ("search_range_",)


class Elsewhere(TorchDispatchMode):
    """Takes the kernels for other devices, for all operators of the dialect."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "jit_passes" and not func._opname.startswith(SEARCHES):
            self.taken.add(func._opname)
            return func.redispatch(OTHERS, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_all_operators_have_a_form_for_other_devices() -> None:
    names = [name for name in _names() if not name.startswith(SEARCHES)]
    assert len(names) > 30
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    for name in names:
        for device in ("CUDA", "XPU", "PrivateUse1"):
            assert has(f"jit_passes::{name}", device), f"{name} on {device}"


def _names() -> Iterator[str]:
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "jit_passes":
            yield name


class Net(nn.Module):
    """A convolution with a batch norm, a sum, a table of a function and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.side = nn.Conv2d(3, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x))) + torch.sigmoid(self.side(x))
        return self.head(y.mean([2, 3]))


def batches(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (2 ** torch.arange(count)).tolist()  # ranges, and so bins, grow
    return [torch.randn(3, 3, 9, 9, generator=generator) * size for size in sizes]


def quantized(config: Any, mode: str) -> dict[str, Any]:
    """Return all that the stages compute: states of observers, weights, results."""
    model = torch.jit.script(seeded(Net))
    prepared = jit_passes.prepare(model, target="reference", config=config, mode=mode)
    if mode == "static":
        jit_passes.calibrate(prepared, batches(), progress=False)
    reference = jit_passes.convert(prepared)
    with torch.no_grad():
        results = {f"result {i}": reference(x) for i, x in enumerate(batches())}
    return {**prepared.state_dict(), **reference.state_dict(), **results}


def same(expected: dict[str, Any], found: dict[str, Any]) -> None:
    assert list(expected) == list(found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def test_rounding_of_weights() -> None:
    """Both forms give equal codes."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 5, 6, generator=generator)
    x = torch.randn(2, 40, 6, generator=generator)
    grid = Grid(torch.full((2, 5, 1), 0.3), torch.zeros(2, 5, 1), -8, 7)
    gram = x.transpose(1, 2) @ x
    expected = gptq(weight, gram, grid)
    with Elsewhere() as mode:
        assert torch.equal(gptq(weight, gram, grid), expected)
    assert "round_with_feedback" in mode.taken


METHODS = {
    "histogram": ("observe_histogram", "observe_constant", "quantize", "dequantize"),
    "min_max": ("observe_min_max", "observe_per_channel_min_max", "quantize_per_channel"),
    "moving_average": ("observe_moving_average", "dequantize_per_channel"),
}


@pytest.mark.parametrize("method", METHODS)
def test_calibration(method: str) -> None:
    """Both forms give equal ranges, histograms, codes and results."""
    tensors = {"input": {"calibration": method}, "output": {"calibration": method}}
    config = {"version": 1, "global": tensors}
    expected = quantized(config, "static")
    with Elsewhere() as mode:
        found = quantized(config, "static")
    assert mode.taken >= set(METHODS[method])
    same(expected, found)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_modes_without_data(mode: str) -> None:
    expected = quantized(None, mode)
    with Elsewhere() as elsewhere:
        found = quantized(None, mode)
    assert "dequantize_per_channel" in elsewhere.taken
    same(expected, found)


def profiled() -> jit_passes.Profile:
    return jit_passes.profile(torch.jit.script(seeded(Net)), batches(), progress=False)


def test_profile() -> None:
    expected = profiled()
    with Elsewhere() as mode:
        assert profiled() == expected
    assert "observe_profile" in mode.taken


def trained(method: str) -> dict[str, Any]:
    """Return the state after three steps, and the results of the reference model."""
    model = torch.jit.script(seeded(Net).train())
    qat = jit_passes.prepare_qat(model, fake_quantizer=method, bits=4)
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    for x in batches(3):
        optimizer.zero_grad()
        qat(x).square().mean().backward()
        optimizer.step()
    reference = jit_passes.convert(qat.eval())
    with torch.no_grad():
        return {**qat.state_dict(), "result": reference(batches(1)[0])}


@makes_scales_positive
@pytest.mark.parametrize("method", ["moving_average", "lsq", "lsq_plus", "tqt"])
def test_training(method: str) -> None:
    """Kernels sum gradients of scales in double, operators in float32: 1e-5 of the values."""
    expected = trained(method)
    with Elsewhere() as mode:
        found = trained(method)
    assert mode.taken
    assert list(expected) == list(found)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("operator", ["observe_histogram", "observe_profile", "observe_min_max"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(operator: str, bad: float) -> None:
    """Both forms give equal states, and equal errors, which name the value."""
    states = []
    for context in (nullcontext(), Elsewhere()):
        low, high = torch.inf, -torch.inf
        state = [torch.tensor([low, high, low, high, 0.0, 0.0], dtype=torch.float64)]
        if operator != "observe_min_max":
            state.append(torch.zeros(64, dtype=torch.int64))
        x = torch.tensor([1.0, bad, 2.0])
        with context:
            try:
                getattr(torch.ops.jit_passes, operator)(x, *state, "here", "")
                error = ""
            except ValueError as raised:
                error = str(raised)
        assert (
            "the value 'here' holds a NaN or an infinity" in error
        ) or operator == "observe_profile"
        states.append((error, [tensor.tolist() for tensor in state]))
    assert repr(states[0]) == repr(states[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu() -> None:
    """Calibrated where the model is: the same ranges and codes; sums of products differ in bits."""
    model, x = seeded(Net), batches()
    expected = jit_passes.prepare(torch.jit.script(model), target="reference", mode="static")
    jit_passes.calibrate(expected, x, progress=False)
    prepared = jit_passes.prepare(torch.jit.script(model.cuda()), target="reference", mode="static")
    jit_passes.calibrate(prepared, [batch.cuda() for batch in x], progress=False)
    for name, value in expected.state_dict().items():
        found = prepared.state_dict()[name].cpu().double()
        torch.testing.assert_close(found, value.double(), rtol=1e-3, atol=3, msg=name)
    reference = jit_passes.convert(prepared)
    with torch.no_grad():
        wanted = jit_passes.convert(expected)(x[0])
        torch.testing.assert_close(reference(x[0].cuda()).cpu(), wanted, rtol=0, atol=0.05)
