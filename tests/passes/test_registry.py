"""The registry of passes and operators, and the runner of pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, JitPassesError, PassError, Pipeline
from jit_passes.export.strip import STRIP
from jit_passes.passes.options import PassOption
from jit_passes.passes.pipeline import RESOLVE
from jit_passes.stages.convert import CONVERT
from jit_passes.stages.normalize import CANONICAL_FORM, NORMALIZE, NORMALIZE_TRAINING
from jit_passes.stages.prepare import OBSERVE
from jit_passes.stages.seen import SETTLE
from jit_passes.targets import Reference, Stock
from jit_passes.training.prepare import QUANTIZE as TRAIN
from jit_passes.training.quantize_slots import SPLIT

PIPELINES = [
    RESOLVE,
    NORMALIZE,
    NORMALIZE_TRAINING,
    OBSERVE,
    SETTLE,
    CONVERT,
    STRIP,
    SPLIT,
    TRAIN,
    Stock().lowering(),
    Reference().lowering(),
]


class Net(nn.Module):
    """A convolution with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.norm(self.conv(x))))


@pytest.fixture
def script() -> torch.jit.ScriptModule:
    """A scripted model."""
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


@pytest.mark.parametrize("table", [_C.passes(), _C.ops(), _C.invariants()])
def test_summaries(table: dict[str, tuple[str, ...]]) -> None:
    """One line, a sentence."""
    assert table
    for name, (summary, *_) in table.items():
        assert name.isidentifier(), name
        assert summary[0].isupper() and summary.endswith("."), name
        assert "\n" not in summary and 10 < len(summary) <= 100, name


def test_passes_is_a_mapping() -> None:
    """By name, in order, with what passes require and ensure."""
    names = list(jit_passes.passes)
    assert names == sorted(names) and len(names) == len(jit_passes.passes) > 15
    info = jit_passes.passes["insert_quantize_dequantize"]
    assert (info.name, info.requires, info.ensures) == (
        "insert_quantize_dequantize",
        ("inlined",),
        ("no_observers",),
    )
    known = set(_C.invariants())
    for entry in jit_passes.passes.values():
        assert {*entry.requires, *entry.ensures} <= known
    with pytest.raises(KeyError):
        jit_passes.passes["nonsense"]


def test_printing_passes() -> None:
    """A line for each: its name, then its summary, in columns."""
    lines = str(jit_passes.passes).splitlines()
    assert len(lines) == len(jit_passes.passes)
    columns = {line.index(jit_passes.passes[line.split()[0]].summary) for line in lines}
    assert len(columns) == 1


def test_printing_one_pass() -> None:
    """Shows its options, with types and defaults."""
    assert str(jit_passes.passes["fold_prepack"]).splitlines() == [
        "fold_prepack(engine: str)",
        "  Pack constant weights for the quantized engine.",
        "  requires no_observers",
    ]
    folding = jit_passes.passes["fold_quantized_constants"]
    assert folding.options == (PassOption("dequantize", "bool", False, False),)
    assert "(dequantize: bool = False)" in str(folding)


def test_types_of_options() -> None:
    """Options of all passes have known types, which their defaults have."""
    declared = [o for info in jit_passes.passes.values() for o in info.options]
    assert len(declared) >= 8
    for option in declared:
        assert option.accepts(option.default) or option.required


def test_printing_invariants() -> None:
    """A table as that of passes."""
    lines = str(jit_passes.invariants).splitlines()
    assert len(lines) == len(jit_passes.invariants) >= 7
    assert any(line.startswith("inlined ") and line.endswith("functions.") for line in lines)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_pipelines_print(pipeline: Pipeline) -> None:
    """A line for each step, of passes that are registered, and the invariants at the end."""
    title, *lines = str(pipeline).splitlines()
    assert title == f"pipeline '{pipeline.name}'" and "Unknown." not in str(pipeline)
    assert len(lines) == len(pipeline.steps) + bool(pipeline.ensures)
    assert set(pipeline.ensures) <= set(jit_passes.invariants)
    assert len({p.name for p in PIPELINES}) == len(PIPELINES)


def test_canonical_form_is_one() -> None:
    """Models that train go through the very steps that others go through."""
    for pipeline in (NORMALIZE, NORMALIZE_TRAINING):
        begin = pipeline.steps.index(CANONICAL_FORM[0])
        assert pipeline.steps[begin : begin + len(CANONICAL_FORM)] == CANONICAL_FORM


def test_operators_have_schemas() -> None:
    """Every registered operator can be called, and none is missing from the register."""
    registered = set(_C.ops())
    for name in registered:
        packet = getattr(torch.ops.jit_passes, name)
        assert packet.default._schema.name == f"jit_passes::{name}"
    schemas = {s.name for s in torch._C._jit_get_all_schemas()}
    prefix = "jit_passes::"
    assert registered == {n.removeprefix(prefix) for n in schemas if n.startswith(prefix)}


