"""Invariants: each holds after the stage that ensures it, and catches a pass that breaks it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    _C,
    GraphEditor,
    GraphView,
    JitPassesError,
    NodeView,
    PassError,
    Pipeline,
    register_invariant,
)
from jit_passes.stages.convert import CONVERT
from jit_passes.stages.normalize import NORMALIZE, NORMALIZE_TRAINING
from jit_passes.stages.prepare import OBSERVE
from jit_passes.targets import Reference, Stock
from tests.passes.golden import module_of

DATA = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))]


class Net(nn.Module):
    """A convolution, a clip and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.clip, self.linear = nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.clip(self.conv(x)).mean((2, 3)))


@pytest.fixture
def script() -> torch.jit.ScriptModule:
    """A scripted model."""
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def reference_of(script: torch.jit.ScriptModule, target: Any) -> torch.jit.ScriptModule:
    """Return the reference model."""
    prepared = jit_passes.prepare(script, target=target)
    return jit_passes.convert(jit_passes.calibrate(prepared, DATA, progress=False))


def fails(pipeline: Pipeline, module: Any, message: str, **options: Any) -> None:
    """Assert that the pipeline ends with that error."""
    with pytest.raises(PassError, match=message):
        pipeline.run(module, **options)


def nodes(graph: GraphEditor, kind: str) -> list[NodeView]:
    """Return the nodes of a kind."""
    return [node for node in graph.nodes if node.kind == kind]


def put(graph: GraphEditor, node: NodeView, kind: str, inputs: list[Any]) -> None:
    """Put another operator in a node's place."""
    made = graph.insert(kind, inputs, before=node)
    graph.replace(node.output, made.output)
    graph.remove(node)


def with_step(pipeline: Pipeline, step: Any) -> Pipeline:
    """Return the pipeline with a step behind all others."""
    return Pipeline(pipeline.name, (*pipeline.steps, step), pipeline.ensures)


def spell_clip(graph: GraphEditor) -> None:
    """Turn a clamp into hardtanh."""
    node = nodes(graph, "aten::clamp")[0]
    put(graph, node, "aten::hardtanh", list(node.inputs))


def spell_linear(graph: GraphEditor) -> None:
    """Turn a linear into a product."""
    node = nodes(graph, "aten::linear")[0]
    weight = graph.constant(node.inputs[1].constant.t().contiguous(), before=node)
    put(graph, node, "aten::matmul", [node.inputs[0], weight])


def spell_padding(graph: GraphEditor) -> None:
    """Turn numbers of padding into a word."""
    node = nodes(graph, "aten::conv2d")[0]
    graph.set_input(node, 4, graph.constant("valid", before=node))


def spell_convolution(graph: GraphEditor) -> None:
    """Turn conv2d into what tracing records."""
    node = nodes(graph, "aten::conv2d")[0]
    x, w, b, stride, padding, dilation, groups = node.inputs
    rest = [False, [0, 0], groups, False, False, True, True]
    put(graph, node, "aten::_convolution", [x, w, b, stride, padding, dilation, *rest])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (spell_clip, "no relu or clamp: aten::hardtanh"),
        (spell_linear, "is no linear: aten::matmul"),
        (spell_padding, "padding is a word: aten::conv2d"),
        (spell_convolution, "as tracing records it: aten::_convolution"),
    ],
)
def test_canonical(script: torch.jit.ScriptModule, step: Any, message: str) -> None:
    """Holds after normalization, and not with another spelling; of weights that are constants."""
    NORMALIZE.run(script._c)
    fails(with_step(NORMALIZE, step), script._c, f"'canonical'.*{message}")


def test_inlined(script: torch.jit.ScriptModule) -> None:
    """Without the pass that inlines, the training form does not hold either."""
    NORMALIZE_TRAINING.run(_C.clone(script._c))
    broken = Pipeline("broken", ("pool_constants",), NORMALIZE_TRAINING.ensures)
    fails(broken, script._c, "end of pipeline 'broken'.*'inlined'.*a call is left")


def test_observed_once(script: torch.jit.ScriptModule) -> None:
    """An observer that is inserted twice is found."""

    def again(graph: GraphEditor) -> None:
        node = next(node for node in graph.nodes if "::observe_" in node.kind)
        graph.insert(node.kind, list(node.inputs), before=node)

    prepared = jit_passes.prepare(script)._c
    Pipeline("observed", (), OBSERVE.ensures).run(_C.clone(prepared))
    broken = Pipeline("observed", (again,), OBSERVE.ensures)
    fails(broken, _C.clone(prepared), "'observed_once'.*a value has two observers")


def test_no_observers(script: torch.jit.ScriptModule) -> None:
    """An operator that conversion leaves out is found."""
    broken = Pipeline("broken", ("remove_dead_code",), CONVERT.ensures)
    fails(broken, _C.clone(jit_passes.prepare(script)._c), "'no_observers'.*an observer is left")


