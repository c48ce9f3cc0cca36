"""Large channels behind layer norms, moved into the weights of linears."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning
from jit_passes.command_line import main as command
from tests.outlying import WIDTH, WORDS, outlying

X = torch.linspace(-2, 2, 2 * 5 * 8).reshape(2, 5, 8).sin()
SIZES = torch.tensor([1.0, 50.0, 1.0, 0.02, 1.0, 0.0, 3.0, 1.0])  # of the channels


class Net(nn.Module):
    """Norms that one linear reads, that several read, and that others read too."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.several, self.shared = (nn.LayerNorm(8) for _ in range(3))
        self.plain = nn.LayerNorm(8, elementwise_affine=False)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(8, 6)
        self.up, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        for norm in (self.alone, self.several, self.shared):
            norm.weight.data = SIZES.clone()
            norm.bias.data = torch.linspace(-1, 1, 8) * SIZES

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., 4]."""
        x = self.first(self.alone(x))
        y = self.several(x)
        y = F.pad(self.second(y) * self.third(y), [0, 2])
        y = self.shared(y)
        return self.last(self.plain(y + self.up(y)))


def net() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def graph_of(model: torch.jit.ScriptModule) -> GraphView:
    return jit_passes.normalized_graph(model)


def read_by_linears(graph: GraphView) -> list[tuple[Any, list[Any]]]:
    """Return each layer norm, and the linears that read it."""
    norms = [node for node in graph.nodes if node.kind == "aten::layer_norm"]
    pairs = [(n, [u for u, _ in n.output.uses if u.kind == "aten::linear"]) for n in norms]
    return [(norm, linears) for norm, linears in pairs if linears]


@pytest.mark.parametrize("strength", [0.0, 0.3, 0.5, 1.0])
def test_the_equation(strength: float) -> None:
    """In double precision, by hand; and the model computes what it did."""
    model = net()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    data = [X, X * 0.5 + 0.1]
    smoothed = jit_passes.smooth(model, data, strength=strength)
    values: dict[str, float] = {}
    originals = dict(read_by_linears_with_values(model, data))
    for norm, linears in read_by_linears(graph_of(smoothed)):
        name = norm.name.partition(":")[0]
        largest, gain, weights = originals[name]
        most = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
        expected = largest**strength / most ** (1 - strength)
        expected[(largest == 0) | (most == 0)] = 1
        actual = torch.ones(8) if gain is None else gain
        assert torch.allclose(norm.inputs[2].constant.double() * expected, actual.double())
        for linear, weight in zip(linears, weights, strict=True):
            assert torch.allclose(linear.inputs[1].constant.double() / expected, weight, atol=1e-7)
        values[name] = float(expected.max() / expected.min())
    assert set(values) == {"alone", "several", "shared", "plain"}
    assert max(values.values()) > 5 or strength == 0
    for x in data:
        torch.testing.assert_close(smoothed(x), model(x), rtol=1e-5, atol=2e-6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def read_by_linears_with_values(model: Any, data: list[Tensor]) -> Any:
    """Yield name, (largest magnitudes, gain, weights) of each norm, from the eager module."""
    torch.manual_seed(0)
    eager = Net().eval()
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            found = output.detach().abs().flatten(0, -2).amax(0).double()
            seen[name] = torch.maximum(seen.get(name, torch.zeros(8)), found)

        return hook

    readers = {"alone": ["first"], "several": ["second", "third"], "shared": ["up"]}
    readers["plain"] = ["last"]
    for name in readers:
        eager.get_submodule(name).register_forward_hook(keep(name))
    for x in data:
        eager(x)
    for name, linears in readers.items():
        weights = [eager.get_submodule(n).weight.detach().double() for n in linears]
        yield name, (seen[name], eager.get_submodule(name).weight, weights)


def test_residuals_keep_their_layer_norm() -> None:
    model = net()
    smoothed = jit_passes.smooth(model, [X])
    of_sum = [
        node.inputs[0].producer for node in graph_of(smoothed).nodes if node.kind == "aten::add"
    ]
    (kept,) = (node for node in of_sum if node is not None and node.kind == "aten::layer_norm")
    assert torch.equal(kept.inputs[2].constant, SIZES)
    kinds = [node.kind for node in graph_of(smoothed).nodes]
    assert kinds.count("aten::layer_norm") == 5  # one more than before


def test_names_files_and_what_follows() -> None:
    """The smoothed model goes through all stages, and its values have the names that they had."""
    model = net()
    smoothed = jit_passes.smooth(model, [X])
    assert {n.name for n in graph_of(model).nodes} <= {n.name for n in graph_of(smoothed).nodes}
    buffer = io.BytesIO()
    torch.jit.save(smoothed, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    assert torch.equal(loaded(X), smoothed(X))
    for target in ("reference", "stock", "x86"):
        quantized = jit_passes.quantize_script(loaded, [X], target=target, progress=False)
        assert quantized(X).isfinite().all()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, wide: bool) -> Tensor:
        y = x[..., :4]
        if wide:
            for _ in range(2):
                y = y + self.linear(self.norm(x))
        return y


def test_branches_and_loops() -> None:
    model = torch.jit.script(Branch().eval())
    smoothed = jit_passes.smooth(model, [(X * SIZES, True), (X, False)])
    torch.testing.assert_close(smoothed(X, True), model(X, True))
    never = jit_passes.smooth(model, [(X, False)])  # no data came by: it stays as it is
    assert torch.equal(never(X, True), model(X, True))


def test_a_sentence_encoder_with_outlying_dimensions() -> None:
    """The cosine to float of the worst of 32 sentences: 0.90 and -0.04 without."""
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(0, WORDS, (4, 24), generator=generator) for _ in range(8)]
    tokens = torch.randint(0, WORDS, (32, 24), generator=generator)
    for learned in (0.3, 1.0):
        model = torch.jit.script(outlying(100.0, learned))
        smoothed = jit_passes.smooth(model, data)
        with torch.no_grad():
            expected = model(tokens)
            torch.testing.assert_close(smoothed(tokens), expected, rtol=1e-4, atol=1e-5)
            for source, least, most in ((model, -1, 0.93), (smoothed, 0.999, 1.001)):
                quantized = jit_passes.quantize_script(
                    source, data, target="reference", mode="static", smooth=None
                )
                cosine = F.cosine_similarity(quantized(tokens), expected).min()
                assert least < float(cosine) < most
    assert smoothed(tokens).shape == (32, WIDTH)


def test_a_model_without_layer_norms() -> None:
    """A strength that somebody asks for and that changes nothing is told of; auto is not."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()).eval())
    data = [torch.randn(2, 3, 4, 4)]
    plain = jit_passes.quantize_script(model, data, progress=False)
    with pytest.warns(
        jit_passes.JitPassesWarning, match=r"smooth=0\.5 changes nothing: no layer no"
    ):
        asked = jit_passes.quantize_script(model, data, smooth=0.5, progress=False)
    assert torch.equal(plain(data[0]), asked(data[0]))


