"""How many models go to exported programs and to files of ONNX, and give equal results there.

Float models, and models that are quantized for the engine; the latter are counted where there is
something to quantize. A table, and the reason for each model that is missing. Usage, from the
repository root, with openvino installed for its columns, torchvision, timm and transformers for
corpora::

    python -m benchmarks.exports
    python -m benchmarks.exports --corpora tests --models if_data state_cache
    python -m benchmarks.exports --corpora torchvision --ways program onnxruntime openvino

Results are equal if they differ by 1e-3 of the largest value at most, or, of a quantized model, by
half of what quantization itself has changed, or by two steps of the result.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import jit_passes
from benchmarks import report
from benchmarks.architectures import images, in_form, made, smallest_of_families, timm
from benchmarks.models import MODELS, ModelSpec
from benchmarks.models.small_transformers import SMALL
from benchmarks.models.torchvision_nets import torchvision
from benchmarks.models.whole import WHOLE
from benchmarks.runtimes.base import first_line
from jit_passes.testing import random_modules
from tests.models import CASES
from tests.onnx_translations import translations_once

_TOLERANCE = 1e-3  # of the largest value
_PART = 0.5  # of what quantization changes
_STEPS = 2.01
_RANDOM, _SEED = 200, 3
_SIZES = (32, 64, 128, 224, 299)  # of images, the smallest that a net takes counts
_NEAR = 1e-2  # of 0: a factor below hides what it multiplies


@dataclass(frozen=True)
class Subject:
    """A model of a corpus, and arguments by the seed that they are drawn with."""

    name: str
    make: Callable[[], torch.jit.ScriptModule]
    arguments: Callable[[int], Any]
    method: str = "forward"


def _tests() -> Iterator[Subject]:
    """The small models of the tests, scripted and traced."""
    for case in CASES:
        for form in case.frontends:

            def make(case: Any = case, form: str = form) -> torch.jit.ScriptModule:
                built: torch.jit.ScriptModule = case.build(form)
                return built

            def arguments(seed: int, case: Any = case) -> Any:
                return case.arguments(2, seed=seed)

            yield Subject(f"{case.name}-{form}", make, arguments, case.method)


def _random() -> Iterator[Subject]:
    """Modules drawn at random."""
    for module in random_modules(_RANDOM, _SEED):

        def make(module: Any = module) -> torch.jit.ScriptModule:
            compiled: torch.jit.ScriptModule = module.compile(training=False, dtype=torch.float32)
            return compiled

        def arguments(seed: int, module: Any = module) -> Any:
            return module.arguments(torch.float32)

        yield Subject(f"random-{module.index}", make, arguments)


def _specified(specs: Mapping[str, ModelSpec]) -> Callable[[], Iterator[Subject]]:
    """Architectures of the benchmarks."""

    def subjects() -> Iterator[Subject]:
        return (specified(name, spec) for name, spec in specs.items())

    return subjects


def specified(name: str, spec: ModelSpec, batch: int = 2) -> Subject:
    """An architecture of the benchmarks, at a batch size."""

    def make() -> torch.jit.ScriptModule:
        return spec.form(spec.build(), spec.inputs(batch, 1))

    def arguments(seed: int) -> Any:
        return (spec.inputs(batch, seed),)

    return Subject(name, make, arguments)


def _classifiers() -> Iterator[Subject]:
    """The classifiers of torchvision that script, at the smallest of a few sizes."""
    models = torchvision()
    for name in models.list_models(module=models):
        size: list[int] = []

        def make(name: str = name, size: list[int] = size) -> torch.jit.ScriptModule:
            torch.manual_seed(0)
            net = torch.jit.script(_seen(models.get_model(name, weights=None).eval()))
            size[:] = [next(side for side in _SIZES if _runs(net, side))]
            return net

        def arguments(seed: int, size: list[int] = size) -> Any:
            torch.manual_seed(seed)
            return (torch.randn(2, 3, size[0], size[0]),)

        yield Subject(name, make, arguments)


def _families() -> Iterator[Subject]:
    """The smallest model of each family of timm, traced."""
    package = timm()

    def create(name: str, **options: Any) -> torch.nn.Module:
        return _seen(package.create_model(name, **options))

    for name in smallest_of_families(package):
        size: list[int] = []

        def make(name: str = name, size: list[int] = size) -> torch.jit.ScriptModule:
            eager, size[:] = made(name, create)
            with torch.no_grad():
                return in_form("traced", eager, torch.randn(2, *size))

        def arguments(seed: int, size: list[int] = size) -> Any:
            return (images(2, size, torch.Generator().manual_seed(seed)),)

        yield Subject(name, make, arguments)


def _seen(model: torch.nn.Module) -> torch.nn.Module:
    """Draw parameters that begin near 0, as heads, scales of layers and positions do.

    No result would differ by what they multiply.
    """
    for parameter in model.parameters():
        if parameter.numel() and float(parameter.abs().max()) < _NEAR:
            torch.nn.init.normal_(
                parameter, std=parameter.shape[1] ** -0.5 if parameter.dim() > 1 else 0.3
            )
    return model


def _runs(net: torch.jit.ScriptModule, side: int) -> bool:
    try:
        with torch.no_grad():
            net(torch.randn(1, 3, side, side))
    except (RuntimeError, AssertionError, torch.jit.Error):
        return False
    return True


CORPORA: dict[str, Callable[[], Iterator[Subject]]] = {
    "tests": _tests,
    "random": _random,
    "benchmarks": _specified(MODELS),
    "whole": _specified(WHOLE),
    "torchvision": _classifiers,
    "timm": _families,
    "transformers": _specified(SMALL),
}
_TITLES = {
    "tests": "models of the tests",
    "random": "modules drawn at random",
    "benchmarks": "architectures of the benchmarks",
    "whole": "whole architectures",
    "torchvision": "classifiers of torchvision",
    "timm": "families of timm",
    "transformers": "small transformers",
}


def _copies(value: Any) -> Any:
    return tree_map_only(Tensor, torch.clone, value)


def called(function: Callable[..., Any], args: Any) -> list[Any]:
    """Return the results as a flat list; arguments may be written to."""
    args = _copies(args)
    with torch.no_grad():
        return tree_leaves(function(**args) if isinstance(args, dict) else function(*args))


class Program:
    """An exported program."""

    def __init__(self, model: Any, args: Any, method: str, path: Path) -> None:
        self._module = jit_passes.to_exported_program(model, args, method=method).module()

    def __call__(self, args: Any) -> list[Any]:
        return called(self._module, args)


class OnnxFile:
    """A file of ONNX, made once for all engines."""

    def __init__(self, model: Any, args: Any, method: str, path: Path) -> None:
        if not path.exists():
            jit_passes.export_onnx(model, path, args, method=method)
        self.inputs = self._load(str(path))

    def _load(self, path: str) -> list[str]:
        """Load it and return the names of its inputs."""
        raise NotImplementedError

    def _run(self, arrays: dict[str, Any]) -> list[Any]:
        raise NotImplementedError

    def __call__(self, args: Any) -> list[Any]:
        given = [leaf.numpy() for leaf in tree_leaves(_copies(args)) if isinstance(leaf, Tensor)]
        names = dict(zip(self.inputs, given, strict=True))
        if isinstance(args, dict):
            names = {name: args[name].numpy() for name in self.inputs}
        return [torch.from_numpy(array) for array in self._run(names)]


class InOnnxRuntime(OnnxFile):
    """With all of its optimizations."""

    def _load(self, path: str) -> list[str]:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [value.name for value in self._session.get_inputs()]

    def _run(self, arrays: dict[str, Any]) -> list[Any]:
        results: list[Any] = self._session.run(None, arrays)
        return results


class InOpenVino(OnnxFile):
    """On a processor, in float32 where it computes in float."""

    def _load(self, path: str) -> list[str]:
        openvino = importlib.import_module("openvino")
        options = {  # without the last, linears in float quantize their operands
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 1,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self._model = openvino.Core().compile_model(path, "CPU", options)
        return [value.node.friendly_name for value in self._model.inputs]

    def _run(self, arrays: dict[str, Any]) -> list[Any]:
        return [array.copy() for array in self._model(arrays).to_tuple()]


@dataclass(frozen=True)
class Way:
    """A column: a program or an engine, and the target that models are quantized for."""

    title: str
    run: Callable[[Any, Any, str, Path], Callable[[Any], list[Any]]]
    target: str | None = None
    needs: str = "torch"


WAYS = {
    "program": Way("program", Program),
    "onnxruntime": Way("ONNX Runtime", InOnnxRuntime, needs="onnxruntime"),
    "openvino": Way("OpenVINO", InOpenVino, needs="openvino"),
    "program_int8": Way("program, int8", Program, "inductor"),
    "onnxruntime_int8": Way("ONNX Runtime, int8", InOnnxRuntime, "onnxruntime", "onnxruntime"),
    "openvino_int8": Way("OpenVINO, int8", InOpenVino, "openvino", "openvino"),
}


def apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference of results, as a part of the largest value of each."""
    found = [value for value in found if isinstance(value, Tensor | int | float)]
    expected = [value for value in expected if isinstance(value, Tensor | int | float)]
    if len(found) != len(expected):  # a file has no results that are known numbers
        expected = [value for value in expected if isinstance(value, Tensor)]
    if len(found) != len(expected):
        raise ValueError(f"{len(found)} results in place of {len(expected)}")
    largest = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = torch.as_tensor(a), torch.as_tensor(b)
        if a.shape != b.shape:
            raise ValueError(f"the shape {list(a.shape)} in place of {list(b.shape)}")
        a, b = a.double().nan_to_num(), b.double().nan_to_num()
        if b.numel():
            scale = max(float(b.abs().max()), 1e-6)
            largest = max(largest, float((a - b).abs().max()) / scale)
    return largest