def change(kind: str, operand: int, value: Any) -> Any:
    """Return a pass that gives an operand of the first such node another constant."""

    def broken(graph: GraphEditor) -> None:
        node = next(node for node in graph.nodes if node.kind == kind)
        graph.set_input(node, operand, graph.constant(value, before=node))

    return broken


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (change("jit_passes::quantize", 1, 0.0), "its scale is not positive and finite"),
        (change("jit_passes::quantize", 1, float("inf")), "its scale is not positive and finite"),
        (change("jit_passes::quantize", 2, 999), "its zero point is no code of its"),
        (change("jit_passes::quantize", 3, 300), "it has no two codes"),
        (change("jit_passes::dequantize", 1, 77.0), "with another scale or zero point"),
        (change("jit_passes::dequantize", 2, 1), "with another scale or zero point"),
        (
            change("jit_passes::dequantize_per_channel", 1, torch.tensor([1.0, -1.0, 1.0, 1.0])),
            "its scale is not positive and finite",
        ),
        (
            change("jit_passes::dequantize_per_channel", 0, torch.ones(4, 3, 3, 3)),
            "its constant codes are no integers",
        ),
    ],
)
def test_valid_grids(script: torch.jit.ScriptModule, step: Any, message: str) -> None:
    """Converted models are consistent; a pass that changes a scale or code is caught."""
    reference = reference_of(script, Reference(lookup_tables=False))
    lowering = Reference(lookup_tables=False).lowering()
    lowering.run(_C.clone(reference._c, "forward"))
    broken = Pipeline("broken", (step,), CONVERT.ensures)
    fails(broken, _C.clone(reference._c, "forward"), f"'valid_grids'.*{message}")


def without(pipeline: Pipeline, name: str) -> Pipeline:
    """Return the pipeline without a step."""
    steps = tuple(s for s in pipeline.steps if getattr(s, "name", s) != name)
    assert len(steps) == len(pipeline.steps) - 1
    return Pipeline(pipeline.name, steps, pipeline.ensures)


def test_no_dialect(script: torch.jit.ScriptModule) -> None:
    """Stock's lowering leaves nothing that needs this package, or says so."""
    reference, lowering = reference_of(script, Stock()), Stock().lowering()
    lowering.run(_C.clone(reference._c, "forward"))
    broken = without(lowering, "lower_quantize_dequantize")
    message = "'no_dialect'.*an operator of the dialect is left: jit_passes::quantize"
    fails(broken, _C.clone(reference._c, "forward"), message)


def test_float_explained(script: torch.jit.ScriptModule) -> None:
    """An operator that is not fused has a remark; without one, it is found."""
    reference, lowering = reference_of(script, Stock()), Stock().lowering()
    unfused = without(lowering, "fuse_quantized")
    result = unfused.run(_C.clone(reference._c, "forward"))
    reasons = {remark.name: remark.reason for remark in result.remarks}
    assert reasons["conv:conv2d"] == "the target has no operator for it"
    assert set(reasons) == {"conv:conv2d", "linear:linear"}
    silent = without(unfused, "remark_float")
    broken = Pipeline("broken", silent.steps, ("float_explained",))
    message = "'float_explained'.*no remark says why this is in float: aten::conv2d of conv"
    fails(broken, _C.clone(reference._c, "forward"), message)
    assert lowering.run(_C.clone(reference._c, "forward")).remarks == ()


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        (("%a", "%e"), "its input is not quantized"),
        (("%d", "%a"), "its second operand is not quantized"),
        (("%d", "%e"), "its result is not quantized"),
    ],
)
def test_reasons_of_float(operands: tuple[str, str], reason: str) -> None:
    """An operator in the way of fusing."""
    graph = f"""graph(%self, %a : Tensor):
  %s : float = prim::Constant[value=0.5]()
  %z : int = prim::Constant[value=0]()
  %h : int = prim::Constant[value=255]()
  %q = jit_passes::quantize(%a, %s, %z, %z, %h, %z)
  %d = jit_passes::dequantize(%q, %s, %z)
  %e = jit_passes::dequantize(%q, %s, %z)
  %y = aten::bmm({", ".join(operands)})
  return (%y)"""
    _, changed, remarks = _C.run_pass("remark_float", module_of(graph), "forward", {})
    assert not changed and remarks == [("bmm", reason)]


def test_invariants_of_python(script: torch.jit.ScriptModule) -> None:
    """Are registered by name, required by passes and ensured by pipelines."""

    @register_invariant("test_no_clip", summary="No clip is left.", replace=True)
    def no_clip(graph: GraphView) -> str | None:
        clips = [node.name for node in graph.nodes if node.kind == "aten::clamp"]
        return f"{clips[0]} is one" if clips else None

    try:
        assert jit_passes.invariants["test_no_clip"] == "No clip is left."
        fails(
            Pipeline("mine", ("freeze", "canonicalize_synonyms"), ("test_no_clip",)),
            script._c,
            "end of pipeline 'mine'.*'test_no_clip', which does not hold: clip:.* is one",
        )
        Pipeline("mine", ("freeze",), ("test_no_clip",)).run(script._c)
        with pytest.raises(JitPassesError, match="registered already; replace=True"):
            register_invariant("test_no_clip", summary="Again.")(no_clip)
    finally:
        jit_passes.invariants.remove("test_no_clip")
    with pytest.raises(KeyError):
        jit_passes.invariants.remove("test_no_clip")
