"""Whole models train with quantization and convert: those of tests/models, random and real ones."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from benchmarks.models.mobilenet_v2 import MobileNetV2
from benchmarks.models.mobilenet_v3 import BlockConfig, MobileNetV3
from benchmarks.models.resnet import BasicBlock, ResNet
from jit_passes import JitPassesError
from jit_passes.targets import Stock
from jit_passes.testing.check import random_module
from jit_passes.training.prepare import prepare_qat
from tests.compare import call, clone, leaves
from tests.models import BASIC, Case
from tests.processor import VNNI
from tests.qat_nets import METHODS, Model, batch, compiled, makes_scales_positive, seeded
from tests.seeds import in_turns, seeds

# Of the largest value: steps that round the other way, of grids that LSQ begins with 2 mean|x| /
# sqrt(127), which is one of few steps for a value of a narrow spread.
STEPS = 0.15
REFUSED = ("nothing can be quantized", "no parameters to train")


def tensors(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors in what a module returns."""
    return (
        v for _, v in leaves(value)
        if isinstance(v, Tensor) and v.is_floating_point() and v.numel()
    )  # fmt: skip


# Nothing is lowered, so what it has should not depend on the processor.
TARGET = Stock(reduce_range=False)


def step(model: Model, args: Any, method: str, optimizer: torch.optim.Optimizer) -> None:
    """One step of training."""
    optimizer.zero_grad()
    outputs = [v for v in tensors(call(model, clone(args), method)) if v.requires_grad]
    assert all(bool(v.isfinite().all()) for v in outputs)
    if outputs:
        torch.stack([v.sum() for v in outputs]).sum().backward()
    optimizer.step()


def trains(model: Model, args: Any, method: str) -> bool:
    """Say whether a float model can be trained for two steps."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        try:
            step(model, args, method, optimizer)
        except RuntimeError:
            return False
        gradients = (p.grad for p in model.parameters() if p.grad is not None)
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            return False
    return True


def check(model: Model, args: Any, trainer: str, method: str = "forward") -> float | None:
    """Prepare, train, convert; the largest difference, of the largest value. None: refused."""
    try:
        prepared = prepare_qat(model, fake_quantizer=trainer, target=TARGET, method=method)
    except JitPassesError as error:
        if not VNNI and "is slower than float for these groups and window" in str(error):
            pytest.skip("PyTorch has a fast kernel with VNNI only")
        assert any(text in str(error) for text in REFUSED), error
        return None
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-4)
    for _ in range(2):
        step(prepared, args, method, optimizer)
    prepared.eval()
    with torch.no_grad():
        reference = jit_passes.convert(prepared)  # both count on from here
        expected = call(prepared, clone(args), method)
        found = call(reference, clone(args), method)
    worst = 0.0
    for one, other in zip(tensors(expected), tensors(found), strict=True):
        assert bool(one.isfinite().all())
        worst = max(worst, float((one - other).abs().max() / (one.abs().max() + 1e-6)))
    return worst


# Modules whose float versions do not train, or not twice: an error, or a gradient that is NaN.
FLOAT_FAILS = {
    "inplace_ChunkWrite": "autograd refuses it",
    "inplace_ListOfViews": "autograd refuses it",
    "inplace_OutArgument": "autograd refuses it",
    "state_cache": "its buffers keep the first graph",
    "state_moving_mean": "its buffer keeps the first graph",
    "state_recurrent": "its state keeps the first graph",
    "state_ring": "it writes the place that its gradient reads from",
}
# Its training ends in NaN, on some processors in float too: the power of a pool of next to nothing.
LEFT_OUT = {"then_lp_pool"}
TRAINED = [case for case in BASIC if case.name not in LEFT_OUT]


@pytest.mark.parametrize(
    ("case", "trainer"),
    in_turns(TRAINED, METHODS, few=2),
    ids=lambda part: getattr(part, "name", part),
)
def test_odd_models(case: Case, trainer: str) -> None:
    """Each model by both frontends, with two of the trainers by default."""
    frontend = case.frontends[METHODS.index(trainer) % len(case.frontends)]
    model = case.shared(frontend)
    data = case.arguments(4, seed=1)
    if case.name in FLOAT_FAILS:
        assert not trains(case.build(frontend), data, case.method)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worst = check(model, data, trainer, case.method)
    assert (worst is None) <= (case.floor is None), "refused"
    assert worst is None or worst <= STEPS


@pytest.mark.parametrize("trainer", METHODS)
def test_random_modules(trainer: str) -> None:
    """Both frontends and modes of a dozen modules, or two."""
    quantized, count = 0, len(seeds(24, few=12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(count):
            drawn = random_module(index, seed=3)
            for frontend in drawn.frontends:
                training = (index + METHODS.index(trainer)) % 2 == 0
                model = drawn.compile(frontend, training=training, dtype=torch.float32)
                try:
                    worst = check(model, drawn.arguments(torch.float32), trainer)
                except Exception as error:
                    error.add_note(
                        f"{drawn.name}, {frontend}, training={training}:\n{drawn.source}"
                    )
                    raise
                assert worst is None or worst <= STEPS, (drawn.name, frontend, worst)
                quantized += worst is not None
    assert quantized >= 5 * count // 6


NETS = {
    "resnet": lambda: small_resnet(),
    "mobilenet_v2": lambda: MobileNetV2(classes=10),
    "mobilenet_v3": lambda: MobileNetV3(
        [BlockConfig(3, 16, 16, False, False, 1), BlockConfig(5, 48, 24, True, True, 2),
         BlockConfig(5, 72, 24, True, True, 1)], last_hidden=32, classes=10,
    ),
}  # fmt: skip


def small_resnet() -> nn.Module:
    """ResNet-10, its residual branches starting as zeros."""
    model = ResNet(BasicBlock, [1, 1, 1, 1], classes=10)
    for block in model.modules():
        if isinstance(block, BasicBlock):
            nn.init.zeros_(block.bn2.weight)
    return model


@makes_scales_positive
@pytest.mark.parametrize("origin", ["scripted", "traced_in_training"])
@pytest.mark.parametrize("name", NETS)
def test_real_nets(name: str, origin: str) -> None:
    """Squeeze-and-excitation, hardswish and residuals: a step, an int8 model that agrees."""
    eager = seeded(NETS[name]())
    x = batch(4, 3, 64, 64)
    trainer = "lsq" if origin == "scripted" else "tqt"
    model = prepare_qat(compiled(eager, x, origin), fake_quantizer=trainer).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        step(model, (x,), "forward", optimizer)
    moved = [n for n, v in model.named_parameters() if not torch.equal(v, before[n])]
    assert any(n.endswith(("weight_scale", "weight_log2_threshold")) for n in moved)
    model.eval()
    with torch.no_grad():
        expected = model(x)
        lowered = jit_passes.lower(jit_passes.convert(model))
        # How gradients are summed hangs on the threads: a code next to a tie may be one step away.
        apart = expected.unique().diff().tolist()  # none where all results are one
        most = max(STEPS * float(expected.abs().max()), 1.001 * min(apart, default=0.0))
        assert (lowered(x) - expected).abs().max() <= most
    rows = jit_passes.coverage(lowered)
    assert sum(row.dtype == "int8" for row in rows) == len(rows)
