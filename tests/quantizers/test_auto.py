"""The mode that each operator has where the caller leaves it to the graph."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.quantizer import BackendQuantizer
from jit_passes.report.macs import integer_share
from jit_passes.targets import Stock
from tests.compare import sqnr
from tests.outlying import DIMENSIONS, WIDTH, WORDS, Encoder, Layer, outlying
from tests.processor import BITS, VNNI, bits_here
from tests.quantizing import seeded

TARGETS = ("reference", "stock", "x86")


def script(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(model.eval())


def modes(model: torch.jit.ScriptModule) -> dict[str, str]:
    return {row.name: row.mode or "float" for row in jit_passes.coverage(model)}


def code_of(model: torch.jit.ScriptModule) -> tuple[str, list[Tensor]]:
    return str(model.inlined_graph), [*model.buffers(), *model.parameters()]


class Net(nn.Module):
    """A convolutional net with a head of linears."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        pooled = torch.relu(self.second(x)).mean([2, 3])
        return self.head(torch.relu(self.body(pooled)).softmax(-1))


IMAGES = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)) for _ in range(2)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_convolutional_net_is_static(target: str) -> None:
    """With data, to the bit as the mode static gives it; a softmax alone is no attention."""
    model = script(seeded(Net))
    given: dict[str, Any] = {"target": target, "progress": False}
    auto = jit_passes.quantize_script(model, IMAGES, **given)
    static = jit_passes.quantize_script(model, IMAGES, mode="static", smooth=None, **given)
    assert str(auto.inlined_graph) == str(static.inlined_graph)
    assert torch.equal(auto(IMAGES[0]), static(IMAGES[0]))
    rows, wanted = jit_passes.coverage(auto), jit_passes.coverage(static)
    assert {row.mode for row in rows} == {"static"} and str(rows) == str(wanted)
    assert all("data" in row.why for row in rows) and not any(row.why for row in wanted)
    made = jit_passes.provenance(auto)
    assert made is not None and made["mode"] == "auto" and "smooth" not in made


def test_without_data() -> None:
    """Operators that need none are quantized, a warning names the rest; for none, an error."""
    model = script(seeded(Net))
    with pytest.warns(JitPassesWarning, match=r"2 operators stay in float without data, 'conv:"):
        lowered = jit_passes.quantize_script(model, target="stock")
    assert modes(lowered) == {
        "conv:conv2d": "float",
        "second:conv2d": "float",
        "body:linear": "dynamic",
        "head:linear": "dynamic",
    }
    reasons = {row.name: row.reason for row in jit_passes.coverage(lowered)}
    assert "give batches or a profile" in reasons["conv:conv2d"]
    with pytest.raises(JitPassesError, match=r"strict: 2 operators .*\n.*give batches"):
        jit_passes.quantize_script(model, target="stock", strict=True)
    with pytest.raises(JitPassesError, match="ranges come from calibration data"):
        jit_passes.quantize_script(script(seeded(lambda: nn.Sequential(nn.Conv2d(3, 3, 3)))))
    reference = jit_passes.quantize_script(model, target="reference")  # it has all modes
    assert modes(reference) == {
        "conv:conv2d": "weight_only",  # dynamic where somebody says so
        "second:conv2d": "weight_only",
        "body:linear": "dynamic",
        "head:linear": "dynamic",
    }
    with torch.no_grad():
        assert F.cosine_similarity(lowered(IMAGES[0]), model(IMAGES[0])).min() > 0.999


class PreNorm(nn.Module):
    """A layer whose norms stand in front: no residual sum reads what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Layer()

    def forward(self, x: Tensor) -> Tensor:
        own = self.inside
        y = own.first(x)
        q, k, v = own.split(own.q(y)), own.split(own.k(y)), own.split(own.v(y))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + own.out(mixed)
        return x + own.down(F.gelu(own.up(own.second(x))))


class Text(nn.Module):
    """Tokens to one vector for each sentence."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(PreNorm() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.table(tokens)))).mean(1)


