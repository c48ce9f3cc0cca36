"""The floor for every model: it quantizes, stays close to float, and survives a file.

The table of models is in `models/`. Every model is scripted, and traced where tracing can record
it; each result is made once and shared by the tests below.
"""

import copy
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import jit_passes
from tests.advice import even_kernels, projections
from tests.compare import Args, assert_arguments, assert_close, assert_same, call, clone, leaves
from tests.models import CASES, Case
from tests.models.case import FLOOR
from tests.processes import run_fresh
from tests.processor import VNNI, decibels_here

# Results are shared, also by the files of all of them.
pytestmark = [pytest.mark.xdist_group("floor"), even_kernels, projections]

TARGET = "stock"  # the one whose files load without the package
CALIBRATION_BATCHES = 8
CALIBRATION_BATCH = 16
RUN_BATCH = 3
RUN_SEED = 100  # calibration uses seeds 0 to 7


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Run these small models on one thread: a fifth of the processor time is waiting otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


everywhere = pytest.mark.parametrize(
    ("case", "frontend"),
    [
        pytest.param(case, frontend, id=f"{case.name}-{frontend}")
        for case in CASES
        for frontend in case.frontends
    ],
)


@dataclass(frozen=True)
class Result:
    """The quantized model of a float module, its coverage, and the warnings."""

    quantized: torch.jit.ScriptModule
    rows: list[Any]
    warnings: list[str]
    unchanged: bool

    @property
    def int8(self) -> list[Any]:
        """The rows of coverage that are int8."""
        return [row for row in self.rows if row.dtype == "int8"]


def fingerprint(module: torch.jit.ScriptModule, method: str) -> tuple[str, dict[str, Any]]:
    """Returns what must not change in the caller's module: its graph and a copy of its state."""
    graph = module.inlined_graph if method == "forward" else getattr(module, method).graph
    return str(graph), {name: value.clone() for name, value in module.state_dict().items()}


