"""Weights that are quantized alone, on PyTorch's operators, against the reference model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.targets import Stock
from tests.compare import sqnr
from tests.processes import run_python
from tests.processor import bits_here
from tests.specification.test_weight_groups import alone, reference_of

EXACT = Stock(bfloat16_weights=False)
OPTIONS: list[dict[str, Any]] = [
    {"bits": 8},
    {"bits": 4},
    {"bits": 8, "scheme": "affine"},
    {"bits": 4, "scheme": "affine"},
    {"bits": 4, "scheme": "affine", "dtype": "uint8"},
    {"bits": 8, "dtype": "uint8", "scheme": "affine"},
    {"bits": 8, "group_size": 8},
    {"bits": 4, "group_size": 8},
    {"bits": 4, "group_size": 8, "scheme": "affine"},
    {"bits": 4, "group_size": 8, "dtype": "uint8", "scheme": "affine"},
    {"bits": 3, "group_size": 4},
    {"bits": 4, "channelwise": False},
    {"bits": 8, "channelwise": False, "scheme": "affine"},
]


def pair(model: nn.Module, options: dict[str, Any], target: Any = EXACT) -> tuple[Any, Any]:
    """Return the reference model and the lowered one."""
    reference = reference_of(model, alone(**options), target)
    return reference, jit_passes.lower(reference)


def kinds(model: torch.jit.ScriptModule) -> set[str]:
    return {node.kind for node in GraphView.of(model).nodes}


def constants(model: torch.jit.ScriptModule) -> list[Tensor]:
    values = {value.id: value for node in GraphView.of(model).nodes for value in node.inputs}
    return [value.constant for value in values.values() if isinstance(value.constant, Tensor)]


def seeded(model: nn.Module) -> nn.Module:
    """Give weights that are no multiple of anything, and rows of unlike width."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        widths = torch.rand(len(parameter), *[1] * (parameter.dim() - 1), generator=generator) + 0.1
        parameter.data = torch.randn(parameter.shape, generator=generator) * widths + 0.02
    return model.eval()


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# --------------------------------------------------------------------------------------- linears


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linears_that_are_decoded(options: dict[str, Any], bias: bool) -> None:
    """To the bit, at any rank; narrow codes lie two to a byte."""
    model = seeded(nn.Sequential(nn.Linear(32, 24, bias), nn.ReLU(), nn.Linear(24, 7, bias)))
    reference, lowered = pair(model, options)
    assert not any(kind.startswith("jit_passes::") for kind in kinds(lowered))
    for shape in ((5, 32), (32,), (2, 3, 32), (0, 32)):
        x = inputs(*shape)
        assert torch.equal(reference(x), lowered(x))
    stored = [t for t in constants(lowered) if not t.is_floating_point() and t.dim() > 1]
    narrow = options["bits"] <= 4
    assert [list(t.shape) for t in stored] == [
        [24, 16 if narrow else 32],
        [7, 12 if narrow else 24],
    ]
    assert all(t.element_size() == 1 for t in stored)
    assert {row.dtype for row in jit_passes.coverage(lowered)} == {"int8"}


def test_linears_of_an_odd_width() -> None:
    """Narrow codes stay one to a byte."""
    reference, lowered = pair(seeded(nn.Linear(15, 6)), {"bits": 4})
    assert torch.equal(reference(inputs(4, 15)), lowered(inputs(4, 15)))
    assert [6, 15] in [list(t.shape) for t in constants(lowered)]