def text(size: float) -> nn.Module:
    """Return a model that computes the same for all sizes of two channels behind each norm."""
    model = seeded(Text)
    factors = torch.ones(WIDTH)
    factors[list(DIMENSIONS)] = torch.tensor([size, 0.6 * size])
    with torch.no_grad():
        for layer in model.layers:
            own = layer.inside
            for norm, linears in ((own.first, (own.q, own.k, own.v)), (own.second, (own.up,))):
                norm.weight *= factors
                for linear in linears:
                    linear.weight /= factors
    return model


def tokens_of(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (count, 24), generator=generator)


CALIBRATION = [tokens_of(8, seed) for seed in range(1, 5)]


def worst(quantized: torch.jit.ScriptModule, model: nn.Module) -> float:
    """Return the cosine to float of the worst of 32 sentences."""
    tokens = tokens_of(32, 9)
    with torch.no_grad():
        return float(F.cosine_similarity(quantized(tokens), model(tokens)).min())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1.0, 20.0, 100.0])
def test_transformers_keep_their_accuracy(size: float, target: str) -> None:
    """The bars: 0.993 for auto and dynamic, with and without data, 0.98 for static."""
    model = text(size)
    scripted = script(model)
    given: dict[str, Any] = {"target": target, "progress": False}
    for data in (CALIBRATION, None):
        auto = jit_passes.quantize_script(scripted, data, **given)
        assert worst(auto, model) > 0.998
        found = modes(auto)
        assert found.pop("table:embedding") == "weight_only"
        products = {name for name in found if "attention" in name or "matmul" in name}
        assert {found.pop(name) for name in products} == {"float"}
        assert set(found.values()) == {"dynamic"} and len(found) == 25
        assert all(row.why for row in jit_passes.coverage(auto).int8)
        assert worst(jit_passes.quantize_script(scripted, data, mode="dynamic", **given), model) > (
            0.998
        )
        made = jit_passes.provenance(auto)
        assert made is not None and (made.get("smooth") == 0.5) == (size > 4)
    static = jit_passes.quantize_script(scripted, CALIBRATION, mode="static", **given)
    assert worst(static, model) > 0.98
    if size == 100.0:
        raw = jit_passes.quantize_script(scripted, CALIBRATION, mode="static", smooth=None, **given)
        assert worst(raw, model) < 0.95


@pytest.mark.parametrize("learned", [0.3, 1.0])
@pytest.mark.parametrize("target", ["stock", "x86"])
def test_norms_behind_sums(learned: float, target: str) -> None:
    """An encoder whose residual sums read the norms too, with and without data.

    Its embedding stays in float: iterated norms amplify the ratio of the two large channels, so
    that the worst sentence hangs on the smallest numbers of its words, whatever comes behind.
    """
    model = outlying(100.0, learned)
    scripted = script(model)
    config = {"version": 1, "rules": [{"op": "embedding", "keep_float": True}]}
    given: dict[str, Any] = {"target": target, "progress": False, "config": config}
    for data in (CALIBRATION, None):
        assert worst(jit_passes.quantize_script(scripted, data, **given), model) > 0.998
        dynamic = jit_passes.quantize_script(scripted, data, mode="dynamic", **given)
        assert worst(dynamic, model) > 0.998
    static = jit_passes.quantize_script(scripted, CALIBRATION, mode="static", **given)
    assert worst(static, model) > 0.99


def test_smoothing_by_itself() -> None:
    """As `smooth` does, where channels are outlying, also from a generator; else not at all."""
    model = script(text(100.0))
    given: dict[str, Any] = {"target": "stock", "mode": "static", "progress": False}
    found = jit_passes.quantize_script(model, iter(CALIBRATION), smooth=0.5, **given)
    by_hand = jit_passes.smooth(model, CALIBRATION)
    wanted = jit_passes.quantize_script(by_hand, CALIBRATION, smooth=None, **given)
    tokens = tokens_of(4, 5)
    assert torch.equal(found(tokens), wanted(tokens))
    alone = jit_passes.quantize_script(model, iter(CALIBRATION), **given)
    made = jit_passes.provenance(alone)
    assert made is not None and len(made["smoothed"]) == 8 and "norm:layer_norm" not in made
    even = script(text(1.0))
    auto = jit_passes.quantize_script(even, CALIBRATION, **given)
    off = jit_passes.quantize_script(even, CALIBRATION, smooth=None, **given)
    assert str(auto.inlined_graph) == str(off.inlined_graph)
    assert torch.equal(auto(tokens), off(tokens))


