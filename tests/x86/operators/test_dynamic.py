"""Dynamic linear layers in plans: against the reference model, and a slow one in float64."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from benchmarks.models.encoder import Encoder
from tests.advice import traced_branches
from tests.codes import codes_of
from tests.compare import sqnr
from tests.plans import Called, Grid, Weighted, plan_of, traced
from tests.seeds import seeds
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

Q = torch.ops.jit_passes
SCHEMES = [f"per_{of}_{how}" for of in ("tensor", "token") for how in ("affine", "symmetric")]
# Of the largest result.
EXACT = 1e-6  # sums are exact, and rounded three times
TOLERANCE = 4e-6  # sums of the reference model are rounded in another order
BEHIND_OTHERS = 0.02  # a number next to a tie of a later layer gets the other code
FLIPPED = 35  # dB, where some numbers do
schemes = pytest.mark.parametrize("scheme", SCHEMES)


class Dynamic(nn.Module):
    """A linear layer on int8 weights whose input is quantized as it comes."""

    def __init__(self, inputs: int, outputs: int, scheme: str, bias: bool = True) -> None:
        super().__init__()
        self.linear, self.scheme = Weighted(nn.Linear(inputs, outputs, bias)), scheme

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = Q.choose_qparams(x, 0, 255, self.scheme, "pytorch")
        codes = Q.quantize_dynamic(x, scale, zero, 0, 255, torch.uint8)
        return self.linear(Q.dequantize_dynamic(codes, scale, zero))

    def slow(self, x: Tensor) -> Tensor:
        """Return the result in float64, of integers that are exact there, one row at a time."""
        rows = x.reshape(-1, x.shape[-1])
        groups = rows.split(1) if "token" in self.scheme else [rows]
        found = []
        for group in groups:
            low, high = group.min().clamp(max=0), group.max().clamp(min=0)
            symmetric = self.scheme.endswith("symmetric")
            span = 2 * torch.maximum(-low, high) if symmetric else high - low
            scale = (span / 255).clamp(min=torch.finfo(torch.float32).eps)
            zero = torch.tensor(128.0) if symmetric else -(low / scale).round()
            codes = codes_of(group, float(1 / scale), int(zero)).clamp(0, 255)
            sums = (codes - zero).double() @ self.linear.codes.double().T
            found.append(sums * scale.double())
        bias = self.linear.layer.bias
        total = torch.cat(found) * self.linear.scales.float().double()
        return (total if bias is None else total + bias).reshape(*x.shape[:-1], -1)


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape and found.dtype == torch.float32
    wanted = wanted.detach()
    if wanted.numel():
        error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
        assert float(error) <= tolerance


@schemes
@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (64, 32), (100, 33), (384, 200)])
def test_one_linear(sizes: tuple[int, int], scheme: str) -> None:
    """Inputs of any rank and layout, of one row, and of none."""
    torch.manual_seed(sizes[0])
    layer = Dynamic(*sizes, scheme, bias=sizes[0] != 5)
    width = sizes[0]
    plan = plan_of(traced(layer, torch.randn(2, width)))
    assert kinds_of(plan) == ["input", "linear_dynamic"]
    for shape in ((width,), (1, width), (29, width), (3, 5, width), (2, 3, 4, width),
                  (2, 1, 3, 2, width)):  # fmt: skip
        for size, middle in ((1.0, 0.0), (1e-3, 5e-3), (1e4, -1e4)):
            x = size * torch.randn(shape) + middle
            wide = torch.randn(*shape[:-1], 2 * width)
            for given in (x, wide[..., ::2].copy_(x), x.movedim(-1, 0).contiguous().movedim(0, -1)):
                (found,) = plan.run([given])
                close(found, layer.slow(x), EXACT)
                close(found, layer(x))
    for shape in ((0, width), (2, 0, width)):
        assert plan.run([torch.randn(shape)])[0].shape == (*shape[:-1], sizes[1])
    with pytest.raises(RuntimeError, match=f"takes {width} features, and got the shape"):
        plan.run([torch.randn(2, width + 1)])


@schemes
def test_numbers_that_are_not_finite(scheme: str) -> None:
    """The results of their token are NaN, and no others change, as in the reference model."""
    torch.manual_seed(0)
    layer = Dynamic(20, 7, scheme)
    plan = plan_of(traced(layer, torch.randn(2, 20)))
    for bad in (float("nan"), float("inf"), -float("inf")):
        for rows in (4, 300):
            x = torch.randn(rows, 20)
            x[2, 11] = 0
            (finite,) = plan.run([x])
            x[2, 11] = bad
            (found,), wanted = plan.run([x]), layer(x)
            assert found[2].isnan().all() and wanted[2].isnan().all()
            others = torch.arange(rows) != 2
            assert torch.equal(found[others], finite[others])
            close(found[others], wanted[others])


class Windows(nn.Module):
    """A layer over windows of an image, whose number only the running model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor, size: int) -> Tensor:
        b, h, w, c = x.shape
        x = x.reshape(b, h // size, size, w // size, size, c).transpose(2, 3)
        return self.out(F.gelu(self.qkv(x))).transpose(2, 3).reshape(b, h, w, -1)


@pytest.mark.parametrize("tokenwise", [False, True])
def test_six_axes(tokenwise: bool) -> None:
    """Their rows are rows as others are."""
    model = Windows().eval()
    script = torch.jit.script(model)
    config = {"version": 1, "global": {"input": {"tokenwise": tokenwise}}}
    prepared = jit_passes.prepare(script, target="x86", mode="dynamic", config=config)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    assert len(jit_passes.coverage(lowered).int8) == 2
    with torch.no_grad():
        for shape in ((2, 8, 4, 16), (1, 2, 2, 16), (3, 4, 8, 16)):
            x = torch.randn(shape)
            close(lowered(x, 2), reference(x, 2), BEHIND_OTHERS)
            assert sqnr(model(x, 2), lowered(x, 2)) > 34


def test_each_token_has_a_scale_by_default() -> None:
    """Large rows beside them take no digit from others, and change no bit of these."""
    torch.manual_seed(0)
    script = torch.jit.script(Encoder(layers=1, width=32, heads=2).eval())
    x, large = torch.randn(2, 8, 32), 1e3 * torch.randn(1, 8, 32)

    def beside(**options: bool) -> tuple[Tensor, Tensor]:
        config = {"version": 1, "global": {"input": options}} if options else None
        lowered = jit_passes.quantize_script(script, target="x86", mode="dynamic", config=config)
        with torch.no_grad():
            return lowered(x), lowered(torch.cat([x, large]))[:2]

    alone, together = beside()
    assert torch.equal(alone, together)
    assert not torch.equal(*beside(tokenwise=False))
    with torch.no_grad():
        assert sqnr(script(x), together) > 37


@traced_branches
def test_scales_of_other_layers_by_default() -> None:
    """Pixels are no tokens, and kernels of recurrent layers have one scale."""

    def schemes_of(model: torch.jit.ScriptModule) -> set[str]:
        prepared = jit_passes.prepare(model, target="x86", mode="dynamic")
        graph = jit_passes.convert(prepared).graph
        choices = graph.findAllNodes("jit_passes::choose_qparams")
        return {list(node.inputs())[3].toIValue() for node in choices}

    x = torch.randn(2, 5, 4)
    assert schemes_of(traced(nn.Linear(4, 3).eval(), x)) == {"per_token_affine"}
    for layer in (nn.Conv1d(5, 3, 1), nn.LSTM(4, 3), nn.RNN(4, 3)):
        assert schemes_of(traced(layer.eval(), x)) == {"per_tensor_affine"}
    assert schemes_of(torch.jit.script(nn.GRUCell(4, 3).eval())) == {"per_tensor_affine"}


class Shared(nn.Module):
    """Three linears that read one value, functions behind them, and what reads codes."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.three = nn.ModuleList([Dynamic(24, 16, scheme) for _ in range(3)])
        self.other = Dynamic(24, 16, "per_token_affine")
        self.grid, self.coded = Grid(0.05, 128), Dynamic(16, 16, scheme)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a, b, c = (linear(x) for linear in self.three)
        clipped = torch.clamp(b, -0.5, 0.75)
        return F.gelu(a), clipped, F.relu(c) * 0.3, self.other(x) / 3.0, self.coded(self.grid(a))


@schemes
def test_one_quantization_for_all_readers(scheme: str) -> None:
    torch.manual_seed(0)
    net, x = Shared(scheme), torch.randn(5, 7, 24)
    plan = plan_of(traced(net, x))
    steps = [row[1] for row in plan.profile([x])]
    own = scheme == "per_token_affine"  # the fourth reads as the three do
    assert steps.count("quantize rows") == (2 if own else 3)
    for found, wanted in zip(plan.run([x]), net(x), strict=True):
        close(found, wanted)


class Residual(nn.Module):
    """Sums with a value that is there, with one that comes later, and with one that broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Dynamic(24, 24, "per_token_affine") for _ in range(5)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = x + F.gelu(self.layers[0](x))
        two = self.layers[1](one) + self.layers[2](one)
        three = y - self.layers[3](two)
        four = self.layers[4](three) + y
        return four.transpose(0, 1) + y


def test_sums_are_part_of_the_step() -> None:
    torch.manual_seed(0)
    net = Residual()
    x, y = torch.randn(5, 7, 24), torch.randn(24)
    plan = plan_of(traced(net, x, y))
    names = [row[1] for row in plan.profile([x, y])]
    assert names.count("linear_dynamic + add") == 2 and names.count("add") == 3
    for batch in (5, 1, 3):
        x = torch.randn(batch, 7, 24)
        close(plan.run([x, y])[0], net(x, y), BEHIND_OTHERS)


class Attend(nn.Module):
    """Attention in float, in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.inner, self.outer = Dynamic(24, 72, SCHEMES[0]), Dynamic(24, 24, SCHEMES[0])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).chunk(3, 2)
        if self.form == "bmm":
            y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 3.0, 2), v)
        elif self.form == "columns":  # softmax along the rows, and operands that are not dense
            y = torch.softmax(q.transpose(1, 2) @ k * 0.3, 1)
            y = v @ y
        else:
            q, k, v = (part.unflatten(2, (3, 8)).transpose(1, 2) for part in (q, k, v))
            y = torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, -1) @ v
            y = y.transpose(1, 2).flatten(2)
        return self.outer(y)


@pytest.mark.parametrize("form", ["heads", "bmm", "columns"])
def test_attention(form: str) -> None:
    torch.manual_seed(0)
    net = Attend(form)
    net.inner.linear.scales.mul_(0.1)
    plan = plan_of(traced(net, torch.randn(2, 5, 24)))
    assert kinds_of(plan).count("matrix_product") == 2
    for shape in ((2, 5, 24), (1, 40, 24), (3, 1, 24), (2, 0, 24), (0, 5, 24)):
        x = torch.randn(shape)
        close(plan.run([x])[0], net(x), BEHIND_OTHERS)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("scheme", ["per_tensor_affine", "per_token_symmetric"])
def test_any_number_of_threads_gives_the_same_bits(
    threads: Callable[[int], None], scheme: str
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Dynamic(48, 100, scheme), nn.GELU(), Dynamic(100, 48, scheme)).eval()
    plan, x = plan_of(traced(net, torch.randn(2, 48))), torch.randn(3, 67, 48)
    threads(1)
    (expected,) = plan.run([x])
    for number in (2, 3, 8):
        threads(number)
        for _ in range(20):
            assert torch.equal(plan.run([x])[0], expected)


def test_states() -> None:
    """A plan that is saved and loaded gives the same bits; a changed state is refused, or runs."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 24)
    for net in (Attend("heads"), Shared("per_tensor_affine")):
        plan = plan_of(traced(net, x))
        expected = plan.run([x])[0]
        assert torch.equal(restored(plan.__getstate__()[0]).run([x])[0], expected)
        model = torch.jit.freeze(torch.jit.script(Called(plan)).eval())
        buffer = io.BytesIO()
        torch.jit.save(model, buffer)
        buffer.seek(0)
        assert torch.equal(torch.jit.load(buffer)(x), expected)
        refused, ran = mutate(plan, x, 1500)
        assert refused > 300 and ran > 30


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("linear_dynamic", [0], "1 attributes"),
        ("linear_dynamic", [2, 0], "whether rows have grids is 0 or 1"),
        ("linear_dynamic", [0, 3], "no formulas with this number"),
        ("function", [99], "function 99 is none"),
        ("function", [1], "the numbers of its function are float64, 1 of them"),
    ],
)
def test_messages(kind: str, numbers: list[int], message: str) -> None:
    torch.manual_seed(0)
    lists, scales, operators = plan_of(
        traced(Shared("per_tensor_affine"), torch.randn(2, 24))
    ).__getstate__()[0]
    place = next(i for i, (texts, _, _) in enumerate(operators) if texts[0] == kind)
    texts, (inputs, output, _), tensors = operators[place]
    changed = [*operators]
    changed[place] = (texts, [inputs, output, numbers], tensors)
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, changed))