@pytest.mark.parametrize(
    "shape", [(1, 64), (9, 64), (2, 3, 64), (64,), (0, 64), (2, 0, 64)], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_linears_in_bfloat16(shape: tuple[int, ...], bias: bool) -> None:
    """Within what 8 bits of mantissa lose, of a sum of 64 products and its inputs."""
    model = seeded(nn.Linear(64, 33, bias))
    reference, lowered = pair(model, {"bits": 8}, Stock())
    assert "aten::_weight_int8pack_mm" in kinds(lowered)
    x = inputs(*shape)
    expected, found = reference(x), lowered(x)
    assert expected.shape == found.shape and found.dtype == torch.float32
    size = x.abs().double() @ model.weight.abs().double().T + (model.bias.abs() if bias else 0)
    assert bool(((expected - found).abs() <= 2**-7 * size).all())
    if expected.numel():
        assert sqnr(expected, found) > 45


def test_linears_in_bfloat16_of_views() -> None:
    """The kernel wants rows that lie together."""
    reference, lowered = pair(seeded(nn.Linear(48, 16)), {"bits": 8}, Stock())
    for x in (inputs(48, 5).t(), inputs(7, 96)[:, ::2], inputs(1, 48).expand(4, 48)):
        assert sqnr(reference(x), lowered(x)) > 45


@pytest.mark.parametrize("width", [1, 8, 15, 17, 24, 33, 40])
def test_widths_without_a_kernel(width: int) -> None:
    """PyTorch's kernel ends the process for these, so weights are decoded."""
    reference, lowered = pair(seeded(nn.Linear(width, 16)), {"bits": 8}, Stock())
    assert torch.equal(reference(inputs(3, width)), lowered(inputs(3, width)))


class Mixed(nn.Module):
    """A convolution on integers in front of a linear whose weight alone is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(torch.layer_norm(torch.relu(self.conv(x)).mean((2, 3)), [8]))
        return y


def test_beside_operators_on_integers() -> None:
    """Both kinds stand in one model; only the convolution asks for data."""
    config = {
        "version": 1,
        "rules": [{"op": "linear", "weight": {"bits": 4}, "input": {"dtype": "float"},
                   "output": {"dtype": "float"}}],
    }  # fmt: skip
    model, x = seeded(Mixed()), inputs(16, 3, 8, 8)
    prepared = jit_passes.prepare(torch.jit.script(model), target=EXACT, config=config)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x]))
    lowered = jit_passes.lower(reference)
    assert [row.bits for row in jit_passes.coverage(lowered)] == [bits_here("w8a8"), "w4 only"]
    assert "quantized::conv2d" in kinds(lowered) and "aten::bitwise_right_shift" in kinds(lowered)
    assert sqnr(reference(x), lowered(x)) > 35


# ------------------------------------------------------------------------------------ embeddings


class Table(nn.Module):
    """An embedding."""

    def __init__(self, rows: int = 50, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.table(ids)
        return y


def step_of(reference: torch.jit.ScriptModule) -> Tensor:
    (node,) = [n for n in GraphView.of(reference).nodes if "jit_passes::dequantize" in n.kind]
    scale = torch.as_tensor(node.inputs[1].constant).float()
    return scale.max() if scale.dim() == 0 else scale.reshape(len(scale), -1).amax(1)


IDS = [(4,), (2, 3), (2, 3, 4), (), (0,), (2, 0)]


def reloaded(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The model from its file."""
    file = io.BytesIO()
    torch.jit.save(model, file)
    return torch.jit.load(io.BytesIO(file.getvalue()))


def test_a_table_of_zeros() -> None:
    """Its codes would fit in 4 bits."""
    table = Table()
    nn.init.zeros_(next(table.parameters()))
    _, lowered = pair(table, {"bits": 8})
    assert torch.equal(reloaded(lowered)(torch.arange(50)), lowered(torch.arange(50)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_embeddings(options: dict[str, Any]) -> None:
    """Any number of axes; rows of bytes by PyTorch's kernel, others exactly; from files too."""
    reference, lowered = pair(seeded(Table()), options)
    packed = "group_size" not in options and options["bits"] > 4
    assert ("quantized::embedding_byte" in kinds(lowered)) == packed
    lowered = reloaded(lowered)
    step = step_of(reference)
    for shape in IDS:
        ids = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(2))
        expected, found = reference(ids), lowered(ids)
        assert expected.shape == found.shape
        if packed:
            row = step if step.dim() == 0 else step[ids].unsqueeze(-1)
            assert bool(((expected - found).abs() <= 1e-4 * row).all())
        else:
            assert torch.equal(expected, found)
    assert torch.equal(lowered(torch.arange(50).int()), lowered(torch.arange(50)))
    for bad in (50, -1):
        with pytest.raises(RuntimeError):
            lowered(torch.tensor([bad]))


@pytest.mark.parametrize("scale", [1e-6, 3e4])
def test_embeddings_beyond_float16(scale: float) -> None:
    """Rows whose scales float16 does not hold are decoded in float32."""
    model = seeded(Table())
    model.table.weight.data *= scale  # type: ignore[operator]
    reference, lowered = pair(model, {"bits": 4})
    assert not any("quantized::" in kind for kind in kinds(lowered))
    ids = torch.arange(50)
    assert torch.equal(reference(ids), lowered(ids)) and reference(ids).abs().max() > 0


def test_embeddings_of_an_odd_width() -> None:
    """PyTorch's rows of 4 bits would have one column more."""
    for options in ({"bits": 4}, {"bits": 8}):
        reference, lowered = pair(seeded(Table(20, 15)), options)
        assert sqnr(reference(torch.arange(20)), lowered(torch.arange(20))) > 100


def test_rows_of_zeros() -> None:
    """Padding stays 0, but for the rounding of an offset to float32."""
    model = seeded(Table())
    model.table.weight.data[3] = 0  # type: ignore[index, operator]
    for options in OPTIONS:
        reference, lowered = pair(model, options)
        assert not reference(torch.tensor([3])).any()
        assert lowered(torch.tensor([3])).abs().max() <= 1e-5 * step_of(reference).max()


class Bag(nn.Module):
    """A bag of embeddings."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.weighs = bool(options.pop("weighs", False))
        self.bag = nn.EmbeddingBag(50, 16, **options)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        weights = ids.float() / 50 if self.weighs else None
        y: Tensor = self.bag(ids, offsets, weights)
        return y


BAGS: list[tuple[dict[str, Any], bool]] = [
    ({"mode": "sum"}, True),
    ({"mode": "sum", "include_last_offset": True}, True),
    ({"mode": "sum", "weighs": True}, True),
    ({"mode": "mean"}, False),
    ({"mode": "max"}, False),
    ({"mode": "sum", "padding_idx": 3}, False),
]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("bag", "packed"), BAGS, ids=str)
def test_bags(bag: dict[str, Any], packed: bool, bits: int) -> None:
    """Sums by PyTorch's kernel; what it does not know, mean, maximum and padding, exactly."""
    reference, lowered = pair(seeded(Bag(**bag)), {"bits": bits})
    packed = packed and bits == 8
    assert ("quantized::embedding_bag_byte" in kinds(lowered)) == packed
    lowered = reloaded(lowered)
    ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(3))
    ids[4] = 3
    offsets = (
        torch.tensor([0, 5, 5, 9, 12])
        if bag.get("include_last_offset")
        else torch.tensor([0, 5, 5, 9])
    )
    expected, found = reference(ids, offsets), lowered(ids, offsets)
    assert expected.shape == found.shape == (4, 16) and expected.abs().max() > 0.5
    if packed:
        most = step_of(reference).max() * 5  # ids to a bag, at most
        assert (expected - found).abs().max() <= most * 1e-4
    else:
        assert torch.equal(expected, found)
    assert {row.dtype for row in jit_passes.coverage(lowered)} == {"int8"}


class Columns(nn.Module):
    """A table of each column of a tensor, whose numbers do not lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Embedding(50, 16) for _ in range(3))
        self.bag = nn.EmbeddingBag(50, 16, mode="sum")

    def forward(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = ids.float() / 50
        bags = self.bag(ids[:, 2], offsets[::2], weights[:, 1])
        return (
            self.one(ids[:, 0]),
            self.two(ids[:1, 1].expand(3, 4)) + self.three(ids[:3, ::2]),
            bags,
        )


def test_indices_that_are_not_contiguous() -> None:
    reference, lowered = pair(seeded(Columns()), {"bits": 8})
    assert {"quantized::embedding_byte", "quantized::embedding_bag_byte"} <= kinds(lowered)
    ids = torch.randint(0, 50, (12, 8), generator=torch.Generator().manual_seed(3))
    offsets = torch.tensor([0, 1, 5, 1, 9, 2])
    for expected, found in zip(reference(ids, offsets), lowered(ids, offsets), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------- files


class Decoder(nn.Module):
    """Tied embeddings around feed-forward blocks, as language models have them."""

    def __init__(self, tied: bool = True, blocks: int = 2) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(512, 64), nn.Linear(64, 512, bias=False)
        if tied:
            self.head.weight = self.table.weight
        self.up = nn.ModuleList(nn.Linear(64, 256) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(256, 64) for _ in range(blocks))
        self.norm = nn.LayerNorm(64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for up, down in zip(self.up, self.down):  # noqa: B905  TorchScript knows no strict
            x = x + down(torch.nn.functional.gelu(up(self.norm(x))))
        y: Tensor = self.head(self.norm(x))
        return y


def size_of(model: torch.jit.ScriptModule) -> int:
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    return len(buffer.getvalue())


def test_files(tmp_path: Path) -> None:
    """A process without this package loads the files and gets the same numbers."""
    names = []
    for tied in (True, False):
        for bits, options, most in ((8, {}, 0.31), (4, {"group_size": 32}, 0.23)):
            torch.manual_seed(0)
            model = Decoder(tied).eval()
            reference = reference_of(model, alone(bits=bits, **options), Stock())
            lowered = jit_passes.lower(reference)
            name = f"{bits} bits, {tied=}"
            assert size_of(lowered) < most * size_of(torch.jit.script(model)), name
            ids = torch.randint(0, 512, (2, 9))
            expected = lowered(ids)
            floor = 45 if bits == 8 else 100  # bfloat16, or exact
            assert sqnr(reference(ids), expected) > floor, name
            torch.jit.save(lowered, str(tmp_path / f"{name}.pt"))
            torch.save((ids, expected), tmp_path / f"{name}.data")
            names.append(name)
    script = (
        "import sys, torch\n"
        "for name in sys.argv[1:]:\n"
        "    model = torch.jit.load(name + '.pt')\n"
        "    ids, expected = torch.load(name + '.data')\n"
        "    assert torch.equal(model(ids), expected), name\n"
        "assert 'jit_passes' not in sys.modules\n"
        "print('equal')\n"
    )
    assert run_python("-c", script, *names, cwd=tmp_path).strip() == "equal"


def test_tied_tables_are_stored_once() -> None:
    """Embedding and linear read the same codes."""
    torch.manual_seed(0)
    _, lowered = pair(Decoder(blocks=1).eval(), {"bits": 8})
    tables = {t.data_ptr() for t in constants(lowered) if t.dtype == torch.int8 and len(t) == 512}
    assert len(tables) == 1


# ---------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_mode(target: str) -> None:
    """One word is all that it takes, and no data; a later rule has another mode again."""
    torch.manual_seed(0)
    model = torch.jit.script(Decoder(tied=False).eval())
    ids = torch.randint(0, 512, (2, 9))
    lowered = jit_passes.quantize_script(model, mode="weight_only", target=target)
    rows = jit_passes.coverage(lowered)
    assert {(row.bits, row.mode) for row in rows} == {("w8 only", "weight_only")} and len(rows) == 6
    assert sqnr(model(ids), lowered(ids)) > 30
    config = {
        "version": 1,
        "global": {"mode": "weight_only", "weight": {"bits": 4, "group_size": 32}},
        "rules": [{"module": "head", "mode": "dynamic", "weight": {"bits": 8, "channelwise": True}},
                  {"module": "up.0", "mode": "static", "weight": {"bits": 8, "channelwise": True}}],
    }  # fmt: skip
    mixed = jit_passes.quantize_script(model, [(ids,)], config=config, target=target)
    bits = bits_here("w8a8") if target == "stock" else "w8a8"
    assert [row.bits for row in jit_passes.coverage(mixed)] == [
        "w4g32 only", bits, "w4g32 only", "w4g32 only", "w4g32 only", bits,
    ]  # fmt: skip
    assert sqnr(model(ids), mixed(ids)) > 12


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
@pytest.mark.parametrize("function", [nn.ReLU(), nn.Tanh()], ids=lambda f: type(f).__name__)
def test_groups_in_the_mode_dynamic(function: nn.Module, target: str) -> None:
    """The report has their bits, on `stock` too, where the weights are decoded."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 32), function).eval())
    config = {"version": 1, "global": {"mode": "dynamic", "weight": {"bits": 4, "group_size": 32}}}
    lowered = jit_passes.quantize_script(model, target=target, config=config)
    (row,) = jit_passes.coverage(lowered)
    bits = bits_here("w4g32a8") if target == "stock" else "w4g32a8"
    assert (row.dtype, row.bits, row.mode, row.reason) == ("int8", bits, "dynamic", "")
    assert sqnr(model(inputs(5, 64)), lowered(inputs(5, 64))) > 15


def test_mode_of_operators_that_have_it_not() -> None:
    """A convolution of PyTorch's has no such form, and stays in float."""
    model = torch.jit.script(seeded(Mixed()))
    config = {"version": 1, "rules": [{"op": "conv2d", "mode": "weight_only"}]}
    with pytest.warns(jit_passes.JitPassesWarning, match="no weight_only form"):
        prepared = jit_passes.prepare(model, target=EXACT, config=config)
    rows = {row.kind: row for row in jit_passes.coverage(prepared)}
    assert rows["conv2d"].dtype == "float" and rows["linear"].bits == bits_here("w8a8")