def test_smoothing_and_what_it_does_not_go_with() -> None:
    model = script(text(100.0))
    profile = jit_passes.profile(model, CALIBRATION, progress=False)
    by_profile = jit_passes.quantize_script(model, profile=profile, target="stock", mode="static")
    small = jit_passes.quantize_script(model, mode="weight_only", target="stock")
    for quantized in (by_profile, small):
        made = jit_passes.provenance(quantized)
        assert made is not None and "smooth" not in made
    with pytest.raises(
        ValueError, match='smooth is "auto", "search", a number from 0 to 1, or None'
    ):
        jit_passes.quantize_script(model, CALIBRATION, smooth="yes")
    with pytest.raises(ValueError, match=r"smooth is .* or None, not 1\.5"):
        jit_passes.quantize_script(model, CALIBRATION, smooth=1.5)
    with pytest.raises(JitPassesError, match=r"smooth=0\.5 needs calibration data"):
        jit_passes.quantize_script(model, smooth=0.5)
    with pytest.raises(JitPassesError, match=r"smooth=0\.5 and a profile: .*jit_passes\.smooth"):
        jit_passes.quantize_script(model, profile=profile, smooth=0.5)


def test_comparing_with_the_model_before_smoothing() -> None:
    """Results of the norms are others, and left out; all others are compared."""
    model = script(text(100.0))
    given: dict[str, Any] = {"target": "reference", "mode": "static", "progress": False}
    quantized = jit_passes.quantize_script(model, CALIBRATION, **given)
    found = jit_passes.compare(model, quantized, [tokens_of(8, 3)], progress=False)
    names = {row.name for row in found.rows}
    assert not any(name.endswith("layer_norm") and "layers" in name for name in names)
    assert {"layers.0.inside.q:linear", "head:linear"} <= names
    assert min(row.sqnr for row in found.rows) > 12


def test_what_rules_say_wins() -> None:
    """Modes, float, and options that need ranges from data."""
    model = script(text(1.0))
    rules = [
        {"module": "layers.0", "mode": "static"},
        {"module": "layers.1", "keep_float": True},
        {"module": "layers.2.inside.up", "input": {"calibration": "entropy"}},
        {"module": "layers.2.inside.down", "output": {"bits": BITS}},
        {"module": "layers.3.inside.up", "weight": {"bits": 4}},
        {"module": "table", "mode": "dynamic"},
    ]
    config = {"version": 1, "rules": rules[:5]}
    auto = jit_passes.quantize_script(
        model, CALIBRATION, config=config, target="stock", progress=False
    )
    found = {name.replace("inside.", ""): mode for name, mode in modes(auto).items()}
    assert found["layers.0.q:linear"] == found["layers.0.up:linear"] == "static"
    assert found["layers.1.q:linear"] == "float"
    assert found["layers.2.up:linear"] == found["layers.2.down:linear"] == "static"
    assert found["layers.2.q:linear"] == found["layers.3.up:linear"] == "dynamic"
    bits = {row.name: row.bits for row in jit_passes.coverage(auto)}
    assert bits["layers.3.inside.up:linear"] == bits_here("w4a8")
    plain = {"version": 1, "global": {"mode": "static"}}
    static = jit_passes.quantize_script(
        model, CALIBRATION, config=plain, target="stock", progress=False
    )
    assert set(modes(static).values()) <= {"static", "float"}


def test_a_quantizer_has_a_mode_of_its_own() -> None:
    model = script(seeded(Net))
    quantizer = BackendQuantizer(Stock())
    with pytest.raises(JitPassesError, match="ranges come from"):
        jit_passes.quantize_script(model, quantizer=quantizer)
    with pytest.warns(JitPassesWarning, match="without data"):
        auto = jit_passes.quantize_script(model, quantizer=quantizer, mode="auto")
    assert modes(auto)["head:linear"] == "dynamic"


class Detector(nn.Module):
    """A backbone of convolutions, and a transformer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, WIDTH, 3))
        self.score = nn.Linear(WIDTH, 4)
        self.layer, self.head = Layer(), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.backbone(x))
        score = self.score(torch.relu(y.mean([2, 3])))
        return self.head(self.layer(y.flatten(2).transpose(1, 2))), score


class BeforeConvolutions(nn.Module):
    """A linear in front of a convolution, with attention behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Linear(8, 8), nn.Conv1d(6, WIDTH, 1)
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.conv(torch.relu(self.first(x))).transpose(1, 2))


