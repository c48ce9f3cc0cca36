"""Ranges of weights with a scale for each channel, by squared error, against searches in double."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.view import GraphView
from jit_passes.observers import Histogram, MeanSquaredError, MinMax, OutputError
from jit_passes.quantizer import QuantizationSpec, TensorOptions

FACTORS = 40
search = torch.ops.jit_passes.search_range_of_rows


def error_of(
    row: Tensor,
    importance: Tensor,
    low: float,
    high: float,
    codes: tuple[int, int],
    symmetric: bool,
) -> float:
    """The squared error of a row, number by number, in double."""
    least, most = codes
    if symmetric:
        scale, zero = 2 * max(-low, high) / (most - least), (least + most + 1) // 2
    else:
        scale = (high - low) / (most - least)
        zero = least - round(low / scale)
    rounded = ((row / scale).round() + zero).clamp(least, most)
    return float((importance * ((rounded - zero) * scale - row).square()).sum())


def candidates(
    row: Tensor, codes: tuple[int, int], symmetric: bool, steps: int
) -> Iterator[tuple[float, float]]:
    """All ranges of a grid; symmetric ones up to the first with a code for each number."""
    low, high = min(float(row.min()), 0.0), max(float(row.max()), 0.0)
    if symmetric:
        low, high = -max(-low, high), max(-low, high)
    together = symmetric or low == 0 or high == 0
    if symmetric and sum(codes) != 0:
        least, most = codes
        middle = (least + most + 1) // 2
        widest = (most - least) / 2 / min(most - middle, middle - least)
        yield widest * low, widest * high
        for a in range(steps + 1, int(widest * steps) + 1):
            yield a / steps * low, a / steps * high
    for a in range(1, steps + 1):
        for b in (a,) if together else range(1, steps + 1):
            yield a / steps * low, b / steps * high


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("codes", [(-7, 7), (-8, 7), (-127, 127), (0, 3)], ids=str)
def test_each_row_has_its_best_range(
    codes: tuple[int, int], symmetric: bool, weighted: bool
) -> None:
    """The error is the least of the grid, but for float32: 1e-5 of it."""
    generator = torch.Generator().manual_seed(codes[1])
    rows = torch.randn(9, 75, generator=generator) ** 3  # long tails
    rows[0] = rows[0].abs()
    rows[1] *= 1e-12
    rows[2] = 0
    importance = torch.rand(9, 75, generator=generator) ** 4 if weighted else torch.ones(9, 75)
    given = importance if weighted else None
    exact = search(rows, given, *codes, symmetric, FACTORS)
    fast = search(rows, given, *codes, symmetric, 0)
    assert exact.shape == fast.shape == (2, 9) and not exact[:, 2].any()
    gained = []
    for i in (0, 1, 3, 4, 5, 6, 7, 8):
        row, counts = rows[i].double(), importance[i].double()
        error = partial(error_of, row, counts, codes=codes, symmetric=symmetric)
        errors = [error(*ends) for ends in candidates(row, codes, symmetric, FACTORS)]
        assert error(*exact[:, i].tolist()) <= min(errors) * (1 + 1e-5)
        # Coarse to fine resolves a thousandth, and may end in another dent of the error. Of two
        # ends, one is looked for after the other.
        most = min(errors) * 1.1 if symmetric else errors[-1] * (1 + 1e-5)
        assert error(*fast[:, i].tolist()) <= most
        gained.append(errors[-1] / min(errors))
    assert max(gained) > 1.05 or codes[1] == 127  # there is something to be found


def test_importance_of_nothing_counts_alike() -> None:
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    alike = search(rows, torch.zeros(3, 40), -7, 7, True, 0)
    assert torch.equal(alike, search(rows, None, -7, 7, True, 0))


class Net(nn.Module):
    """Layers of all kinds: with groups, transposed, and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.groups = nn.Conv2d(8, 6, 3, groups=2)
        self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
        self.last = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, 7]."""
        x = self.groups(self.first(x).relu()).relu()
        return self.last(self.up(x).relu().mean([2, 3]))


LAYERS = ("first", "groups", "up", "last")


def net() -> Net:
    torch.manual_seed(0)
    model = Net().eval()
    for name in LAYERS:
        weight = getattr(model, name).weight
        weight.data = weight.data**3 * 20
    return model


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([0.02, 1.0, 5.0, 0.3]).reshape(4, 1, 1)
    return [torch.randn(4, 4, 9, 9, generator=generator) * sizes for _ in range(3)]


def config(**weight: Any) -> dict[str, Any]:
    return {"version": 1, "global": {"weight": {"bits": 4, **weight}}}


def prepared(observer: Any, **weight: Any) -> torch.jit.ScriptModule:
    options = config(calibration=observer, **weight)
    return jit_passes.prepare(torch.jit.script(net()), target="reference", config=options)


def scales(reference: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return the scales of each weight."""
    found = {}
    for node in GraphView.of(reference).nodes:
        if node.traits.weighted is not None:
            made = node.operand("weight").producer
            assert made is not None and made.kind.startswith("jit_passes::dequantize")
            found[node.module] = torch.as_tensor(made.inputs[1].constant, dtype=torch.float64)
    return found