@functools.cache
def quantize(case: Case, frontend: str) -> Result:
    """Quantizes one model, with its own random calibration data."""
    original = case.shared(frontend)
    graph, state = fingerprint(original, case.method)
    batches = [case.arguments(CALIBRATION_BATCH, seed) for seed in range(CALIBRATION_BATCHES)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quantized = jit_passes.quantize_script(
            original, batches, target=TARGET, progress=False, method=case.method
        )
    graph_after, state_after = fingerprint(original, case.method)
    same_state = state.keys() == state_after.keys() and all(
        torch.equal(state[name], state_after[name]) for name in state
    )
    said = [str(w.message) for w in caught if issubclass(w.category, jit_passes.JitPassesWarning)]
    rows = list(jit_passes.coverage(quantized))
    return Result(quantized, rows, said, graph == graph_after and same_state)


def run(module: torch.jit.ScriptModule, args: Args, method: str) -> Any:
    """Calls a copy of `module` three times and returns the outputs and the arguments after it.

    TorchScript specializes its graph after the first calls, and a state that moves shows only in
    the second: one call proves little. A copy, since `module` is shared between tests.
    """
    module, outcomes = copy.deepcopy(module), []
    for _ in range(3):
        given = clone(args)
        with torch.no_grad():
            output = call(module, given, method)
        outcomes.append({"output": clone(output), "arguments": given})
    return outcomes


@functools.cache
def quantized_run(case: Case, frontend: str) -> Any:
    """Returns what the quantized model gives for the arguments that all runs begin with."""
    args = case.arguments(RUN_BATCH, RUN_SEED)
    return run(quantize(case, frontend).quantized, args, case.method)


@functools.cache
def float_run(case: Case, frontend: str, others: bool) -> Any:
    """Returns what the float model gives for the arguments of all runs, or for the others."""
    return run(
        case.shared(frontend), case.arguments(RUN_BATCH, RUN_SEED, others=others), case.method
    )


def compare(case: Case, result: Result, args: Args, expected: Any, actual: Any, what: str) -> None:
    """Asserts the case's floor, or equality where nothing became int8."""
    for left, right in zip(expected, actual, strict=True):
        if case.floor is None or not result.int8:
            assert_same(left, right, what)
            continue
        floor = decibels_here(case.floor)
        assert_close(left["output"], right["output"], floor, what)
        assert_arguments(args, left["arguments"], right["arguments"], floor, what)


@everywhere
def test_stays_close_to_float(case: Case, frontend: str) -> None:
    """On a batch size that calibration did not see, and where given on another path."""
    result = quantize(case, frontend)
    args, actual = case.arguments(RUN_BATCH, RUN_SEED), quantized_run(case, frontend)
    compare(case, result, args, float_run(case, frontend, False), actual, case.name)
    if case.others is not None:
        others = case.arguments(RUN_BATCH, RUN_SEED, others=True)
        actual = run(result.quantized, others, case.method)
        expected = float_run(case, frontend, True)
        compare(case, result, others, expected, actual, f"{case.name}, other inputs")


@everywhere
def test_coverage_and_warnings(case: Case, frontend: str) -> None:
    """As many int8 operations as the table says, a reason for the rest, warnings that fit."""
    result = quantize(case, frontend)
    # Without VNNI, PyTorch's kernels are slower than float for some groups and windows.
    slow = [row for row in result.rows if not VNNI and "slower than float" in row.reason]
    assert len(result.int8) + len(slow) >= case.int8, str(jit_passes.coverage(result.quantized))
    for row in result.rows:
        assert row.dtype in ("int8", "float"), row
        assert isinstance(row.name, str) and row.kind and row.source, row
        assert bool(row.reason) == (row.dtype == "float"), row
    if case.floor is None:
        assert not result.int8
    if not result.int8:
        assert result.warnings, "nothing was quantized, and nobody was told"
    elif case.warning is not None and frontend == "script":  # a trace has no branches
        assert any(case.warning in text for text in result.warnings), result.warnings
    else:
        assert result.warnings == []


@everywhere
def test_caller_keeps_its_module(case: Case, frontend: str) -> None:
    """Weights, buffers and graph of the float module are as they were."""
    assert quantize(case, frontend).unchanged


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the files of all models; to make one for each, pytest goes over all made before."""
    return tmp_path_factory.mktemp("floor")


@everywhere
def test_saved_module_runs_the_same(case: Case, frontend: str, folder: Path) -> None:
    """Through a file and back: equal to the bit."""
    result = quantize(case, frontend)
    path = folder / f"{case.name}-{frontend}.pt"
    torch.jit.save(result.quantized, str(path))
    loaded = torch.jit.load(str(path))
    args, expected = case.arguments(RUN_BATCH, RUN_SEED), quantized_run(case, frontend)
    assert_same(expected, run(loaded, args, case.method), case.name)


def test_files_load_without_the_package(tmp_path: Path) -> None:
    """Every file again, in one fresh process that imports torch only: equal to the bit."""
    models = {
        f"{case.name}-{frontend}": (
            case, quantize(case, frontend).quantized, quantized_run(case, frontend)
        )
        for case in CASES
        for frontend in case.frontends
    }  # fmt: skip
    check_without_the_package(models, tmp_path)


def check_without_the_package(
    models: dict[str, tuple[Case, torch.jit.ScriptModule, Any]], folder: Path
) -> None:
    """Assert that files of models give the same bits in a process that imports torch only.

    Models are by name, each with its case and with what `run` has returned for it.
    """
    manifest, expected = [], []
    for name, (case, module, outcomes) in models.items():
        path = folder / f"{name}.pt"
        torch.jit.save(module, str(path))
        args = case.arguments(RUN_BATCH, RUN_SEED)
        manifest.append({"file": str(path), "args": args, "method": case.method})
        expected.append((name, list(leaves(outcomes[0]["output"]))))
    torch.save(manifest, folder / "manifest.pt")
    run_fresh(folder / "manifest.pt")
    outputs = torch.load(folder / "outputs.pt", weights_only=True)
    assert len(outputs) == len(expected) > 0
    for (name, left), right in zip(expected, outputs, strict=True):
        assert_same(left, right, name)


@pytest.mark.skipif(
    "onednn" not in torch.backends.quantized.supported_engines, reason="no onednn in this torch"
)
@pytest.mark.parametrize("name", ["conv2d_depthwise_116", "conv2d_depthwise_122"])
def test_depthwise_remainder_of_channels(name: str) -> None:
    """In int8 for certain, with an engine that is fast at them; above they may stay float."""
    case = next(case for case in CASES if case.name == name)
    original = case.build("script")
    batches = [case.arguments(CALIBRATION_BATCH, seed) for seed in range(CALIBRATION_BATCHES)]
    target = jit_passes.targets.Stock(engine="onednn")
    quantized = jit_passes.quantize_script(original, batches, target=target, progress=False)
    assert [row.dtype for row in jit_passes.coverage(quantized)] == ["int8"]
    args = case.arguments(RUN_BATCH, RUN_SEED)
    expected, actual = (run(module, args, "forward") for module in (original, quantized))
    assert_close(expected, actual, FLOOR, name)