def test_errors() -> None:
    with pytest.raises(JitPassesError, match="nothing to smooth: no layer norm"):
        jit_passes.smooth(torch.jit.script(nn.Sequential(nn.Linear(3, 3)).eval()), [X])
    with pytest.raises(ValueError, match=r"strength is a number from 0 to 1, not 1\.5"):
        jit_passes.smooth(net(), [X], strength=1.5)
    with pytest.raises(ValueError, match="strength is a number from 0 to 1, not True"):
        jit_passes.smooth(net(), [X], strength=True)
    with pytest.raises(
        JitPassesError,
        match="batch 0 of the data holds a NaN or an infinity, or gives alone:layer_norm one",
    ):
        jit_passes.smooth(net(), [X / 0])
    with pytest.raises(JitPassesError, match="the data is empty"):
        jit_passes.smooth(net(), [])
    with pytest.raises(JitPassesError, match="training mode"):
        jit_passes.smooth(net().train(), [X])
    with pytest.raises(JitPassesError, match=r"batch 0 of the data does not run.*float32.2, 5, 9"):
        jit_passes.smooth(net(), [X.new_zeros(2, 5, 9)])
    for target in ("stock", "reference"):
        quantized = jit_passes.quantize_script(net(), [X], target=target, progress=False)
        with pytest.raises(JitPassesError, match="already"):
            jit_passes.smooth(quantized, [X])