def mean_squares(model: Net) -> dict[str, Tensor]:
    """Return for each layer the squares of its inputs by channel, from the eager model."""
    found: dict[str, Tensor] = {}
    for name in LAYERS:

        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
            x = inputs[0].detach().double().movedim(-1 if x_is_flat(layer) else 1, 0)
            found[name] = found.get(name, torch.zeros(())) + x.flatten(1).square().sum(1)

        getattr(model, name).register_forward_pre_hook(keep)
    for batch in data():
        model(batch)
    return found


def x_is_flat(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear)


def rows_of(name: str, weight: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of weights by output channel, and the importance of each number."""
    weight = weight.detach().double()
    if name == "up":
        weight, spread = weight.transpose(0, 1), squares.reshape(1, -1, 1, 1)
    elif name == "groups":
        spread = squares.reshape(2, 4).repeat_interleave(3, 0).reshape(6, 4, 1, 1)
    else:
        spread = squares.reshape(1, -1, *[1] * (weight.dim() - 2))
    return weight.flatten(1), spread.expand_as(weight).flatten(1)


@pytest.mark.parametrize(
    "observer", [MeanSquaredError(FACTORS), OutputError(), Histogram()], ids=str
)
def test_layers_of_all_kinds(observer: Any) -> None:
    """Scales of a model have no more error than the best of a grid in double, weighted or not."""
    calibrated = jit_passes.calibrate(prepared(observer), data(), progress=False)
    found = scales(jit_passes.convert(calibrated))
    least = jit_passes.calibrate(prepared(MinMax()), data(), progress=False)
    plain = scales(jit_passes.convert(least))
    model = net()
    squares = mean_squares(net())
    assert set(found) == set(LAYERS)
    for name in LAYERS:
        rows, importance = rows_of(name, getattr(model, name).weight, squares[name])
        if not isinstance(observer, OutputError):
            importance = torch.ones_like(importance)
        assert found[name].shape == (len(rows),)
        assert (found[name] <= plain[name] * (1 + 1e-6)).all()
        for row, counts, scale in zip(rows, importance, found[name].tolist(), strict=True):
            errors = [
                error_of(row, counts, *ends, (-7, 7), True)
                for ends in candidates(row, (-7, 7), True, FACTORS)
            ]
            own = error_of(row, counts, -7 * scale, 7 * scale, (-7, 7), True)
            assert own <= min(errors) * (1.1 if observer != MeanSquaredError(FACTORS) else 1.0001)


def test_the_error_of_the_result_falls() -> None:
    """Of weights in 4 bits: by squared error less than by the largest number, by inputs least."""
    model = torch.jit.script(net())
    batches = data()
    errors = []
    for method in ("min_max", "mean_squared_error", "output_error"):
        options = {"weight": {"bits": 4, "calibration": method}, "output": {"dtype": "float"}}
        options["input"] = {"dtype": "float"}
        made = jit_passes.quantize_script(
            model, batches, target="reference", mode="static", progress=False,
            config={"version": 1, "rules": [{"module": "first", **options}]},
        )  # fmt: skip
        (scale,) = (s for name, s in scales_of_all(made).items() if name == "first")
        weight = net().first.weight.detach().double()
        rounded = (weight / scale.reshape(-1, 1, 1, 1)).round().clamp(-7, 7)
        weight = (rounded * scale.reshape(-1, 1, 1, 1) - weight).float()
        errors.append(sum(nn.functional.conv2d(x, weight).square().sum() for x in batches))
    assert errors[2] < errors[1] < errors[0]


def scales_of_all(reference: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return the scales of the weights that are quantized."""
    found = {}
    for node in GraphView.of(reference).nodes:
        made = node.operand("weight").producer if node.traits.weighted is not None else None
        if made is not None and made.kind.startswith("jit_passes::dequantize"):
            found[node.module] = made.inputs[1].constant
    return found


def test_one_scale_and_groups() -> None:
    """A whole weight is one row; a group is a row of its own."""
    whole = jit_passes.calibrate(prepared(OutputError(), channelwise=False), data(), progress=False)
    assert {scale.dim() for scale in scales(jit_passes.convert(whole)).values()} == {0}
    rules = [{"module": "last", "weight": {"group_size": 5, "calibration": "output_error"}}]
    options = {**config(), "rules": rules}
    model = jit_passes.prepare(torch.jit.script(net()), target="reference", config=options)
    made = jit_passes.convert(jit_passes.calibrate(model, data(), progress=False))
    assert scales(made)["last"].shape == (7, 1)


def test_files() -> None:
    """A model that was saved in mid-calibration goes on, to the bit."""
    model = jit_passes.calibrate(prepared(OutputError()), data()[:1], progress=False)
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    one, other = (
        scales(jit_passes.convert(jit_passes.calibrate(m, data()[1:], progress=False)))
        for m in (model, loaded)
    )
    assert all(torch.equal(one[name], other[name]) for name in LAYERS)


def test_without_data_all_inputs_count_alike() -> None:
    """Weights of the mode weight_only need no data."""
    found = [
        scales(
            jit_passes.quantize_script(
                torch.jit.script(net()), target="reference", mode="weight_only",
                config=config(calibration=method),
            )
        )
        for method in ("histogram", "output_error")
    ]  # fmt: skip
    assert set(found[0]) == set(LAYERS)
    assert all(torch.equal(found[0][name], found[1][name]) for name in LAYERS)


def test_profiles() -> None:
    """Squared errors of weights need no data; those of results need more than a profile has."""
    model = torch.jit.script(net())
    profile = jit_passes.profile(model, data(), progress=False)
    options = config(calibration="mean_squared_error")
    made = jit_passes.quantize_script(model, profile=profile, target="reference", config=options)
    calibrated = jit_passes.calibrate(prepared(MeanSquaredError()), data(), progress=False)
    expected = scales(jit_passes.convert(calibrated))
    assert all(torch.equal(found, expected[name]) for name, found in scales(made).items())
    with pytest.raises(JitPassesError, match=r"mean squares of its inputs.*no profile has"):
        options = config(calibration="output_error")
        jit_passes.quantize_script(model, profile=profile, target="reference", config=options)


def test_activations_have_no_rows() -> None:
    options = {"version": 1, "global": {"output": {"calibration": "output_error"}}}
    with pytest.raises(JitPassesError, match="the model computes it: calibrate with min_max"):
        jit_passes.prepare(torch.jit.script(net()), target="reference", config=options)


def test_nobody_searches_unasked() -> None:
    """The default of a scale for each channel is the largest number, as it was."""
    spec = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0)
    assert spec.observer == MinMax()
    asked = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, Histogram())
    assert asked.observer == Histogram()
    by_options = TensorOptions(channelwise=True).apply(QuantizationSpec("int8"), ch_axis=0)
    assert isinstance(by_options, QuantizationSpec) and by_options.observer == MinMax()