def test_unknown_pass(script: torch.jit.ScriptModule) -> None:
    """The message has the pass, the pipeline and names that may be meant; nothing has run."""
    before = str(script.graph)
    pipeline = Pipeline("mine", ("freeze", "remove_dropuot"))
    with pytest.raises(
        JitPassesError, match=r"'mine'.*'remove_dropuot'.*'remove_dropout'"
    ) as caught:
        pipeline.run(script._c)
    assert not isinstance(caught.value, PassError)
    assert str(script.graph) == before
    with pytest.raises(KeyError, match="no pass 'nonsense'"):
        _C.run_pass("nonsense", script._c, "forward", {})
    with pytest.raises(KeyError, match="no invariant 'nonsense'"):
        _C.check_invariant("nonsense", script._c, "forward")


def test_requirement_that_does_not_hold(script: torch.jit.ScriptModule) -> None:
    """The error names the pass, what it requires, what is in the way and what ran before."""
    pipeline = Pipeline("mine", ("pool_constants", "remove_dropout"))
    with pytest.raises(PassError, match=r"'inlined'.*a call is left") as caught:
        pipeline.run(script._c)
    error = caught.value
    assert (error.name, error.done) == ("remove_dropout", ("pool_constants",))
    assert "'remove_dropout' of pipeline 'mine'" in str(error)
    assert "(before it: pool_constants)" in str(error)


def test_observers_are_in_the_way(script: torch.jit.ScriptModule) -> None:
    """Passes that run after conversion refuse a model with observers."""
    prepared = jit_passes.prepare(script)
    with pytest.raises(PassError, match=r"'no_observers'.*an observer is left") as caught:
        Pipeline("mine", ("sink_dequantize",)).run(prepared._c)
    assert (caught.value.name, caught.value.done) == ("sink_dequantize", ())
    assert "(before it: none)" in str(caught.value)


def test_failing_pass(script: torch.jit.ScriptModule) -> None:
    """Its own message, without a backtrace; the caller's module is as it was."""
    before, state = (
        str(script.inlined_graph),
        {k: v.clone() for k, v in script.state_dict().items()},
    )
    pipeline = Pipeline("mine", ("freeze", "remove_dropout", "fold_prepack"))
    with pytest.raises(PassError, match="no quantized engine 'abacus'") as caught:
        pipeline.run(script._c, options={"fold_prepack": {"engine": "abacus"}})
    assert caught.value.name == "fold_prepack"
    assert caught.value.done == ("freeze", "remove_dropout")
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)
    assert str(script.inlined_graph) == before
    assert all(torch.equal(state[key], value) for key, value in script.state_dict().items())


def test_unknown_method(script: torch.jit.ScriptModule) -> None:
    """A pipeline on a method that is not there fails before any pass."""
    with pytest.raises(Exception, match="encode"):
        NORMALIZE.run(script._c, "encode")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_dumps(
    script: torch.jit.ScriptModule, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph before, and after each pass, in numbered files."""
    folder = tmp_path / "made" / "on demand"
    if how == "environment":
        monkeypatch.setenv("JIT_PASSES_DUMP", str(folder))
    pipeline = Pipeline("mine", ("freeze", "propagate_constants", "fold_batch_norm"))
    result = pipeline.run(script._c, dump=folder if how == "argument" else None)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "mine.00.before.ir",
        "mine.01.freeze.ir",
        "mine.02.propagate_constants.ir",
        "mine.03.fold_batch_norm.ir",
    ]
    texts = [(folder / name).read_text() for name in names]
    assert "CallMethod" in texts[0] and "CallMethod" not in texts[1]
    assert "aten::batch_norm" in texts[2] and "aten::batch_norm" not in texts[3]
    assert texts[3] == str(result.module._get_method("forward").graph)


def test_no_dump_unless_asked(
    script: torch.jit.ScriptModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written."""
    monkeypatch.delenv("JIT_PASSES_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    NORMALIZE.run(script._c)
    assert list(tmp_path.iterdir()) == []


def test_records(script: torch.jit.ScriptModule) -> None:
    """One for each run of a pass: time, size of the graph, and whether it changed."""
    names = ("freeze", "propagate_constants", "fold_batch_norm", "fold_batch_norm")
    result = Pipeline("mine", names).run(script._c)
    assert tuple(record.name for record in result.records) == names
    assert [record.changed for record in result.records] == [True, True, True, False]
    for record in result.records:
        assert record.seconds >= 0
    nodes = len(jit_passes.GraphView.of(result.module).nodes)
    assert result.records[-1].nodes == nodes
    lines = str(result).splitlines()
    assert len(lines) == 4
    assert all(f"{nodes:d} nodes" in line and " ms " in line for line in lines[2:])
    assert ["(no change)" in line for line in lines] == [False, False, False, True]