def traced_under_autocast() -> torch.jit.ScriptModule:
    """Weights of linears are bfloat16 there, those of layer norms float32."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(8)
    norm.weight.data = SIZES.clone()
    model = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 4)).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.jit.trace(model, X, check_trace=False)


def test_each_weight_keeps_its_dtype() -> None:
    """The model computes what it did: rounding a weight anew costs 2^-9 of it at most."""
    model = traced_under_autocast()
    smoothed = jit_passes.smooth(model, [X])
    ((norm, (linear,)),) = read_by_linears(graph_of(smoothed))
    before = graph_of(model).nodes
    (gain,) = (n.inputs[2].constant for n in before if n.kind == "aten::layer_norm")
    assert (norm.inputs[2].dtype, linear.inputs[1].dtype) == (torch.float32, torch.bfloat16)
    assert not torch.equal(norm.inputs[2].constant, gain)
    expected = model(X).float()
    error = (smoothed(X).float() - expected).abs().max()
    assert error < 2**-6 * expected.abs().max()  # of four roundings: both factors, twice
    assert smoothed(X).dtype == torch.bfloat16


@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
@pytest.mark.parametrize("smooth", ["auto", 0.5])
@pytest.mark.filterwarnings("ignore:smooth=0.5 changes nothing")
def test_layer_norms_in_front_of_float_linears(target: str, smooth: str | float) -> None:
    """Weights of another dtype than float32 stay float: nothing is gained by rounding them anew."""
    model = traced_under_autocast()
    with pytest.warns(JitPassesWarning, match=r"trace the model in float32, without autocast"):
        made = jit_passes.quantize_script(model, [X], target=target, smooth=smooth)
    assert torch.equal(made(X), model(X))
    assert "smoothed" not in (jit_passes.provenance(made) or {})


def test_shapes_of_batches() -> None:
    """Tokens count one by one, in whatever shape they come; an empty batch adds none."""
    tokens = list(X.reshape(-1, 8))
    whole = jit_passes.smooth(net(), [X])
    alone = jit_passes.smooth(net(), [*tokens, X.new_zeros(0, 5, 8), X.new_zeros(2, 0, 8)])
    torch.testing.assert_close(alone(X), whole(X), rtol=1e-6, atol=1e-6)
    for one, other in zip(constants(whole), constants(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0)  # sums in another order


def constants(model: torch.jit.ScriptModule) -> list[Tensor]:
    return [
        value
        for node in graph_of(model).nodes
        for i in node.inputs
        if isinstance(value := i.constant, Tensor)
    ]


def test_the_command(tmp_path: Path) -> None:
    """The command does as the function does, and gives an error where it has no data."""
    torch.jit.save(net(), tmp_path / "float.pt")
    np.savez(tmp_path / "data.npz", x=X.numpy())
    given = ["quantize", tmp_path / "float.pt", "--smooth", 0.5, "-o", tmp_path / "int8.pt"]
    assert command([*map(str, given), "--mode", "dynamic"]) == 2
    assert command([*map(str, given), "--data", str(tmp_path / "data.npz")]) == 0
    made = jit_passes.provenance(torch.jit.load(tmp_path / "int8.pt"))
    assert made is not None and made["smooth"] == 0.5
    smoothed = jit_passes.smooth(torch.jit.load(tmp_path / "float.pt"), [X])
    expected = jit_passes.quantize_script(smoothed, [X], smooth=None, progress=False)
    assert torch.equal(torch.jit.load(tmp_path / "int8.pt")(X), expected(X))
