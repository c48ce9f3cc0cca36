"""LSTM and GRU layers of `fixed_point`: unrolled, with one format for a value of all steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, GraphView, JitPassesError, JitPassesWarning, Pipeline
from jit_passes.export.c.reading import read_program
from jit_passes.passes.pipeline import FOLD_NUMBERS
from jit_passes.stages.normalize import normalize
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.functions import quantize_moved
from tests.advice import projections, traced_branches
from tests.export.c.test_c import check
from tests.integer_oracle import Oracle
from tests.targets.fixed_point.test_fixed_point import ROUNDED, Watch

STEPS, BATCH, INPUT, HIDDEN = 3, 2, 6, 8


class Layers(nn.Module):
    """Recurrent layers alone; with `given`, states come in."""

    def __init__(self, kind: str, given: bool = False, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(INPUT, HIDDEN, **options)
        self.lstm, self.given = kind == "LSTM", given

    @property
    def states(self) -> int:
        return self.layers.num_layers * (2 if self.layers.bidirectional else 1)

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        if not self.given:
            y, last = self.layers(x)
        else:
            y, last = self.layers(x, states if self.lstm else states[0])
        return (y, *last) if self.lstm else (y, last)


class Tagger(nn.Module):
    """A tag for each step."""

    def __init__(self, kind: str = "LSTM", **options: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, INPUT)
        self.layers = getattr(nn, kind)(INPUT, HIDDEN, batch_first=True, **options)
        self.last = nn.Linear(HIDDEN * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layers(torch.relu(self.first(x)))
        tags: Tensor = self.last(y)
        return tags


def data(size: tuple[int, ...] = (BATCH, STEPS, 4), count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, generator=generator) * 2 for _ in range(count)]


def models(module: nn.Module, target: FixedPoint, script: bool = False, **options: Any) -> Any:
    """Return the network in TorchScript, the reference model and the lowered one."""
    torch.manual_seed(3)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.RNNBase):
            part.reset_parameters()
    module.eval()
    made = torch.jit.script(module) if script else torch.jit.trace(module, data(count=1)[0])
    prepared = jit_passes.prepare(made, target=target, **options)
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return made, reference, jit_passes.lower(reference)


def tabled(reference: Any) -> Any:
    """Return a reference model with tables in place of functions, of parts of a tensor too."""
    steps = (FOLD_NUMBERS, quantize_moved, "fold_lookup_tables")
    return Pipeline("tables", steps).run(_C.clone(reference._c, "forward")).module


# Layers, directions, batch first, biases, states that come in.
OPTIONS = [(1, 0, 1, 1, 0), (1, 0, 0, 1, 1), (2, 1, 1, 0, 0), (2, 1, 0, 1, 1), (3, 0, 1, 1, 0)]


@traced_branches
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("steps", [1, STEPS])
def test_steps_are_the_layers(kind: str, steps: int) -> None:
    """In double precision the steps are PyTorch's operator, in all forms of it."""
    forms = FixedPoint(steps=steps).capability.forms
    torch.manual_seed(0)
    for layers, both, first, bias, given in OPTIONS:
        options = {"bidirectional": bool(both), "batch_first": bool(first), "bias": bool(bias)}
        module = Layers(kind, bool(given), num_layers=layers, **options).double().eval()
        size = (BATCH, steps, INPUT) if first else (steps, BATCH, INPUT)
        states = torch.randn(2, module.states, BATCH, HIDDEN, dtype=torch.float64)
        x = (torch.randn(size, dtype=torch.float64), *(states if given else ()))
        x = x[: 2 + module.lstm]
        traced = torch.jit.trace(module, x)
        canonical = normalize(traced._c).module
        unrolled = Pipeline("unroll", forms).run(canonical).module
        kinds = {node.kind for node in GraphView.of(unrolled).nodes}
        assert not kinds & {"aten::lstm", "aten::gru"} and "aten::linear" in kinds
        for own, expected in zip(
            torch.jit._recursive.wrap_cpp_module(unrolled)(*x), module(*x), strict=True
        ):
            torch.testing.assert_close(own, expected)