class Drawn(nn.Module):
    """Layers drawn at random, in float32 between dynamic linears."""

    def __init__(self, seed: int, width: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.kinds = [
            draw.choice(
                ["linear", "linear", "gelu", "tanh", "relu", "norm", "sum", "scale", "turn"]
            )
            for _ in range(draw.randint(2, 7))
        ]
        self.layers = nn.ModuleList(
            Dynamic(width, width, draw.choice(SCHEMES), draw.random() < 0.7) for _ in self.kinds
        )
        self.last = Dynamic(width, 9, draw.choice(SCHEMES))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layers[0](x))
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            if kind == "linear":
                y = layer(y) * 0.01
            elif kind in ("gelu", "tanh"):
                y = F.gelu(y, approximate="none" if kind == "gelu" else "tanh")
            elif kind == "relu":
                y = F.relu(y)
            elif kind == "norm":
                y = self.norm(y)
            elif kind == "sum":
                y = y + layer(y) * 0.01
            elif kind == "scale":
                y = y * -0.75
            else:
                y = layer(y.transpose(0, 1)).transpose(0, 1)
        return self.last(y)


@pytest.mark.parametrize("seed", seeds(60))
def test_drawn(seed: int) -> None:
    torch.manual_seed(seed)
    width = random.Random(seed).choice([4, 17, 64, 100])
    net = Drawn(seed, width)
    plan = plan_of(traced(net, torch.randn(2, 6, width)))
    for batch in (2, 1, 5):
        x = torch.randn(batch, 6, width)
        with torch.no_grad():
            assert sqnr(net(x), plan.run([x])[0]) > FLIPPED