def _outcome(subject: Subject, model: Any, way: Way, folder: Path) -> str | None:
    """Return why a model does not go this way, "" if it does, None if it is none to count."""
    args, floats = subject.arguments(1), model
    allowed = _TOLERANCE
    if way.target is not None:
        model, allowed = quantized(subject, floats, way.target)
        if model is None:
            return None
    own = copy.deepcopy(model)  # whose state the call may change
    expected = called(getattr(own, subject.method), args)
    path = folder / f"{subject.name}-{way.target}.onnx"
    try:
        loaded = way.run(model, args, subject.method, path)
        found = apart(loaded(args), expected)
    except Exception as error:  # whatever an engine raises
        return _reason(error)
    if not found <= allowed:  # or it is no number
        return f"its results differ by {found:.1e} of the largest value"
    return ""


def _reason(error: Exception) -> str:
    """Return what an error says; OpenVINO says at its end which operators it does not read."""
    said = str(error).strip().splitlines()
    failed = [line for line in said if "Unsupported" in line or "message:" in line]
    return f"{type(error).__name__}: {failed[-1].strip()}" if failed else first_line(error)


def quantized(subject: Subject, model: Any, target: str) -> tuple[Any, float]:
    """Return the model for an engine, None if there is nothing to quantize, and a tolerance."""
    batches = [subject.arguments(seed) for seed in (1, 2)]
    options: dict[str, Any] = {"mode": "static", "progress": False, "method": subject.method}
    if (
        not torch.cpu._is_vnni_supported()
    ):  # kernels of the engines then add pairs of products in int16
        options["config"] = {"version": 1, "global": {"weight": {"bits": 7}}}
    try:
        made = jit_passes.quantize_script(model, batches, target=target, **options)
    except jit_passes.JitPassesError:
        return None, math.nan
    if not any(row.dtype == "int8" for row in jit_passes.coverage(made)):
        return None, math.nan
    args = batches[0]
    results, floats = (
        called(getattr(copy.deepcopy(each), subject.method), args) for each in (made, model)
    )
    changed = apart(results, floats)
    largest = max(
        (float(value.abs().max()) for value in results if _is_numbers(value)), default=math.inf
    )
    last = jit_passes.encodings_of(made).activations[-1].scale[0]
    return made, max(_TOLERANCE, _PART * changed, _STEPS * last / largest)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def count(
    corpus: str, ways: Sequence[str], names: Sequence[str] | None, step: int
) -> tuple[list[str], Counter[str], list[str]]:
    """Return a row of the table, how many were counted by way, and reasons."""
    fine: Counter[str] = Counter()
    every: Counter[str] = Counter()
    reasons: list[str] = []
    for subject in islice(CORPORA[corpus](), 0, None, step):
        if names and not {subject.name, subject.name.rpartition("-")[0]} & {*names}:
            continue
        try:
            model = subject.make()
        except (RuntimeError, NotImplementedError) as error:  # TorchScript does not take it
            report.progress(f"{subject.name}: {first_line(error)}")
            continue
        before = len(reasons)
        with tempfile.TemporaryDirectory() as folder:
            for way in ways:
                found = _outcome(subject, model, WAYS[way], Path(folder))
                every[way] += found is not None
                fine[way] += found == ""
                if found:
                    reasons.append(f"{subject.name}, {WAYS[way].title}: {found}")
        report.progress("\n".join(reasons[before:]) or f"{subject.name}: equal")
    return [f"{fine[way]} of {every[way]}" for way in ways], every, reasons


def main(arguments: Sequence[str] | None = None) -> None:
    """Count what the command line asks for, and print a table and reasons."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__)
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--models", nargs="+", help="by name; of a small model without its form")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth model alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ways = [way for way in options.ways if importlib.util.find_spec(WAYS[way].needs)]
    rows, every = [], []
    with translations_once():
        for corpus in options.corpora:
            cells, _, reasons = count(corpus, ways, options.models, options.every)
            rows.append([_TITLES[corpus], *cells])
            every += reasons
    print(report.table(["", *(WAYS[way].title for way in ways)], rows))
    print("\n".join(every))


if __name__ == "__main__":
    main()
