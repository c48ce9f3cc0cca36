"""A batch that the float model takes, and a model made of it does not: nobody blames the data."""

from __future__ import annotations

import gc
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphEditor, JitPassesError
from jit_passes.passes.pipeline import Pipeline
from jit_passes.passes.subject import wrap
from jit_passes.stages import normalize as normalizing
from jit_passes.targets import X86, X86Quantizer

DATA = [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]
BLAMED = r"^calibration batch 0 does not run\. PyTorch says: .* the batch gives \(float32"
NOT_BLAMED = r"^calibration batch 0 runs in the original model, .*: the data are not the cause\."


class Net(nn.Module):
    """A layer whose relu stands in a line that messages name, and a count of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.linear(self.norm(x))
        return torch.relu(y)  # named


LINE = 1 + next(
    i for i, line in enumerate(Path(__file__).read_text().splitlines()) if line.endswith("# named")
)


def break_relu(graph: GraphEditor) -> None:
    """Make a pass's error: a reshape to nine numbers in front of the relu."""
    for node in graph.nodes:
        if node.kind == "aten::relu":
            sizes = graph.constant([3, 3], before=node)
            shaped = graph.insert("aten::reshape", [node.inputs[0], sizes], before=node, like=node)
            graph.set_input(node, 0, shaped.output)


@pytest.fixture(params=["script", "trace", "loaded"])
def model(request: pytest.FixtureRequest) -> torch.jit.ScriptModule:
    """The model, in eval mode."""
    net = Net().eval()
    if request.param == "trace":
        return torch.jit.trace(net, DATA[0], check_trace=False)
    script = torch.jit.script(net)
    if request.param == "script":
        return script
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def break_canonical(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the canonical form of all models be broken."""
    steps = (*normalizing.NORMALIZE.steps, break_relu)
    monkeypatch.setattr(normalizing, "NORMALIZE", Pipeline("normalize", steps))


def quantize(model: torch.jit.ScriptModule, **options: Any) -> torch.jit.ScriptModule:
    """Quantize without smoothing, which runs the data first."""
    return jit_passes.quantize_script(model, DATA, mode="static", smooth=None, **options)


def test_broken_canonical_form(
    model: torch.jit.ScriptModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the model is named, and its state stays."""
    break_canonical(monkeypatch)
    calls = model.calls.clone()
    cause = rf"{NOT_BLAMED} The canonical form, from which all targets start, fails at "
    place = rf"test_faults\.py:{LINE}\. Please report it.*PyTorch says: .*shape '\[3, 3\]'"
    with pytest.raises(JitPassesError, match=cause + place):
        quantize(model, target="stock")
    assert torch.equal(model.calls, calls)


def test_broken_form_of_a_target(
    model: torch.jit.ScriptModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets that do without it are named, and do."""
    capability = X86().capability
    broken = replace(capability, forms=(*capability.forms, break_relu))
    monkeypatch.setattr(X86, "capability", property(lambda self: broken))
    cause = rf"{NOT_BLAMED} The form of operators for the target 'x86' fails at test_faults\.py:"
    instead = rf"{LINE}\. Until it is mended, pass target='\w+' or target='\w+'\."
    with pytest.raises(JitPassesError, match=cause + instead) as caught:
        quantize(model, target="x86")
    for target in ("stock", "reference"):
        assert f"target='{target}'" in str(caught.value)
        quantize(model, target=target)


class Breaking(X86Quantizer):
    """A quantizer whose own pass is wrong."""

    def transform_for_annotation(self, graph: GraphEditor) -> None:
        break_relu(graph)


def test_broken_pass_of_a_quantizer(model: torch.jit.ScriptModule) -> None:
    """Neither the data nor the passes of jit_passes are named."""
    cause = rf"{NOT_BLAMED} An observer, or a pass of the quantizer, fails at test_faults\.py:"
    with pytest.raises(
        JitPassesError, match=rf"{cause}{LINE}\. Until it is mended, say keep_float"
    ):
        quantize(model, quantizer=Breaking())


def test_batch_that_no_model_takes(
    model: torch.jit.ScriptModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data are to blame, also where a pass is wrong."""
    bad = [torch.zeros(4, 7)]
    prepared = jit_passes.prepare(model, target="stock", mode="static")
    break_canonical(monkeypatch)
    for wrong in (prepared, jit_passes.prepare(model, target="stock", mode="static")):
        with pytest.raises(JitPassesError, match=BLAMED) as caught:
            jit_passes.calibrate(wrong, bad)
        assert "report" not in str(caught.value)


def test_float_model_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared model does not keep it; then the message leaves both open."""
    script = torch.jit.script(Net().eval())
    break_canonical(monkeypatch)
    prepared = jit_passes.prepare(script, target="stock", mode="static")
    with pytest.raises(JitPassesError, match=NOT_BLAMED):
        jit_passes.calibrate(prepared, DATA)
    del script
    gc.collect()
    both = rf"{BLAMED}.* If the original model takes the batch, please report it"
    with pytest.raises(JitPassesError, match=both):
        jit_passes.calibrate(prepared, DATA)


def test_other_stages(model: torch.jit.ScriptModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that measure a model before it is calibrated, and that compare two."""
    reference = jit_passes.quantize_script(model, DATA, target="reference", mode="static")
    broken = wrap(Pipeline("broken", (break_relu,)).run(reference._c).module)
    blamed = r"runs in the original model, but not in the model made of it: .*test_faults\.py:"
    with pytest.raises(JitPassesError, match=blamed):
        jit_passes.compare(model, broken, DATA)
    break_canonical(monkeypatch)
    for stage in (jit_passes.smooth, jit_passes.profile):
        with pytest.raises(JitPassesError, match=f"{blamed}{LINE}"):
            stage(model, DATA)
    with pytest.raises(JitPassesError, match=f"{blamed}{LINE}"):
        jit_passes.quantize_script(model, DATA, target="stock", mode="static", smooth=0.5)
