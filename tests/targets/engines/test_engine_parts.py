"""The benchmark that runs parts of a file in an engine: which operators it names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from jit_passes import export_onnx
from jit_passes.report.conformance.subject import Subject
from tests.engines import Network, data, quantized

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from benchmarks import engine_parts

pytestmark = pytest.mark.usefixtures("translations_once")


class Streams(nn.Module):
    """A sum in float that two operators read, between two linears."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.first(x)
        return self.second(torch.tanh(y) * self.norm(y))


def written(network: nn.Module, batches: list[Tensor], engine: str, path: Path) -> Any:
    """Return a file for an engine, the reference model, and its arguments."""
    model = quantized(network, batches, engine)
    export_onnx(model, path, batches[0])
    return engine_parts.File(path), Subject.of(model, "forward"), (batches[0],)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("make", "shape", "parts", "codes"),
    [
        pytest.param(Network, (4, 3, 16, 16), 10, 20000, id="network"),
        pytest.param(Streams, (4, 8), 3, 64, id="streams"),
    ],
)
def test_parts_in_an_engine_differ_at_ties_alone(
    make: Any, shape: tuple[int, ...], parts: int, codes: int, engine: str, tmp_path: Path
) -> None:
    pytest.importorskip(engine)
    torch.manual_seed(0)
    given = written(make(), data(*shape), engine, tmp_path / "model.onnx")
    found = engine_parts.count(*given, partial(engine_parts.run, engine_parts.ENGINES[engine]))
    assert found.others == [] and found.ties <= 3
    assert found.parts >= parts and found.codes >= codes


@pytest.mark.parametrize(("change", "named"), [(1, 1), (0, 0)])
def test_an_operator_that_is_computed_wrongly_is_named(
    change: int, named: int, tmp_path: Path
) -> None:
    """Parts behind it get the right values, and are not named."""
    torch.manual_seed(0)
    given = written(Network(), data(2, 3, 16, 16), "onnxruntime", tmp_path / "model.onnx")
    wrong = "block.b:conv2d:quantized"

    def engine(path: Path, arrays: Any) -> Any:
        found = engine_parts.run(engine_parts.ENGINES["onnxruntime"], path, arrays)
        [result] = engine_parts.File(path).results
        return numpy.where(found > 128, found - change, found) if result == wrong else found

    found = engine_parts.count(*given, engine)
    assert len(found.others) == named
    assert all(f"{wrong}: " in other and other.endswith(": Conv") for other in found.others)
