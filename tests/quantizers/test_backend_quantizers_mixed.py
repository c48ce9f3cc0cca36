"""One net of mixed precision, told in calls, objects and files."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from jit_passes.observers import KLJ, Histogram, MinMax, Observer, ObserverState
from jit_passes.passes.subject import wrap
from jit_passes.quantizer import (
    BackendQuantizer,
    Configuration,
    LayerOptions,
    Quantizer,
    Rule,
    Selector,
    TensorOptions,
    choose_qparams,
    from_nni,
)
from jit_passes.stages.module import REPORT
from jit_passes.targets import Reference, Stock
from tests.processor import BITS
from tests.quantizing import (
    ACTIVATIONS,
    AFFINE,
    ALL,
    FC,
    KL,
    SHIFTED,
    WEIGHTS,
    ByHand,
    Layers,
    exponent_of,
    images,
    reference_of,
    results,
    seeded,
    weights,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.conv(x))


class Six(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Sequential(*(Block() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x)


YAML = """
version: 1
global:
  input: {dtype: int8, scheme: power_of_two, calibration: min_max}
  weight: {scheme: power_of_two, channelwise: false}
rules:
  - module: ["b.0.conv", "b.5.conv"]
    input: {bits: 8, dtype: uint8, scheme: affine, calibration: min_max}
    weight: {bits: 8, scheme: symmetric, channelwise: true}
  - module: b.2.conv
    keep_float: true
  - module: b.3.conv
    input: {dtype: uint8, scheme: affine, calibration: klj}
    weight: {bits: 4, scheme: symmetric, channelwise: true}
"""
ENDS = LayerOptions(
    input=TensorOptions(bits=8, dtype="uint8", scheme="affine", calibration=MinMax()),
    weight=TensorOptions(bits=8, scheme="symmetric", channelwise=True),
)
REST = LayerOptions(
    input=TensorOptions(dtype="int8", scheme="power_of_two", calibration=MinMax()),
    weight=TensorOptions(scheme="power_of_two", channelwise=False),
)
FOUR = LayerOptions(
    input=TensorOptions(dtype="uint8", scheme="affine", calibration=KLJ()),
    weight=TensorOptions(bits=4, scheme="symmetric", channelwise=True),
)


def in_calls() -> BackendQuantizer:
    quantizer = Reference().quantizer().set_global(REST)
    for name in ("b.0.conv", "b.5.conv"):
        quantizer.set_module_name(name, ENDS)
    return quantizer.set_module_name("b.2.conv", None).set_module_name("b.3.conv", FOUR)


def in_objects() -> BackendQuantizer:
    rules = (
        Rule(Selector(module=("b.0.conv", "b.5.conv")), ENDS),
        Rule(Selector(module="b.2.conv"), LayerOptions(keep_float=True)),
        Rule(Selector(module="b.3.conv"), FOUR),
    )
    return Reference().quantizer().configure(Configuration(REST, rules))


def mixed(quantizer: Quantizer, **options: Any) -> torch.jit.ScriptModule:
    data = images(2, 4, 8, 8)
    return reference_of(seeded(Six), quantizer, data, target="reference", **options)


@pytest.fixture(scope="module")
def from_yaml(tmp_path_factory: pytest.TempPathFactory) -> torch.jit.ScriptModule:
    file: Path = tmp_path_factory.mktemp("mixed") / "layers.yaml"
    file.write_text(YAML)
    return mixed(Reference().quantizer(), config=file)


@pytest.fixture(scope="module")
def collected() -> dict[str, list[Tensor]]:
    """The float values at the inputs and results of the blocks, by hooks of eager PyTorch."""
    model, data = seeded(Six), images(2, 4, 8, 8)
    found: dict[str, list[Tensor]] = {"x": data}
    for number, block in enumerate(model.b):
        values = found.setdefault(f"b.{number}.relu:relu", [])
        block.register_forward_hook(lambda _, __, y, values=values: values.append(y))
    with torch.no_grad():
        for x in data:
            model(x)
    return found


def measure(observer: Observer, values: list[Tensor]) -> ObserverState:
    """The buffers of the observer's operator."""
    inf = float("inf")
    range_ = torch.tensor([inf, -inf, inf, -inf, 0, 0], dtype=torch.float64)
    if isinstance(observer, MinMax):
        for value in values:
            torch.ops.jit_passes.observe_min_max(value, range_, "", "")
        return ObserverState(range_, None)
    assert isinstance(observer, Histogram | KLJ)
    histogram = torch.zeros(observer.bins, dtype=torch.int64)
    for value in values:
        torch.ops.jit_passes.observe_histogram(value, range_, histogram, "", "")
    return ObserverState(range_, histogram)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mixed_activations(
    name: str, from_yaml: torch.jit.ScriptModule, collected: dict[str, list[Tensor]]
) -> None:
    """Range, scheme and calibration of each activation are those that its layers ask for."""
    spec, rows, values = ACTIVATIONS[name], results(from_yaml), collected[name]
    assert list(rows) == list(ACTIVATIONS)
    ((scale, zero_point, *codes),) = rows[name]
    expected = choose_qparams(spec, measure(spec.observer, values))
    assert (scale, zero_point) == (expected.scale, expected.zero_point)
    assert codes == [spec.quant_min, spec.quant_max, getattr(torch, spec.dtype)]
    if spec is AFFINE:
        observer = torch.ao.quantization.MinMaxObserver()
        for value in values:
            observer(value)
        assert (scale, zero_point) == tuple(map(float, observer.calculate_qparams()))
    elif spec is SHIFTED:
        exponent = exponent_of(torch.cat(values), 8)
        assert (scale, zero_point) == (2.0**exponent, 0)
    elif spec is KL:  # it is not what the extremes give
        assert scale != choose_qparams(AFFINE, measure(MinMax(), values)).scale