# --- Models.


def lowered(net: nn.Module, how: str = "script", **options: Any) -> tuple[Any, Any]:
    """Return the reference model and the lowered one."""
    x = torch.randn(2, 12, 64)
    with torch.no_grad():
        model = torch.jit.script(net) if how == "script" else torch.jit.trace(net, x)
    prepared = jit_passes.prepare(model, target="x86", **{"mode": "dynamic"} | options)
    reference = jit_passes.convert(prepared)
    return reference, jit_passes.lower(reference)


def encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


OPTIONS = [{}, {"tokenwise": True}, {"scheme": "symmetric"}]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_is_one_region(norm_first: bool, option: dict[str, Any]) -> None:
    """Traced; its reports say that linears are dynamic, and where they are computed."""
    torch.manual_seed(0)
    net = encoder(norm_first)
    config = {"version": 1, "global": {"input": option}}
    reference, model = lowered(net, "trace", config=config)
    (region,) = jit_passes.partition(reference, target="x86").regions
    kinds = [name.partition("#")[0].rpartition(":")[2] for name in region.operators]
    assert kinds.count("linear") == 12 and kinds.count("softmax") == 3
    assert {row.mode for row in jit_passes.coverage(model).int8} == {"dynamic"}
    assert len(jit_passes.coverage(model).int8) == 12
    assert str(model.graph).count("prim::CallMethod") == 1
    for batch in (1, 4, 7):
        x = torch.randn(batch, 12, 64)
        with torch.no_grad():
            assert sqnr(reference(x), model(x)) > FLIPPED
            assert sqnr(net(x), model(x)) > 30
            assert torch.equal(model(x), model(x))


