"""`check_onnx`: a file of ONNX beside the reference model that it was made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError, JitPassesError, count_of, not_among
from ...export.onnx.qonnx import DOMAIN
from ...export.origin import target_in
from ...files import read_bytes
from ...logs import timed
from ...stages.batches import batches, cloned, progress_bar
from ...stages.recording import tensors_of
from ...targets import Target
from ...targets.engines import Engine
from .float_results import FloatResults, ResultDifference, table_of
from .foreign import onnx_of
from .onnx_runtime import FLOATS, INTEGERS, OnnxFile
from .openvino import OpenVinoFile
from .result import Conformance
from .run import conformance
from .subject import Subject
from .values import OUTPUT

PLAIN, OPTIMIZED = "onnxruntime", "onnxruntime_optimized"
# Engines that run files here, by the name of their target.
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class FileCheck:
    """The results of an engine on a file; printing them gives a table and the counts.

    Attributes:
        engine: which: "onnxruntime" or "openvino".
        target: of the model, by name.
        codes: the codes in ONNX Runtime beside the reference model, without optimization and with
            it. For an engine that is not run, without it alone. OpenVINO shows no codes.
        results: the results in OpenVINO beside the reference model, as floats.
        integers: convolutions, linears and products on integers in the graph that runs, by kind.
        floats: convolutions, linears and products that stay in float, by kind.
        promised: how many operators the reference model's report has on integers; None where the
            file is for an engine that is not run, and nothing is counted.
    """

    engine: str
    target: str
    codes: Conformance
    results: tuple[ResultDifference, ...]
    integers: Mapping[str, int]
    floats: Mapping[str, int]
    promised: int | None

    @property
    def equal(self) -> bool:
        """Whether no code differs, and all results in float are within their tolerances."""
        return self.codes.equal and all(result.within for result in self.results)

    @property
    def kept(self) -> bool:
        """Whether the count of operators on integers reaches the report's, where it was counted."""
        return self.promised is None or sum(self.integers.values()) >= self.promised

    @property
    def summary(self) -> str:
        """The counts, in a line; or which engine reads the file and is not run."""
        if self.promised is None:
            return (
                f"the file is for {self.target}, which is not run here: ONNX Runtime computes it "
                "without optimization, and operators on integers are not counted"
            )
        where = "OpenVINO" if self.engine == "openvino" else "the optimized graph"
        told = f"in {where} on integers: {_counted(self.integers) or 'none'}"
        if self.floats:
            told += f"; in float: {_counted(self.floats)}"
        return f"{told}; {count_of(self.promised, 'operator')} promised by the report"

    def as_data(self) -> dict[str, Any]:
        """Return all of it as dicts, lists, strings and numbers."""
        results = [asdict(result) | {"within": result.within} for result in self.results]
        found = {
            "engine": self.engine,
            "target": self.target,
            "equal": self.equal,
            "results": results,
            "integers": dict(self.integers),
            "floats": dict(self.floats),
            "promised": self.promised,
            "kept": self.kept,
        }
        return self.codes.as_data() | found

    def __str__(self) -> str:
        table = table_of(ENGINES[self.engine], self.results) if self.results else str(self.codes)
        return f"{table}\n{self.summary}"


@timed
def check_onnx(
    path: str | os.PathLike[str],
    reference: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
    engine: str | None = None,
) -> FileCheck:
    """Compare a file of ONNX, in an engine, with the reference model that it was made from.

    In ONNX Runtime, codes are compared as by `conformance`, by the names that `export_onnx` gives
    values. In OpenVINO, results are compared as floats: a result on a grid may be a step apart,
    another one a hundredth of its largest number.

    Args:
        path: the file; it is not touched.
        reference: the reference model; it is not touched.
        data: batches, as for `calibrate`.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: of a model with several quantized methods, which.
        engine: "onnxruntime" or "openvino"; None for the engine of the model's target. Other
            targets are for engines that are not run here: ONNX Runtime computes the file as it is
            written.

    Raises:
        ArgumentError: the engine is unknown.
        JitPassesError: onnx or the engine is not installed; the engine does not load the file; the
            file is no ONNX, or has other inputs, values or results; `reference` is no reference
            model; there is no batch.
        JitPassesError: the file cannot be read; this is an OSError too.
    """
    if engine is not None and engine not in ENGINES:
        raise ArgumentError(not_among("engine", engine, list(ENGINES)))
    read_bytes(path)  # for its errors
    file = Path(path)
    written = onnx_of(file)
    subject = Subject.of(reference, method, _target_of(written) or "reference")
    _check_form(file, written)
    target = Target.from_record(subject.report.target)
    unknown = isinstance(target, Engine) and target.name not in ENGINES
    promised = sum(row.dtype == "int8" for row in subject.report.operators)
    if (engine or target.name) == "openvino":
        given = batches(data, input_fn, progress_bar("check", progress))
        results, ran = _in_openvino(file, subject, given)
        return FileCheck(
            "openvino", target.name, Conformance(()), results, ran.integers, ran.floats, promised
        )
    plain = unknown and engine is None
    engines = [_Engine(file, subject, name) for name in ((PLAIN,) if plain else (PLAIN, OPTIMIZED))]
    codes = conformance(
        reference, data, engines, input_fn=input_fn, progress=progress, method=method
    )
    if plain:
        return FileCheck(PLAIN, target.name, codes, (), {}, {}, None)
    kinds = engines[-1].file.kinds
    integers = {kind: kinds[kind] for kind in sorted(kinds) if kind in INTEGERS}
    floats = {kind: kinds[kind] for kind in sorted(kinds) if kind in FLOATS}
    return FileCheck(PLAIN, target.name, codes, (), integers, floats, promised)


def _target_of(written: Any) -> str | None:
    """Return the target that a file says it is for, by name; None of a file of others."""
    told = [target_in(prop.value) for prop in written.metadata_props if prop.key == "jit_passes"]
    return told[0] if told else None


def _check_form(file: Path, written: Any) -> None:
    """Refuse a file that neither engine reads.

    Raises:
        JitPassesError: it is QONNX.
    """
    if any(opset.domain == DOMAIN for opset in written.opset_import):
        raise JitPassesError(
            f"{file} is QONNX, which compilers such as FINN and hls4ml read, and neither ONNX "
            "Runtime nor OpenVINO: nothing is run; export_onnx(..., form='qdq') writes the same "
            "model as a file that can be checked"
        )


def _in_openvino(
    file: Path, subject: Subject, given: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[tuple[ResultDifference, ...], OpenVinoFile]:
    ran, found = OpenVinoFile(file), FloatResults(subject.grids)
    run = getattr(subject.model, subject.report.method)
    for arguments in given:
        args, kwargs = cloned(arguments)
        with torch.no_grad():
            expected = dict(tensors_of(run(*args, **kwargs), OUTPUT))
        found.add(expected, ran(subject.named(arguments)))
    return found.differences(), ran


class _Engine:
    """A file as an engine of `conformance`."""

    def __init__(self, path: Path, subject: Subject, name: str) -> None:
        self.__name__, self.subject = name, subject
        self.file = OnnxFile(path, subject, optimized=name == OPTIMIZED)

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, torch.Tensor]:
        return self.file(self.subject.named((args, kwargs)))


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