@pytest.mark.parametrize("number", range(6))
def test_mixed_weights(number: int, from_yaml: torch.jit.ScriptModule) -> None:
    """Codes and scales of each weight, found in plain PyTorch; none in block 2."""
    stored, spec, name = weights(from_yaml), WEIGHTS.get(number), f"b.{number}.conv.weight"
    if spec is None:
        assert name not in stored
        return
    codes, scale = stored[name]
    weight = seeded(Six).get_parameter(name).detach()
    if spec.ch_axis is None:
        expected = 2.0 ** math.ceil(math.log2(float(weight.abs().max()) / 127))
        assert scale == expected
        scales = torch.tensor(expected)
    else:
        scales = weight.flatten(1).abs().amax(1) / spec.quant_max
        assert torch.equal(scale, scales.double())
        assert codes.abs().max() == spec.quant_max
        scales = scales[:, None, None, None]
    assert codes.dtype == torch.int8
    assert torch.equal(codes.float(), (weight / scales).round())


def file_of(module: torch.jit.ScriptModule) -> bytes:
    """The saved file, without the reasons why operators stayed float, which name the rule, and the
    note that says which quantizer and configuration made it.
    """
    report = json.loads(getattr(module, REPORT))
    report["made"] = {}
    for row in report["operators"]:
        row["reason"] = ""
    report["plan"] = ""  # of somebody's own annotations, which do not say what ranks kernels take
    copy = wrap(_C.clone(module._c, "forward"))
    _C.set_string_attribute(copy._c, REPORT, json.dumps(report))
    buffer = io.BytesIO()
    torch.jit.save(copy, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("way", [in_calls, in_objects, ByHand])
def test_the_same_file_in_all_ways(
    way: Callable[[], Quantizer], from_yaml: torch.jit.ScriptModule
) -> None:
    """Python calls, objects, and somebody's own quantizer give the bytes that the file gives."""
    assert file_of(mixed(way())) == file_of(from_yaml)


def test_the_same_file_from_text(from_yaml: torch.jit.ScriptModule) -> None:
    """The result of a YAML parser gives the file that the text gives."""
    found = mixed(Reference().quantizer(), config=yaml.safe_load(YAML))
    assert file_of(found) == file_of(from_yaml)


def test_the_same_file_from_nni() -> None:
    """NNI's lists of bits and exclusions give the file that YAML gives."""
    tensors = ["weight", "input", "output"]
    entries: list[dict[str, Any]] = [
        {"quant_types": tensors, "quant_bits": 8, "op_types": ["Conv2d"]},
        {"quant_types": ["weight"], "quant_bits": {"weight": 4}, "op_names": ["b.3.conv"]},
        {"exclude": True, "op_names": ["b.2.conv"]},
    ]
    eight = {name: {"bits": 8} for name in tensors}
    rules: list[dict[str, Any]] = [
        {"op": "*", "keep_float": True},
        {"module_type": "Conv2d", **eight, "keep_float": False},
        {"module": "b.3.conv", "weight": {"bits": 4}},
        {"module": "b.2.conv", "keep_float": True},
    ]
    found = mixed(Reference().quantizer(), config=from_nni(entries))
    stored = weights(found)
    assert stored["b.3.conv.weight"][0].abs().max() == 7
    assert "b.2.conv.weight" not in stored
    assert len(stored) == 10
    config = {"version": 1, "rules": rules}
    assert file_of(found) == file_of(mixed(Reference().quantizer(), config=config))


def test_inputs_and_weights_of_nni_on_kernels() -> None:
    """Results that NNI's list leaves out are quantized where the next operator reads them."""
    entry = {"quant_types": ["weight", "input"], "op_types": ["Conv2d", "Linear"]}
    script = torch.jit.script(seeded(Layers))
    ways: list[tuple[Any, Any]] = [
        (8, Stock(reduce_range=False)),
        ({"weight": 8, "input": BITS}, "stock"),
    ]
    for bits, target in ways:
        config = from_nni([{**entry, "quant_bits": bits}])
        int8 = jit_passes.quantize_script(script, images(), target=target, config=config)
        rows = {row.name: row.dtype for row in jit_passes.coverage(int8)}
        assert rows == dict.fromkeys(ALL, "int8") | {FC: "float"}  # nothing reads the last result
