"""Embeddings of plans, whose tables stay codes: plans, files, and whole models."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.report.cost import file_size
from tests.compare import sqnr
from tests.plans import Q, plan_of, plans_in, traced
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

ROWS = 37
# Columns and groups of a row.
SIZES = [(1, 1), (2, 1), (7, 1), (33, 3), (64, 1), (64, 2), (66, 3), (96, 3), (300, 1), (320, 10)]


class Table(nn.Module):
    """Picks rows of codes, and takes all from 0."""

    def __init__(
        self, columns: int, groups: int, bits: int, dtype: torch.dtype, shifts: bool
    ) -> None:
        super().__init__()
        low = -(2 ** (bits - 1)) if dtype == torch.int8 else 0
        codes = torch.randint(low, low + 2**bits, (ROWS, columns)).to(dtype)
        codes[0, 0], codes[-1, -1] = low, low + 2**bits - 1
        self.codes = nn.Parameter(codes, requires_grad=False)
        shape = (ROWS, groups) if groups > 1 else (ROWS,)
        middle = 2 ** (bits - 1) + low
        zeros = torch.randint(low, low + 2**bits, shape) if shifts else torch.full(shape, middle)
        self.register_buffer("scales", torch.rand(shape).double() * 0.1)
        self.register_buffer("zero_points", zeros)

    def forward(self, index: Tensor) -> Tensor:
        table = Q.dequantize_per_channel(self.codes, self.scales, self.zero_points, 0)
        return torch.neg(F.embedding(index, table))


@pytest.mark.parametrize("shifts", [True, False])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "groups"), SIZES)
def test_against_pytorch(
    columns: int, groups: int, bits: int, dtype: torch.dtype, shifts: bool
) -> None:
    """The bits of dequantize and embedding, for indices of all shapes, dtypes and strides."""
    region = traced(Table(columns, groups, bits, dtype, shifts), torch.zeros(2, 3).long())
    plan = plan_of(region)
    (state,) = (o for o in plan.__getstate__()[0][2] if o[0][0] == "embedding")
    halves = bits == 4 and columns % 2 == 0
    assert state[2][0].shape == (ROWS, columns // 2 if halves else columns)
    off_middle = shifts or (dtype == torch.uint8 and bits == 4 and not halves)  # of 8 bits
    assert (state[2][2].numel() > 0) == off_middle
    for shape in ((), (1,), (ROWS,), (3, 5), (2, 3, 4), (0,), (2, 0)):
        index = torch.randint(ROWS, shape)
        for given in (
            index,
            index.int(),
            index.t() if index.dim() == 2 else index[..., None][..., 0],
        ):
            assert torch.equal(plan.run([given])[0], region(given))
    every = torch.arange(2 * ROWS)[::2] % ROWS
    assert torch.equal(plan.run([every])[0], region(every))


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_rows_that_are_not_there(wrong: int) -> None:
    """An error, and the next call is right."""
    region = traced(Table(8, 1, 4, torch.int8, False), torch.zeros(2, 3).long())
    plan = plan_of(region)
    index = torch.randint(ROWS, (4, 5))
    bad = index.clone()
    bad[2, 3] = wrong
    said = f"takes row {wrong}, and its table has rows 0 to {ROWS - 1}"
    with pytest.raises(IndexError, match=said):
        plan.run([bad])
    assert torch.equal(plan.run([index])[0], region(index))


def test_files() -> None:
    region = traced(Table(64, 2, 4, torch.int8, True), torch.zeros(2, 3).long())
    plan, index = plan_of(region), torch.randint(ROWS, (4, 5))
    state = plan.__getstate__()[0]
    assert torch.equal(restored(state).run([index])[0], region(index))
    refused, ran = mutate(plan, index, 300)
    assert refused > 50 and ran > 5


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 64), nn.Embedding(32, 64)
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 96)

    def forward(self, index: Tensor) -> Tensor:
        x = self.words(index) + self.places(torch.arange(index.shape[1]))
        return self.linear(self.norm(x))


@pytest.mark.parametrize(
    "weight", [{"bits": 4, "group_size": 32}, {"bits": 4}, {"bits": 8}], ids=str
)
def test_a_decoder_is_one_plan(weight: dict[str, int]) -> None:
    torch.manual_seed(0)
    model, index = Decoder().eval(), torch.randint(1000, (2, 8))
    config: dict[str, Any] = {"version": 1, "global": {"weight": weight}}
    script = torch.jit.trace(model, index)
    options: dict[str, Any] = {"mode": "weight_only", "config": config, "progress": False}
    lowered = jit_passes.quantize_script(script, target="x86", **options)
    (plan,) = plans_in(lowered)
    assert kinds_of(plan).count("embedding") == 2
    assert "aten::embedding" not in str(lowered.graph)
    reference = jit_passes.quantize_script(script, target="reference", **options)
    with torch.no_grad():
        for given in (index, torch.randint(1000, (1, 1)), torch.randint(1000, (3, 32))):
            wanted = reference(given)
            assert (lowered(given) - wanted).abs().max() <= 2e-6 * wanted.abs().max()
            assert sqnr(model(given), lowered(given)) > (35 if weight["bits"] == 8 else 15)
    assert file_size(lowered) < (0.35 if weight["bits"] == 8 else 0.25) * file_size(script)
    buffer = io.BytesIO()
    torch.jit.save(lowered, buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(index), lowered(index))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.linear = nn.EmbeddingBag(100, 32), nn.Linear(32, 8)

    def forward(self, index: Tensor) -> Tensor:
        return self.linear(self.bag(index))


def test_bags_stay_outside() -> None:
    torch.manual_seed(0)
    model, index = Bag().eval(), torch.randint(100, (3, 5))
    script = torch.jit.trace(model, index)
    lowered = jit_passes.quantize_script(script, target="x86", mode="weight_only", progress=False)
    assert [row.dtype for row in jit_passes.coverage(lowered)] == ["int8", "int8"]
    assert sqnr(model(index), lowered(index)) > 30
