"""Codes of weights that are chosen by the error of a layer's result."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.stages.gptq import Grid, gptq
from jit_passes.stages.patches import patches
from jit_passes.stages.round_weights import DefaultRounding

FOUR_BITS: dict[str, Any] = {"version": 1, "global": {"weight": {"bits": 4}}}


def gptq_of_the_paper(weight: Tensor, gram: Tensor, grid: Grid, damping: float) -> Tensor:
    """Algorithm 1 of arXiv:2210.17323 in float64, one column after another, with its inverse."""
    energy = gram.diagonal()
    order = energy.argsort(descending=True, stable=True)
    damped = gram[order][:, order] + damping * energy.mean() * torch.eye(len(gram))
    inverse = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    left, codes = weight[:, order].clone(), torch.zeros_like(weight)
    scale, zero_point = grid.scale[0][:, order], grid.zero_point[0][:, order]
    for j in range(len(gram)):
        code = (left[:, j] / scale[:, j] + zero_point[:, j]).round().clamp(grid.low, grid.high)
        error = (left[:, j] - (code - zero_point[:, j]) * scale[:, j]) / inverse[j, j]
        left[:, j:] -= error[:, None] * inverse[j, j:]
        codes[:, j] = code
    return codes[:, order.argsort()]


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(5, 1), (16, 7), (17, 128), (37, 130), (5, 300), (1, 9)]
)
def test_equals_the_paper(outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(2, outputs, inputs, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 4 * inputs, inputs, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(2, inputs, inputs, generator=generator, dtype=torch.float64)
    gram = x.transpose(1, 2) @ x
    scale = (weight.abs().amax(2, keepdim=True) / 7).expand_as(weight)
    zero_point = torch.randint(-2, 3, (2, outputs, 1), generator=generator).double()
    zero_point = zero_point.expand_as(weight)
    grid = Grid(scale, zero_point, -8, 7)
    found = gptq(weight, gram, grid, damping=0.01)
    for group in range(2):
        own = Grid(scale[group : group + 1], zero_point[group : group + 1], -8, 7)
        assert torch.equal(found[group], gptq_of_the_paper(weight[group], gram[group], own, 0.01))


def test_operands_of_the_operator() -> None:
    weight, square, one = (
        torch.zeros(2, 3, 4).double(),
        torch.zeros(2, 4, 4).double(),
        torch.ones(()),
    )
    round_with_feedback = torch.ops.jit_passes.round_with_feedback
    empty = round_with_feedback(weight[:, :0], square, one.double(), one.double(), -8, 7)
    assert empty.shape == (2, 0, 4) and empty.dtype == torch.float64
    with pytest.raises(RuntimeError, match="all operands are float64, got Float"):
        round_with_feedback(weight, square, one, one.double(), -8, 7)
    with pytest.raises(RuntimeError, match=r"feedback of a weight \[2, 3, 4\] is \[2, 4, 4\], got"):
        round_with_feedback(weight, square[:1], one.double(), one.double(), -8, 7)
    with pytest.raises(RuntimeError, match=r"the weight is \[groups, outputs, inputs\], got"):
        round_with_feedback(weight[0], square, one.double(), one.double(), -8, 7)
    with pytest.raises(RuntimeError, match="range"):
        round_with_feedback(weight, square, one.double(), one.double(), 7, -8)


def test_dead_inputs_keep_the_nearest_codes() -> None:
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(1, 3, 4)
    grid = Grid(torch.full_like(weight, 1 / 7), torch.zeros_like(weight), -7, 7)
    assert torch.equal(gptq(weight, torch.zeros(1, 4, 4), grid), grid.codes(weight))


def test_sums_of_low_precision() -> None:
    """Eigenvalues below 0 by rounding: codes are no worse than the nearest ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 40, 3, generator=generator) @ torch.randn(1, 3, 12, generator=generator)
    gram = (1e4 * x.transpose(1, 2) @ x).bfloat16().float()
    weight = torch.randn(1, 5, 12, generator=generator, dtype=torch.float64)
    grid = Grid(torch.full_like(weight, 0.3), torch.zeros_like(weight), -7, 7)
    assert float(torch.linalg.eigvalsh(gram).min()) < 0
    found = [grid.numbers(codes) for codes in (gptq(weight, gram, grid, 1e-9), grid.codes(weight))]
    errors = [float(((weight - n) @ x.double().transpose(1, 2)).square().sum()) for n in found]
    assert errors[0] < errors[1]


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(6, 5), (3, 4, 6)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    (nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)), (2, 4, 8, 7)),
    (nn.Conv2d(6, 12, 3, groups=3, padding="same"), (2, 6, 5, 5)),
    (nn.Conv2d(8, 8, 3, groups=8, padding="valid"), (8, 6, 6)),
    (nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=1), (2, 2, 4, 5, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_patches_give_the_result(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Rows of patches times rows of the weight are the layer's result without bias."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = copy.deepcopy(layer).double().eval()
    with torch.no_grad():
        layer.bias.zero_()
        wanted = layer(x)
    script = torch.jit.script(layer)
    prepared = jit_passes.prepare(script, target="reference", mode="weight_only")
    (node,) = (n for n in GraphView.of(prepared).nodes if n.traits.weighted is not None)
    weight = layer.weight.detach()
    (rows,) = patches(node, weight, x)
    found = (rows @ weight.reshape(len(rows), -1, rows.shape[2]).transpose(1, 2)).transpose(0, 1)
    axis = -1 - (wanted.dim() - 1 if isinstance(layer, nn.Linear) else weight.dim() - 2)
    channels_last = wanted if isinstance(layer, nn.Linear) else wanted.movedim(axis, -1)
    found = found.flatten(1).reshape(channels_last.shape)
    assert torch.allclose(found, channels_last, rtol=1e-12, atol=1e-12)
    (some,) = patches(node, weight, x, most=4)
    assert some.shape[1] == 4 < rows.shape[1]
    for group, few in zip(rows, some, strict=True):
        assert all((group == row).all(1).any() for row in few)


class Net(nn.Module):
    """A convolution, a depthwise one and one in groups, and a linear; a layer without a form."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16, padding="same")
        self.grouped = nn.Conv2d(16, 16, 3, stride=2, groups=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.grouped(torch.relu(self.depthwise(torch.relu(self.first(x))))))
        return self.last(nn.functional.avg_pool2d(torch.relu(self.up(y)), 4).flatten(1))


def smooth_images(seed: int, count: int, batch: int = 8) -> list[Tensor]:
    """Return images whose neighbouring pixels are alike, as those of photographs are."""
    generator = torch.Generator().manual_seed(seed)
    coarse = (torch.randn(batch, 3, 4, 4, generator=generator) for _ in range(count))
    return [nn.functional.interpolate(x, size=16, mode="bilinear") for x in coarse]


def scripted() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def sqnr(model: torch.jit.ScriptModule, other: torch.jit.ScriptModule) -> float:
    """Return the signal to noise ratio of another model's results, on data of their own, in dB."""
    signal = noise = 0.0
    with torch.no_grad():
        for x in smooth_images(7, 2):
            wanted = model(x)
            signal += float(wanted.square().sum())
            noise += float((wanted - other(x)).square().sum())
    return 10 * math.log10(signal / noise)


def prepared_net(model: torch.jit.ScriptModule, **options: Any) -> torch.jit.ScriptModule:
    given = {"target": "reference", "mode": "static", "config": FOUR_BITS, **options}
    return jit_passes.calibrate(jit_passes.prepare(model, **given), smooth_images(0, 8))


def test_four_bits() -> None:
    """The whole model gains, the report says so, and the weights stay on their grids."""
    model = scripted()
    prepared = prepared_net(model)
    rounded = jit_passes.round_weights(prepared, smooth_images(0, 8))
    before, after = jit_passes.convert(prepared), jit_passes.convert(rounded)
    assert sqnr(model, after) > sqnr(model, before) + 3
    remarks = {row.name.partition(":")[0]: row.remark for row in jit_passes.coverage(after)}
    assert all(
        "less error on batches held back" in remarks[n] for n in ("first", "grouped", "last")
    )
    assert remarks["up"] == ""
    known = jit_passes.provenance(after)
    assert known is not None and known["weight_rounding"] == "gptq"
    with torch.no_grad():  # the float model that calibration knows has its own weights
        assert torch.equal(rounded(smooth_images(1, 1)[0]), prepared(smooth_images(1, 1)[0]))


def codes_of(reference: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return the integers of weights."""
    found = {}
    for node in GraphView.of(reference).nodes:
        if node.traits.weighted is not None:
            made = node.operand("weight").producer
            assert made is not None
            found[node.name] = made.main_operand.constant
    return found


def test_scales_stay(tmp_path: Any) -> None:
    """Also where the range of a weight is searched for, and after a file."""
    config = {"version": 1, "global": {"weight": {"bits": 4, "calibration": "mean_squared_error"}}}
    prepared = prepared_net(scripted(), config=config)
    rounded = jit_passes.round_weights(prepared, smooth_images(0, 8))
    torch.jit.save(rounded, str(tmp_path / "rounded.pt"))
    loaded = torch.jit.load(str(tmp_path / "rounded.pt"))
    before, after = (codes_of(jit_passes.convert(model)) for model in (prepared, loaded))
    for name, codes in after.items():
        assert codes.dtype == torch.int8 and codes.min() >= -8 and codes.max() <= 7
        assert torch.equal(codes, before[name]) is name.startswith("up")
        if not name.startswith("up"):
            assert (codes != before[name]).float().mean() < 0.7
    assert codes_of(jit_passes.convert(rounded)).keys() == after.keys()
    for name, codes in codes_of(jit_passes.convert(rounded)).items():
        assert torch.equal(codes, after[name])


def test_parts_that_fit_the_memory() -> None:
    """One layer at a time gives what all at once give."""
    prepared = prepared_net(scripted())
    data = smooth_images(0, 8)
    at_once = codes_of(jit_passes.convert(jit_passes.round_weights(prepared, data)))
    apart = codes_of(jit_passes.convert(jit_passes.round_weights(prepared, iter(data), memory=1)))
    assert all(torch.equal(codes, apart[name]) for name, codes in at_once.items())


def test_few_data() -> None:
    """Without a batch to hold back the report says that nothing was checked."""
    rounded = jit_passes.round_weights(prepared_net(scripted()), smooth_images(0, 1))
    remarks = [row.remark for row in jit_passes.coverage(jit_passes.convert(rounded))]
    assert sum("without a check on held-back batches" in remark for remark in remarks) == 4


def test_codes_that_fit_chance_are_not_used() -> None:
    """Three rows of noise say nothing about another one."""
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 8)).eval())
    rows = torch.randn(4, 1, 64, generator=torch.Generator().manual_seed(0))
    prepared = jit_passes.prepare(model, target="reference", mode="weight_only", config=FOUR_BITS)
    rounded = jit_passes.round_weights(prepared, list(rows), damping=1e-4)
    (row,) = jit_passes.coverage(jit_passes.convert(rounded))
    assert "its weight is not rounded by" in row.remark
    before, after = (codes_of(jit_passes.convert(m)) for m in (prepared, rounded))
    assert torch.equal(before["0:linear"], after["0:linear"])


@pytest.mark.parametrize("target", ["x86", "stock"])
def test_in_one_call(target: str) -> None:
    """The integers of the lowered model are the ones that were chosen, bias correction after."""
    model = scripted()
    config = FOUR_BITS if target == "x86" else None
    int8 = jit_passes.quantize_script(
        model, smooth_images(0, 8), target=target, mode="static", config=config,
        weight_rounding="gptq", bias_correction="fast", progress=False,
    )  # fmt: skip
    known = jit_passes.provenance(int8)
    assert known is not None
    assert known["weight_rounding"] == "gptq" and known["bias_correction"] == "fast"
    assert sqnr(model, int8) > (22 if target == "x86" else 30)


def test_groups_and_weight_only() -> None:
    """Scales of groups of 8 inputs; inputs stay in float."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)).eval())
    mix = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))
    data = [torch.randn(64, 32, generator=torch.Generator().manual_seed(i)) @ mix for i in range(8)]
    config = {"version": 1, "global": {"weight": {"bits": 4, "group_size": 8}}}
    prepared = jit_passes.prepare(model, target="reference", mode="weight_only", config=config)
    rounded = jit_passes.round_weights(prepared, data)
    errors = []
    with torch.no_grad():
        for reference in (jit_passes.convert(prepared), jit_passes.convert(rounded)):
            errors.append(float((model(data[0]) - reference(data[0])).square().sum()))
    assert errors[1] < errors[0] / 2


class Scored(nn.Module):
    """A linear, and one whose weight is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.vector = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.linear(x), self.vector)


@pytest.mark.parametrize("how", ["gptq", "adaround_sequential"])
def test_a_weight_without_outputs(how: str) -> None:
    """A vector keeps the nearest codes."""
    model = torch.jit.script(Scored().eval())
    data = [torch.randn(16, 8) for _ in range(4)]
    for mode in ("static", "dynamic", "weight_only"):
        made = jit_passes.quantize_script(
            model, data, target="reference", mode=mode, weight_rounding=how, progress=False
        )
        assert made(data[0]).shape == (16,)


def low_rank(inputs: int, count: int) -> list[Tensor]:
    """Batches in a few directions, from which rounding errors can be kept away."""
    generator = torch.Generator().manual_seed(2)
    basis = torch.randn(4, inputs, generator=generator)
    return [torch.randn(64, 4, generator=generator) @ basis for _ in range(count)]


@pytest.mark.parametrize("mode", ["dynamic", "static", "weight_only"])
@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
def test_by_default(target: str, mode: str) -> None:
    """Layers of few inputs, by four batches; None and three batches leave the nearest codes."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 32, bias=False)).eval())
    how: dict[str, Any] = {"target": target, "mode": mode, "config": FOUR_BITS, "progress": False}
    data = low_rank(64, 4)
    made, plain, few, few_plain = (
        jit_passes.quantize_script(model, data[:count], weight_rounding=rounding, **how)
        for count, rounding in ((4, "auto"), (4, None), (3, "auto"), (3, None))
    )
    x = torch.cat(data)
    with torch.no_grad():
        errors = [float((model(x) - m(x)).square().sum()) for m in (made, plain)]
        assert errors[0] < errors[1] / 4
        assert torch.equal(few(x), few_plain(x))
    known = [(jit_passes.provenance(m) or {}).get("weight_rounding") for m in (made, plain, few)]
    assert known == ["auto", None, None]


def test_by_default_of_many_inputs() -> None:
    """These take long, so the codes are the nearest."""
    model = torch.jit.script(nn.Sequential(nn.Linear(1568, 64), nn.Linear(64, 16)).eval())
    data = low_rank(1568, 4)
    how: dict[str, Any] = {"target": "reference", "config": FOUR_BITS, "progress": False}
    made, plain = (
        jit_passes.quantize_script(model, data, weight_rounding=rounding, **how)
        for rounding in ("auto", None)
    )
    equal = [torch.equal(codes, codes_of(plain)[name]) for name, codes in codes_of(made).items()]
    assert equal == [True, False]


def test_by_default_of_a_batch_without_rows() -> None:
    """A batch adds nothing where it has no rows, also the one that checks."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)))
    how: dict[str, Any] = {"target": "reference", "progress": False}
    data = [torch.randn(2, 3, 8, 8) for _ in range(3)]
    for given in ([*data, torch.zeros(0, 3, 8, 8)], [data[0], torch.zeros(0, 3, 8, 8), *data[1:]]):
        made, plain = (
            jit_passes.quantize_script(model.eval(), given, weight_rounding=rounding, **how)
            for rounding in ("auto", None)
        )
        unchecked = not len(given[3])
        assert torch.equal(made(data[0]), plain(data[0])) is unchecked


def test_by_default_of_tokens_in_turns() -> None:
    """Rows are drawn at random: every second one would tell nothing of the others."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(64, 64, generator=generator))[0]

    def tokens() -> Tensor:
        x = torch.zeros(4096, 2, 64)
        x[:, 0] = torch.randn(4096, 32, generator=generator) @ directions[:32]
        x[:, 1] = torch.randn(4096, 32, generator=generator) @ directions[32:]
        return x

    model = torch.jit.script(nn.Sequential(nn.Linear(64, 64)).eval())
    how: dict[str, Any] = {"target": "reference", "mode": "weight_only", "config": FOUR_BITS}
    data, test = [tokens() for _ in range(4)], tokens()

    def error(rounding: str | None) -> float:
        made = jit_passes.quantize_script(model, data, weight_rounding=rounding, **how)
        with torch.no_grad():
            return float((model(test) - made(test)).square().mean())

    assert error("auto") < 1.05 * error(None)  # a regular draw doubles it


def test_by_default_of_wide_windows() -> None:
    """Products of inputs of all groups would take 473 MB: the codes are the nearest."""
    model = torch.jit.script(nn.Conv2d(128, 128, 31, padding=15, groups=128).eval())
    data = [torch.randn(1, 128, 4, 4) for _ in range(4)]
    made, plain = (
        jit_passes.quantize_script(
            model, data, target="reference", weight_rounding=rounding, progress=False
        )
        for rounding in ("auto", None)
    )
    assert torch.equal(made(data[0]), plain(data[0]))


class Branches(nn.Module):
    """The sign of its input decides between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.above, self.below = nn.Linear(64, 32), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(x) if bool(x.sum() > 0) else self.below(x)


def test_by_default_where_nothing_checks() -> None:
    """The fourth batch takes another branch than the first three: the nearest codes stay."""
    model = torch.jit.script(Branches().eval())
    data = [x.abs() for x in low_rank(64, 4)]
    data[3].neg_()
    how: dict[str, Any] = {"target": "reference", "mode": "dynamic", "progress": False}
    made, plain = (
        jit_passes.quantize_script(model, data, config=FOUR_BITS, weight_rounding=rounding, **how)
        for rounding in ("auto", None)
    )
    assert all(torch.equal(made(x), plain(x)) for x in data)
    data[1].neg_()  # both branches are chosen by some batches, and the negative one is checked
    made, plain = (
        jit_passes.quantize_script(model, data, config=FOUR_BITS, weight_rounding=rounding, **how)
        for rounding in ("auto", None)
    )
    equal = [torch.equal(made(x), plain(x)) for x in data]
    assert equal == [True, False, True, False]


class TwoMethods(nn.Module):
    """Both read one linear, with inputs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return self.linear(x)

    @torch.jit.export
    def decode(self, x: Tensor) -> Tensor:
        return self.linear(x.cumsum(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


def test_methods_share_weights() -> None:
    """With codes of its own each method would have a copy, so by default codes are the nearest."""
    model = torch.jit.script(TwoMethods().eval())
    names = ["encode", "decode"]
    data = {name: low_rank(64, 4) for name in names}
    how: dict[str, Any] = {"target": "x86", "methods": names, "progress": False}
    made, plain = (
        jit_passes.quantize_script(model, data, weight_rounding=rounding, **how)
        for rounding in ("auto", None)
    )
    x = torch.cat(data["encode"])
    for name in names:
        assert "weight_rounding" not in (jit_passes.provenance(made, method=name) or {})
        assert torch.equal(getattr(made, name)(x), getattr(plain, name)(x))


def test_variants_share_codes() -> None:
    """Weights with equal grids have the codes of the first variant, others those of their data."""
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval())
    batches = [((x,), {}) for x in low_rank(64, 4)]
    other = {**FOUR_BITS, "rules": [{"module": "2", "weight": {"bits": 5}}]}
    first, equal, mixed = (
        jit_passes.calibrate(
            jit_passes.prepare(model, target="reference", config=config), low_rank(64, 4)
        )
        for config in (FOUR_BITS, FOUR_BITS, other)
    )
    rounding = DefaultRounding()
    wanted = codes_of(jit_passes.convert(rounding(first, batches, False)))
    again = codes_of(jit_passes.convert(rounding(equal, [], False)))
    assert wanted.keys() == again.keys() and len(wanted) == 2
    assert all(torch.equal(wanted[name], again[name]) for name in wanted)
    nearest = codes_of(jit_passes.convert(equal))
    assert not any(torch.equal(wanted[name], nearest[name]) for name in wanted)
    alone = codes_of(jit_passes.convert(DefaultRounding()(mixed, batches, False)))
    shared = codes_of(jit_passes.convert(rounding(mixed, batches, False)))
    assert all(torch.equal(alone[name], shared[name]) for name in wanted)
    assert [torch.equal(shared[name], wanted[name]) for name in sorted(wanted)] == [True, False]


def test_bad_options() -> None:
    model = scripted()
    with pytest.raises(JitPassesError, match="how is one of"):
        jit_passes.round_weights(prepared_net(model), smooth_images(0, 1), how="nearest")
    with pytest.raises(JitPassesError, match=r"damping is in \(0, 1\], not 0"):
        jit_passes.round_weights(prepared_net(model), smooth_images(0, 1), damping=0)
    with pytest.raises(JitPassesError, match="memory is a whole number of bytes from 0 on, not -1"):
        jit_passes.round_weights(prepared_net(model), smooth_images(0, 1), memory=-1)
    with pytest.raises(JitPassesError, match=r"call jit_passes\.prepare and calibrate first"):
        jit_passes.round_weights(model, smooth_images(0, 1))
    with pytest.raises(JitPassesError, match="the model was not calibrated"):
        jit_passes.round_weights(
            jit_passes.prepare(model, target="reference", mode="static"), smooth_images(0, 1)
        )
    bad = [*smooth_images(0, 4), torch.full((1, 3, 16, 16), torch.nan)]
    with pytest.raises(JitPassesError, match="holds a NaN or an infinity"):
        jit_passes.round_weights(prepared_net(model), bad)
    with pytest.raises(JitPassesError, match="needs calibration data"):
        jit_passes.quantize_script(model, weight_rounding="gptq")