@pytest.mark.parametrize("target", TARGETS)
def test_only_linears_beside_attention_are_dynamic(target: str) -> None:
    """A path to attention leads over no convolution."""
    given: dict[str, Any] = {"target": target, "progress": False}
    found = modes(jit_passes.quantize_script(script(seeded(Detector)), IMAGES, **given))
    assert found["backbone.0:conv2d"] == found["backbone.2:conv2d"] == "static"
    assert found["layer.q:linear"] == found["head:linear"] == "dynamic"
    model, data = script(seeded(BeforeConvolutions)), [torch.randn(2, 6, 8)]
    found = modes(jit_passes.quantize_script(model, data, **given))
    assert found["first:linear"] == found["conv:conv1d"] == "static"
    assert found["layer.up:linear"] == "dynamic"


class Patches(nn.Module):
    """A vision transformer of one layer, with patches side by side or not."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, **{"kernel_size": 4, "stride": 4, **options})
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.patches(x).flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("dynamic", {}),
        ("dynamic", {"stride": (4, 4)}),
        ("static", {"stride": 3}),
        ("static", {"stride": (4, 2)}),
        ("static", {"padding": 1}),
        ("static", {"dilation": 2}),
        ("static", {"groups": 3}),
    ],
)
def test_patches_of_a_transformer(mode: str, options: dict[str, Any]) -> None:
    """Patches side by side are a linear layer; a target without dynamic ones has them static."""
    model = script(seeded(lambda: Patches(**options)))
    data = [torch.randn(2, 3, 16, 16) for _ in range(4)]
    found = modes(jit_passes.quantize_script(model, data, target="x86", progress=False))
    assert found["patches:conv2d"] == mode and found["layer.q:linear"] == "dynamic"
    found = modes(jit_passes.quantize_script(model, data, target="stock", progress=False))
    slow = "groups" in options and not VNNI  # FBGEMM computes them in 100 times the time of float
    assert found["patches:conv2d"] == ("float" if slow else "static")


@pytest.mark.parametrize("target", ["reference", "x86"])
def test_products_on_integers_by_a_rule(target: str) -> None:
    """Of one layer, or of all: between dynamic linears they convert more values than they save."""
    model, data = script(seeded(Encoder)), CALIBRATION
    given: dict[str, Any] = {"target": target, "progress": False}

    def quantized(*rules: dict[str, Any]) -> torch.jit.ScriptModule:
        config = {"version": 1, "rules": list(rules)}
        return jit_passes.quantize_script(model, data, config=config, **given)

    def products(found: torch.jit.ScriptModule) -> dict[str, str]:
        return {name: mode for name, mode in modes(found).items() if "matmul" in name}

    some = quantized({"module": "layers.1", "op": "matmul", "mode": "static"})
    assert {name[:8] for name, mode in products(some).items() if mode == "static"} == {"layers.1"}
    assert len(products(some)) == 12
    every = quantized({"op": "matmul", "mode": "static"})
    assert set(products(every).values()) == {"static"}
    assert modes(every)["layers.0.q:linear"] == "dynamic"
    found = jit_passes.compare(model, every, CALIBRATION)  # all its codes are within one plan
    assert found.sqnr > 30 and (target == "reference" or "layers.0:matmul" in found.unmatched)
    undone = {"module": "layers.2", "op": "matmul", "keep_float": True}
    found = products(quantized({"op": "matmul", "mode": "static"}, undone))
    assert {name[:8] for name, mode in found.items() if mode == "float"} == {"layers.2"}
    tokens = tokens_of(32, 9)
    with torch.no_grad():
        for mixed in (some, every):
            assert F.cosine_similarity(mixed(tokens), model(tokens)).min() > 0.998
        float_products = quantized()
    assert set(products(float_products).values()) == {"float"}
    linears, both = 12 * WIDTH, 2 * tokens.shape[1]
    assert integer_share(model, float_products, tokens) == linears / (linears + both)
    assert integer_share(model, every, tokens) == 1


class Listener(nn.Module):
    """A convolution and a linear, a recurrent layer, and two linears."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze = nn.Conv1d(6, WIDTH, 3), nn.Linear(WIDTH, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.up, self.letters = nn.Linear(WIDTH, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.squeeze(torch.relu(self.conv(x)).transpose(1, 2)))
        return self.letters(torch.relu(self.up(self.gru(y)[0])))


