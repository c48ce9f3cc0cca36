"""Quantizers of the caller's own, from annotation to the reference model, alone and composed."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.graph.editor import GraphEditor
from jit_passes.graph.view import GraphView, NodeView
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    ComposableQuantizer,
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    Quantizer,
    SharedQuantizationSpec,
    bias_qparams,
    resolve,
)
from tests.annotating import (
    FIXED,
    INT8,
    UINT8,
    WEIGHT,
    Chain,
    Given,
    Net,
    Nodes,
    annotation,
    derived,
    nodes_of,
    parameters,
    qparams,
    to_bytes,
)
from tests.annotating import net_nodes as net_nodes
from tests.processes import run_code

# ---------------------------------------------------------------------------- from end to end


class Residual(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def steps(self, x: Tensor) -> dict[str, Tensor]:
        """The float values that are quantized, in eager PyTorch."""
        stem = self.stem(x).relu()
        pool = self.pool(stem)
        inner = self.conv1(pool).relu()
        outer = self.conv2(inner)
        total = (outer + pool).relu()
        flat = total.mean([2, 3])
        logits = self.fc(flat)
        return {"x": x, "stem": stem, "pool": pool, "inner": inner, "outer": outer,
                "total": total, "flat": flat, "logits": logits}  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        pool = self.pool(self.stem(x).relu())
        total = (self.conv2(self.conv1(pool).relu()) + pool).relu()
        return self.fc(total.mean([2, 3])).sigmoid()


class ThirdParty(Quantizer):
    """Annotates every convolution, pool, addition, linear and sigmoid, with all four kinds."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            x = node.inputs[0] if node.inputs else None
            if node.kind in ("aten::conv2d", "aten::linear"):
                annotations[node] = self.weighted(node)
            elif node.kind == "aten::add":
                shared = SharedQuantizationSpec((node.inputs[0], node))
                operands = {node.inputs[0]: INT8, node.inputs[1]: shared}
                annotations[node] = QuantizationAnnotation(operands, None)
            elif node.kind in ("aten::relu", "aten::mean"):
                annotations[node] = QuantizationAnnotation({}, UINT8)
            elif node.kind == "aten::max_pool2d":
                shared = SharedQuantizationSpec((x, node), observed=False)  # type: ignore[arg-type]
                annotations[node] = QuantizationAnnotation({x: UINT8}, shared)  # type: ignore[dict-item]
            elif node.kind == "aten::sigmoid":
                annotations[node] = QuantizationAnnotation({x: UINT8}, FIXED)  # type: ignore[dict-item]
        return annotations

    def weighted(self, node: NodeView) -> QuantizationAnnotation:
        x, weight, bias = node.inputs[:3]
        of_bias = DerivedQuantizationSpec(
            ((x, node), (weight, node)), bias_qparams, "int32",
            qscheme="per_channel_symmetric", ch_axis=0,
        )  # fmt: skip
        return QuantizationAnnotation({x: UINT8, weight: WEIGHT, bias: of_bias})


def images(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(count)]


def compile_model(model: nn.Module, frontend: str) -> torch.jit.ScriptModule:
    model = model.eval()
    return torch.jit.script(model) if frontend == "script" else torch.jit.trace(model, images()[0])


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_all_four_kinds(frontend: str) -> None:
    """The converted graph has the parameters that plain PyTorch finds, and nothing else."""
    torch.manual_seed(0)
    model = Residual()
    prepared = jit_passes.prepare(
        compile_model(model, frontend), quantizer=ThirdParty(), target="reference"
    )
    found = jit_passes.convert(jit_passes.calibrate(prepared, images()))
    with torch.no_grad():
        steps = [model.steps(x) for x in images()]
    seen = {name: [step[name] for step in steps] for name in steps[0]}
    uint8 = (0, 255, torch.uint8)
    expected = {
        name: (*qparams(*seen[name]), *uint8)
        for name in ("x", "stem", "inner", "total", "flat", "logits")
    }
    both = (*qparams(*seen["outer"], *seen["pool"], dtype=torch.qint8), -128, 127, torch.int8)
    order = ["x", "stem", "stem", "inner", "both", "both", "total", "flat", "logits", "fixed"]
    expected |= {"both": both, "fixed": (1 / 256, 0, *uint8)}
    assert [row[1:] for row in parameters(found)] == [expected[name] for name in order]

    sources = {"stem": "x", "conv1": "stem", "conv2": "inner", "fc": "flat"}
    constants = {
        tuple(node.inputs[1].constant.tolist()): node.inputs[0].constant
        for node in GraphView.of(found).nodes
        if node.kind == "jit_passes::dequantize_per_channel"
    }
    assert len(constants) == 8
    for name, source in sources.items():
        layer = getattr(model, name)
        weight = layer.weight.detach().flatten(1)
        scale = (weight.abs().amax(1) / 127).double()
        codes = (weight / scale[:, None].float()).round().clamp(-127, 127)
        stored = constants[tuple(scale.tolist())]
        assert stored.dtype == torch.int8
        assert (stored.flatten(1) - codes).abs().max() <= 1
        product = scale * expected[source][0]
        stored = constants[tuple(product.tolist())]
        assert stored.dtype == torch.int32
        assert (stored - (layer.bias.detach() / product).round()).abs().max() <= 1