def test_inspect_says_where() -> None:
    net = encoder(True)
    with torch.no_grad():
        model = torch.jit.trace(net, torch.randn(2, 12, 64))
    inspection = jit_passes.inspect(model, target="x86", mode="dynamic")
    rows = [row for row in inspection if row.dtype == "int8"]
    assert [(row.mode, row.region, row.bits) for row in rows] == [("dynamic", 1, "w8a8")] * 12
    assert "  w8a8   region 1, dynamic" in str(inspection)
    prepared = jit_passes.prepare(model, target="x86", mode="dynamic")
    partition = jit_passes.partition(jit_passes.convert(prepared), target="x86")
    shown = {n for n in partition.regions[0].operators if n in {row.name for row in inspection}}
    assert set(inspection.regions[0]) == shown


def test_as_good_as_stock() -> None:
    """Written by hand, with heads and a classifier; stock has as many bits."""
    torch.manual_seed(0)
    net = Encoder(2, 64, 4).eval()
    model = torch.jit.script(net)
    x = torch.randn(8, 12, 64)
    with torch.no_grad():
        found = {
            target: sqnr(
                net(x), jit_passes.quantize_script(model, target=target, mode="dynamic")(x)
            )
            for target in ("x86", "stock")
        }
    assert found["x86"] > max(30, found["stock"] - 1)


