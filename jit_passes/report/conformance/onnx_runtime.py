"""ONNX Runtime on CPUs, with the codes inside of a file as further results."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...export.onnx import export_onnx
from ...stages.values import QuantizedValue
from .foreign import errors_of, fed, imported, onnx_of
from .subject import Subject
from .values import Codes, codes_of_results

ENGINE = "ONNX Runtime"
QUANTIZE = "QuantizeLinear"
BLOCKS = ("If", "Loop", "Scan")
# Operators of ONNX and of ONNX Runtime that coverage counts, on integers and in float.
INTEGERS = frozenset(
    ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger")
)
INTEGERS |= {"ConvInteger", "DynamicQuantizeMatMul", "MatMulNBits"}
FLOATS = frozenset(("Conv", "FusedConv", "Gemm", "MatMul", "FusedMatMul", "FusedGemm"))
FLOATS |= {"ConvTranspose"}
# Operators that move codes: a further result may need another order of axes.
MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")

_MISMATCH = "output_dtype INT8 does not match y_zero_point type UINT8"


class OnnxRuntime:
    """A subject in ONNX Runtime, exported anew for other sizes.

    Args:
        subject: the model.
        optimized: with all of its optimizations, or none.

    Raises:
        JitPassesError: onnxruntime or onnx is not installed, or the model has no form in ONNX.
    """

    def __init__(self, subject: Subject, *, optimized: bool) -> None:
        imported("onnxruntime")
        self.subject, self.optimized = subject, optimized
        self._files: dict[Any, OnnxFile] = {}

    def __call__(self, arguments: tuple[Any, ...]) -> Codes:
        given = self.subject.named(arguments)
        sizes = sizes_of(given)
        if sizes not in self._files:
            path = exported(self.subject, given)
            self._files[sizes] = OnnxFile(path, self.subject, optimized=self.optimized)
        return self._files[sizes](given)


class OnnxFile:
    """A file in ONNX Runtime that also gives the codes of its QuantizeLinear.

    Optimization must not change by it: where the optimized graph computes with other operators than
    without these further results, they are left out.

    Args:
        path: of the file.
        subject: the reference model whose names the file has.
        optimized: with all optimizations, or none.

    Attributes:
        kinds: how many operators of each kind the graph has that runs.

    Raises:
        JitPassesError: onnx or onnxruntime is not installed, or does not load the file.
    """

    def __init__(self, path: Path, subject: Subject, *, optimized: bool) -> None:
        self.shown, self.grids = shown_values(path, subject.report.values), subject.grids
        plain, self.kinds = _session(path, (), optimized)
        tapped, kinds = _session(path, tuple(self.shown.values()), optimized)
        if _computing(kinds) == _computing(self.kinds):
            self._session = tapped
        else:
            self._session, self.shown = plain, {}
        self.results = [result.name for result in plain.get_outputs()]

    def __call__(self, given: Mapping[str, torch.Tensor]) -> Codes:
        """Return codes by name, for arguments by name."""
        feed = fed([argument.name for argument in self._session.get_inputs()], given)
        with errors_of(ENGINE):
            arrays = self._session.run([*self.results, *self.shown.values()], feed)
        tensors = [torch.from_numpy(array) for array in arrays]
        results, inner = tensors[: len(self.results)], tensors[len(self.results) :]
        found = {n: t.to(torch.int64) for n, t in zip(self.shown, inner, strict=True)}
        whole = results[0] if len(results) == 1 else results
        return found | codes_of_results(whole, self.grids)


def exported(subject: Subject, given: dict[str, Any]) -> Path:
    """Return an ONNX file of a model for the sizes of a batch, which goes with the subject."""
    sizes = sizes_of(given)
    if sizes not in subject.files:
        path = Path(subject.folder.name) / f"{len(subject.files)}.onnx"
        export_onnx(subject.model, path, given, method=subject.report.method)
        subject.files[sizes] = path
    return subject.files[sizes]


def sizes_of(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sizes of tensors, and other arguments: for new ones, programs are made anew."""
    return tuple(getattr(value, "shape", value) for value in given.values())


def _computing(kinds: Counter[str]) -> dict[str, int]:
    return {kind: count for kind, count in kinds.items() if kind not in MOVES}


def shown_values(path: Path, values: Sequence[QuantizedValue]) -> dict[str, str]:
    """Return by name of a value the result of its QuantizeLinear in a file.

    Codes on one of several grids of a value are known by their order; where the file has more or
    fewer, none is. Files with branches or loops give values of several places one name.
    """
    model = onnx_of(path)
    if any(node.op_type in BLOCKS for node in model.graph.node):
        return {}
    made = [node.output[0] for node in model.graph.node if node.op_type == QUANTIZE]
    labels: dict[str, list[str]] = {}
    for value in values:
        of_name = labels.setdefault(value.name, [])
        if value.label not in of_name:
            of_name.append(value.label)
    found: dict[str, str] = {}
    for name, of_name in labels.items():
        results = [result for result in made if result.partition(":quantized")[0] == name]
        if len(results) == len(of_name):
            found |= dict(zip(of_name, results, strict=True))
    return found


def _session(path: Path, further: Sequence[str], optimized: bool) -> tuple[Any, Counter[str]]:
    """Return a session with further results, and the operators of the graph that it runs.

    An optimization of 1.31 puts quantize, with `output_dtype`, behind int8 that is moved; another
    makes uint8 of int8, and leaves `output_dtype` as it is. The result does not load. The session
    then keeps int8.
    """
    onnx, runtime = imported("onnx"), imported("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    with tempfile.TemporaryDirectory() as folder:
        source = path
        if further:
            model = onnx.load(str(path))
            results = {result.name for result in model.graph.output}
            model.graph.output.extend(
                onnx.ValueInfoProto(name=name) for name in further if name not in results
            )
            source = Path(folder) / "model.onnx"
            large = model.ByteSize() > 2**30
            onnx.save(model, str(source), save_as_external_data=large)
        written = Path(folder) / "run.onnx"
        options.optimized_model_filepath = str(written)
        load = partial(runtime.InferenceSession, str(source), providers=["CPUExecutionProvider"])
        with errors_of(ENGINE):
            try:
                session = load(options)
            except Exception as error:  # of a class of its own
                if _MISMATCH not in str(error):
                    raise
                options.add_session_config_entry("session.qdqisint8allowed", "1")
                session = load(options)
        graph = onnx.load(str(written), load_external_data=False).graph
    return session, Counter(node.op_type for node in graph.node)