def reload(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    return torch.jit.load(io.BytesIO(to_bytes(module)))


def test_files_between_the_stages() -> None:
    """A prepared model may be saved before and after calibration; the result is the same."""
    torch.manual_seed(0)
    model = compile_model(Residual(), "script")
    results = []
    for before, after in itertools.product((False, True), repeat=2):
        prepared = jit_passes.prepare(model, quantizer=ThirdParty(), target="reference")
        prepared = reload(prepared) if before else prepared
        jit_passes.calibrate(prepared, images())
        found = jit_passes.convert(reload(prepared) if after else prepared)
        results.append(([row[1:] for row in parameters(found)], found(images()[0])))
    for rows, output in results:
        assert rows == results[0][0]
        assert torch.equal(output, results[0][1])


MODULE = """
import sys, torch, jit_passes
from jit_passes.quantizer import {imports}

{mark}
def third(sources):
    return float(sources[0].scale) / 3, 0

class Q(Quantizer):
    def annotate(self, graph):
        relu, exp = [node for node in graph.nodes if node.name in ("relu", "exp")]
        annotations = Annotations()
        fixed = FixedQParamsQuantizationSpec(0.75, 0)
        annotations[relu] = QuantizationAnnotation(output_qspec=fixed)
        derived = DerivedQuantizationSpec((relu,), third, "int16")
        annotations[exp] = QuantizationAnnotation(output_qspec=derived)
        return annotations
"""
IMPORTS = (
    "Annotations, DerivedQuantizationSpec, FixedQParamsQuantizationSpec, "
    "QuantizationAnnotation, Quantizer, derivation"
)
CONVERT = """
import torch, jit_passes, warnings
{first}
prepared = torch.jit.load({file!r})
warnings.simplefilter("ignore")
try:
    print(jit_passes.convert(prepared).graph)
except jit_passes.JitPassesError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("marked", [True, False])
def test_derivations_in_another_process(marked: bool, tmp_path: Path) -> None:
    """Another process imports the function's module, or the error says what to do."""
    mark = "@derivation" if marked else ""
    name = f"own_rules_{marked}".lower()
    (tmp_path / f"{name}.py").write_text(MODULE.format(imports=IMPORTS, mark=mark))
    file = str(tmp_path / "calibrated.pt")
    sys.path.insert(0, str(tmp_path))
    try:
        own_rules = importlib.import_module(name)
        script = torch.jit.script(Chain().eval())
        prepared = jit_passes.prepare(script, quantizer=own_rules.Q(), target="reference")
        torch.jit.save(jit_passes.calibrate(prepared, [torch.randn(5)]), file)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop(name, None)
    for first in ("", f"import {name}"):
        script = textwrap.dedent(CONVERT.format(first=first, file=file))
        path = f"{Path.cwd()}{os.pathsep}{tmp_path}"
        run = run_code(script, cwd=tmp_path, environment={"PYTHONPATH": path})
        assert run.returncode == 0, run.stderr
        if first and marked:
            assert "value=0.25" in run.stdout and "refused" not in run.stdout
        else:
            assert "refused: the model derives parameters with the function" in run.stdout
            assert f"'{name}.third'" in run.stdout
            assert "@jit_passes.quantizer.derivation" in run.stdout


def test_transform_for_annotation() -> None:
    """A quantizer may change the graph first; the model that was given stays as it is."""

    class Clipped(ThirdParty):
        def transform_for_annotation(self, graph: GraphEditor) -> None:
            for node in graph.nodes:
                if node.kind == "aten::mean":
                    clip = graph.insert("aten::relu", [node.output], before=None, like=node)
                    graph.remove(clip)
                    user, _ = node.output.uses[0]
                    relu = graph.insert("aten::neg", [node.output], before=user)
                    graph.replace(node.output, relu.output)

        def annotate(self, graph: GraphView) -> Annotations:
            self.kinds = [node.kind for node in graph.nodes]
            return super().annotate(graph)

    model = compile_model(Residual(), "script")
    before = to_bytes(model)
    quantizer = Clipped()
    prepared = jit_passes.prepare(model, quantizer=quantizer, target="reference")
    assert "aten::neg" in quantizer.kinds
    assert to_bytes(model) == before
    x = images()[0]
    eager = Residual()
    eager.load_state_dict(model.state_dict())
    flat = -eager.steps(x)["flat"]
    assert torch.allclose(prepared(x), eager.fc(flat).sigmoid(), atol=1e-6)
    names = [name for name in jit_passes.passes if name.startswith("transform_for")]
    assert names == []


def test_validate_may_refuse() -> None:
    """An error of validate comes out as it is, and the model is as it was."""

    class Refusing(ThirdParty):
        def validate(self, annotations: Annotations) -> None:
            raise JitPassesError(f"cannot do {len(annotations)} of these")

    model = compile_model(Residual(), "script")
    before = to_bytes(model)
    for quantizer in (Refusing(), ComposableQuantizer(ThirdParty(), Refusing())):
        with pytest.raises(JitPassesError, match="cannot do 11 of these"):
            jit_passes.prepare(model, quantizer=quantizer, target="reference")
    assert to_bytes(model) == before


def test_annotate_returns_nothing() -> None:
    """A forgotten return is told, in a composed quantizer too."""

    class Forgets(Quantizer):
        def annotate(self, graph: GraphView) -> Annotations:
            return None  # type: ignore[return-value]

    model = compile_model(Residual(), "script")
    for quantizer in (Forgets(), ComposableQuantizer(ThirdParty(), Forgets())):
        with pytest.raises(JitPassesError, match=r"Forgets\.annotate returned NoneType"):
            jit_passes.prepare(model, quantizer=quantizer, target="reference")


# ---------------------------------------------------------------------------- several quantizers


class Sigmoids(Quantizer):
    """Annotates sigmoids alone."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind == "aten::sigmoid":
                fixed = FixedQParamsQuantizationSpec(1 / 128, 0)
                annotations[node] = QuantizationAnnotation({}, fixed)
        return annotations


def test_composed() -> None:
    """The later quantizer's word holds, the former ones' elsewhere; what it overwrote is told."""
    model = compile_model(Residual(), "script")
    composed = ComposableQuantizer(ThirdParty(), Sigmoids())
    with pytest.warns(jit_passes.JitPassesWarning, match="'sigmoid': 2. Sigmoids over 1. Third"):
        prepared = jit_passes.prepare(model, quantizer=composed, target="reference")
    assert composed.overwritten == [("sigmoid", "1. ThirdParty", "2. Sigmoids")]
    rows = parameters(jit_passes.convert(jit_passes.calibrate(prepared, images())))
    assert rows[-1][1] == 1 / 128
    assert rows[0][0] == "x"
    same = ComposableQuantizer(Sigmoids(), Sigmoids())
    jit_passes.prepare(model, quantizer=same, target="reference")  # equal is no overwriting
    assert same.overwritten == []


def test_composed_forgets_what_was_overwritten() -> None:
    """Operands that an earlier quantizer shared are not looked for when a later one took over."""

    def shares(nodes: Nodes, annotations: Annotations) -> None:
        first, second, add = nodes["c1:conv2d"], nodes["c2:conv2d"], nodes["add"]
        annotations[add] = annotation({first: UINT8, second: UINT8}, UINT8)
        annotations.share((first, add), (second, add), add)
        annotations.refused = {"add": "because"}

    def only_result(nodes: Nodes, annotations: Annotations) -> None:
        annotations[nodes["add"]] = annotation(result=INT8)

    graph = nodes_of(Net()).graph
    composed = ComposableQuantizer(Given(shares), Given(only_result))
    with pytest.warns(jit_passes.JitPassesWarning):
        found = composed.annotate(graph)
    assert [place.spec for place in resolve(graph, found)] == [INT8]
    assert not found.refused and not found.shared


def test_composed_for_different_backends() -> None:
    """Quantizers of different backends, or none at all, are refused; a target of one is taken."""
    one, other = ThirdParty(), ThirdParty()
    one.target, other.target = "reference", "stock"
    with pytest.raises(JitPassesError, match="different backends: 'reference', 'stock'"):
        ComposableQuantizer(one, other)
    with pytest.raises(JitPassesError, match="no quantizers were given"):
        ComposableQuantizer()
    assert ComposableQuantizer(Sigmoids(), one).target == "reference"
    assert isinstance(jit_passes.targets.Reference().quantizer(), BackendQuantizer)


def test_printing_annotations(nodes: Nodes) -> None:
    """Annotations print as a table, one line for each place."""
    first = nodes["c1:conv2d"]
    annotations = Annotations()
    weight, bias = first.inputs[1:3]
    annotations[first] = annotation(
        {nodes.x: UINT8, weight: WEIGHT, bias: derived((nodes.x, first), (weight, first))}, FIXED
    )
    annotations[nodes["add"]] = annotation(result=SharedQuantizationSpec(first))
    annotations[nodes["cat"]] = annotation()
    assert str(annotations).splitlines() == [
        "c1:conv2d (aten::conv2d)  x          uint8 [0, 255]  per_tensor_affine  MinMax",
        "                          c1.weight  int8 [-127, 127]  "
        "per_channel_symmetric axis 0  MinMax",
        "                          c1.bias    int16  derived from x -> c1:conv2d, "
        "c1.weight -> c1:conv2d",
        "                          result     uint8  fixed scale 0.00390625 zero_point 0",
        "add (aten::add)           result     as c1:conv2d",
        "cat (aten::cat)                      its operands and result come quantized",
    ]