@traced_branches
@pytest.mark.parametrize(
    ("kind", "requantization", "rounding"),
    [
        ("LSTM", "multiplier", "half_away"),
        ("GRU", "multiplier", "half_even"),
        ("LSTM", "shift", "half_even"),
        ("GRU", "shift", "half_even"),
        ("LSTM", "multiplier", "double_round"),
    ],
)
def test_equals_the_oracle(kind: str, requantization: str, rounding: str) -> None:
    target = FixedPoint(requantization, rounding, steps=STEPS)
    module = Tagger(kind, num_layers=2)
    traced, reference, lowered = models(module, target)
    x = data(count=5)[-1]
    with Watch() as watch:
        found = lowered(x)
    assert len(watch.found) <= 9 + len(ROUNDED[rounding]) and set(watch.found) <= {
        *("mul", "nan_to_num", "clamp", "_to_copy", "add", "sub", *ROUNDED[rounding]),
    }  # the input is quantized, and the last codes become floats
    assert torch.equal(found, Oracle(tabled(reference), rounding)(x))
    assert len(found.unique()) > 8
    assert float((found - traced(x)).detach().abs().max()) < 0.1
    if (requantization, rounding) == ("shift", "half_even"):
        assert torch.equal(found, reference(x))


@traced_branches
@pytest.mark.parametrize(
    ("kind", "script", "both"), [("LSTM", False, False), ("GRU", True, False), ("RNN", False, True)]
)
def test_gcc_gives_the_codes(kind: str, script: bool, both: bool, tmp_path: Path) -> None:
    rounding = "double_round" if kind == "GRU" else "half_even"
    target = FixedPoint(rounding=rounding, steps=STEPS)
    _, _, lowered = models(Tagger(kind, bidirectional=both), target, script)
    first, *others = data(count=2)
    jit_passes.export_c(lowered, tmp_path, first, others)
    check(tmp_path, lowered(first).numel(), 2)
    lines = (tmp_path / "model.c").read_text().splitlines()
    arrays = [line for line in lines if line.startswith("static const") and "_weight" in line]
    # Of the linears; of input and state for all steps, in each direction; and b_hn of a GRU.
    assert len(arrays) == 2 + {"LSTM": 2, "GRU": 2 + 1, "RNN": 2 * 2}[kind]
    with pytest.raises(RuntimeError, match="unflatten"):
        lowered(torch.randn(BATCH, STEPS + 1, 4))


@traced_branches
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_steps_have_one_format(kind: str) -> None:
    """Each step of the state is computed as those before, and their sequence is no sum."""
    _, _, lowered = models(Tagger(kind), FixedPoint(steps=STEPS))
    program, _, _ = read_program(lowered, (data(count=1)[0],), "forward")
    linears = [call for call in program.calls if call.kernel == "linear"]
    own = [call.arguments["r"] for call in linears[2:-1]]  # of the state
    assert len(own) == STEPS - 1
    assert all(rescaling.values == own[0].values for rescaling in own)
    scales = {(call.reads[0].scale, call.writes.scale) for call in linears[2:-1]}
    assert len(scales) == 1
    assert "requantize" not in {call.kernel for call in program.calls}


@projections
@traced_branches
def test_refusals() -> None:
    x = data(count=1)[0]
    traced = torch.jit.trace(Tagger().eval(), x)
    told = str(jit_passes.inspect(traced, target="fixed_point"))
    assert "its number of steps is not known: take FixedPoint(steps=...)" in told
    with pytest.warns(JitPassesWarning, match=r"'layers:lstm' \(its number of steps is not known"):
        models(Tagger(), FixedPoint())
    projected = torch.jit.trace(Layers("LSTM", proj_size=4).eval(), torch.randn(STEPS, 1, INPUT))
    assert "it has a projection" in str(jit_passes.inspect(projected, target=FixedPoint(steps=5)))
    with pytest.raises(JitPassesError, match="steps is a whole number from 1 on, or None, not 0"):
        FixedPoint(steps=0)


@traced_branches
def test_sequences_of_another_length() -> None:
    """The error says which length the target takes."""
    model = torch.jit.trace(Layers("GRU").eval(), torch.randn(STEPS, BATCH, INPUT))
    wrong = torch.randn(STEPS + 1, BATCH, INPUT)
    with pytest.raises(JitPassesError, match=f"takes sequences of {STEPS} steps alone"):
        jit_passes.quantize_script(model, [wrong], target=FixedPoint(steps=STEPS), progress=False)