class Loop(nn.Module):
    """Dynamic linears in a branch, in a loop, and of a value that is written in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        for _ in range(3):
            y = torch.relu(self.other(y))
        y = self.layer(y) if bool(y.sum() > 40) else self.other(y) * 2
        z = y.clone()
        first = self.layer(z)
        z.add_(first)
        return self.layer(z)


def test_control_flow_and_writes() -> None:
    """A value that is written is read where it was, by an operator of PyTorch."""
    torch.manual_seed(0)
    net = Loop().eval()
    reference, model = lowered(net)
    assert "CallMethod" in str(model.graph)
    for seed in range(6):
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            close(model(x), reference(x), BEHIND_OTHERS)
            close(model(x), net(x), 0.1)


def test_beside_static_operators() -> None:
    """Codes of a static operator are read by a dynamic one, in one plan."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(),
                        nn.Linear(32, 9)).eval()  # fmt: skip
    data = [torch.randn(2, 12, 64) for _ in range(4)]
    config = {"version": 1, "rules": [{"module": ["2", "4"], "mode": "dynamic"}]}
    prepared = jit_passes.prepare(torch.jit.script(net), target="x86", config=config)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, data))
    (region,) = jit_passes.partition(reference, target="x86").regions
    assert [name.rpartition(":")[2] for name in region.operators] == [
        "linear", "relu", "linear", "gelu", "linear",
    ]  # fmt: skip
    model = jit_passes.lower(reference)
    for x in data:
        with torch.no_grad():
            close(model(x), reference(x), BEHIND_OTHERS)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_weights(granularity: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(64, 33).eval()
    config = {"version": 1, "global": {"weight": {"channelwise": granularity == "per_channel"}}}
    reference, model = lowered(net, config=config)
    assert ("per_channel" in str(reference.graph)) == (granularity == "per_channel")
    x = torch.randn(5, 64)
    with torch.no_grad():
        close(model(x), reference(x))


def test_small_numbers() -> None:
    """Where PyTorch's kernels have steps of 6.1e-5 at least, plans keep the digits."""
    torch.manual_seed(0)
    net = nn.Linear(64, 32, bias=False).eval()
    x = torch.randn(8, 64)
    for factor in (1.0, 1e-3, 1e-5):
        _, model = lowered(net)
        assert sqnr(net(x * factor), model(x * factor)) > 40


class Written(nn.Module):
    """A buffer that is written and read, results that are written, and an input that is."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 32)
        self.register_buffer("seen", torch.zeros(3, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        x[:, 0] = 1
        self.seen[0] = y[0]
        y[:, :4] = self.seen.mean()
        z = self.two(self.seen) + self.two(y)
        z[0] += y[1]
        return self.last(z) + self.last(x)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_written_values(mode: str) -> None:
    torch.manual_seed(0)
    net = Written().eval()
    reference, model = lowered(net, mode=mode)
    assert not jit_passes.coverage(model).float
    kinds = [node.kind() for node in model.graph.nodes()]
    assert "aten::linear" not in kinds and "jit_passes::choose_qparams" not in kinds
    x = torch.randn(3, 64)
    copies = [x, x.clone(), x.clone()]
    scripted = torch.jit.script(net)
    for _ in range(3):
        results = [m(x) for m, x in zip((scripted, reference, model), copies, strict=True)]
        close(results[2], results[1], BEHIND_OTHERS)
        close(results[2], results[0], 0.1)
        assert torch.equal(copies[0], copies[2])