@pytest.mark.parametrize("target", TARGETS)
def test_linears_beside_recurrent_layers_are_dynamic(target: str) -> None:
    """Rounding what they give to a grid of the data costs more than the layer itself does."""
    model, data = script(seeded(Listener)), [torch.randn(4, 6, 20) for _ in range(4)]
    quantized = jit_passes.quantize_script(model, data, target=target, progress=False)
    found = modes(quantized)
    assert found.pop("conv:conv1d") == "static"
    assert set(found.values()) == {"dynamic"} and len(found) == 4
    assert (
        "recurrent layer"
        in next(r for r in jit_passes.coverage(quantized) if r.kind == "linear").why
    )


class Recommender(nn.Module):
    """Embeddings, bags and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.items = nn.Embedding(50, 16), nn.EmbeddingBag(40, 16, mode="sum")
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        return self.mlp(torch.cat([self.user(user), self.items(items)], 1))


def test_a_recommender() -> None:
    """Tables by weight, the rest dynamic, with data and without; a file keeps the reasons."""
    model = script(seeded(Recommender))
    batch = (torch.randint(50, (8,)), torch.randint(40, (8, 5)))
    for data, why in (([batch], "beside an embedding, whose rows are float32"), (None, "no data")):
        with warnings.catch_warnings():
            warnings.simplefilter("error", JitPassesWarning)
            lowered = jit_passes.quantize_script(model, data, target="stock", progress=False)
        buffer = io.BytesIO()
        torch.jit.save(lowered, buffer)
        buffer.seek(0)
        rows = {row.kind: row for row in jit_passes.coverage(torch.jit.load(buffer))}
        assert {kind: row.mode for kind, row in rows.items()} == {
            "embedding": "weight_only",
            "embedding_bag": "weight_only",
            "linear": "dynamic",
        }
        assert rows["linear"].why == why
        assert rows["embedding"].why == "an embedding only looks up rows"
        assert "an embedding only looks" in str(jit_passes.coverage(lowered))
        with torch.no_grad():
            noise = (lowered(*batch) - model(*batch)).square().sum()
            assert 10 * torch.log10(model(*batch).square().sum() / noise) > 25


class Linears(nn.Module):
    """Two linears, of no transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(
    ("target", "mode"),
    [("x86", "dynamic"), ("stock", "dynamic"), ("onnxruntime", "weight_only"),
     ("openvino", "weight_only")],
)  # fmt: skip
def test_weights_in_groups_have_a_mode_that_takes_them(target: str, mode: str, data: bool) -> None:
    """With data too, where linears are static otherwise; a rule about ranges is not overruled."""
    torch.manual_seed(0)
    model, x = script(Linears()), torch.randn(8, 64)
    config: dict[str, Any] = {"version": 1, "global": {"weight": {"bits": 4, "group_size": 32}}}
    given: dict[str, Any] = {"target": target, "progress": False}
    batches = [x] if data else None
    lowered = jit_passes.quantize_script(model, batches, config=config, strict=True, **given)
    assert modes(lowered) == {"body:linear": mode, "head:linear": mode}
    rows = jit_passes.coverage(lowered)
    assert {row.bits[:5] for row in rows} == {"w4g32"}
    assert all(("in groups" in row.why) is data for row in rows)
    assert sqnr(model(x), lowered(x)) > 15
    if data:
        rule = {"module": "head", "weight": {"channelwise": True}, "output": {"range": [-2, 2]}}
        lowered = jit_passes.quantize_script(model, [x], config=config | {"rules": [rule]}, **given)
        assert modes(lowered) == {"body:linear": mode, "head:linear": "static"}


def test_training_is_static() -> None:
    qat = jit_passes.prepare_qat(script(seeded(Net)), target="stock")
    assert all(row.mode in ("static", "") for row in jit_passes.coverage(qat))
