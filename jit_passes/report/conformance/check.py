"""`check_onnx`: a file of ONNX beside the reference model that it was made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import count_of
from ...files import read_bytes
from ...logs import timed
from .onnx_runtime import FLOATS, INTEGERS, OnnxFile
from .result import Conformance
from .run import conformance
from .subject import Subject

PLAIN, OPTIMIZED = "onnxruntime", "onnxruntime_optimized"


@dataclass(frozen=True)
class FileCheck:
    """What ONNX Runtime makes of a file; printing it gives a table and the counts.

    Attributes:
        codes: those of ONNX Runtime, without optimization and with it, beside the reference model.
        integers: convolutions, linears and products on integers in the optimized graph, by kind.
        floats: those that stay in float.
        promised: how many of them the reference model's report has on integers.
    """

    codes: Conformance
    integers: Mapping[str, int]
    floats: Mapping[str, int]
    promised: int

    @property
    def kept(self) -> bool:
        """Whether as many operators are on integers as the report says."""
        return sum(self.integers.values()) >= self.promised

    @property
    def summary(self) -> str:
        """The counts, in a line."""
        ours = _counted(self.integers) or "none"
        told = f"in the optimized graph on integers: {ours}"
        if self.floats:
            told += f"; in float: {_counted(self.floats)}"
        return f"{told}; {count_of(self.promised, 'operator')} promised by the report"

    def as_data(self) -> dict[str, Any]:
        """Return all of it as dicts, lists, strings and numbers."""
        counts = {"integers": dict(self.integers), "floats": dict(self.floats)}
        return self.codes.as_data() | counts | {"promised": self.promised, "kept": self.kept}

    def __str__(self) -> str:
        return f"{self.codes}\n{self.summary}"


@timed
def check_onnx(
    path: str | os.PathLike[str],
    reference: torch.jit.ScriptModule,
    data: Iterable[Any],
    *,
    input_fn: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    method: str = "forward",
) -> FileCheck:
    """Compare a file of ONNX, in ONNX Runtime, with the reference model that it was made of.

    Codes are compared as `conformance` does, by the names that `export_onnx` gives values.

    Args:
        path: the file; it is not touched.
        reference: the reference model; it is not touched.
        data: batches, as for `calibrate`.
        input_fn: makes a batch of inputs out of an item of `data`.
        progress: a progress bar; None for one on terminals only.
        method: of a model with several quantized methods, which.

    Raises:
        JitPassesError: onnx or onnxruntime is not installed, or does not load the file; the file
            has other inputs or values; the second is no reference model; there is no batch.
        JitPassesError: the file cannot be read; this is an OSError too.
    """
    subject = Subject.of(reference, method)
    read_bytes(path)  # for its errors
    engines = [_Engine(Path(path), subject, name) for name in (PLAIN, OPTIMIZED)]
    found = conformance(
        reference, data, engines, input_fn=input_fn, progress=progress, method=method
    )
    kinds = engines[1].file.kinds
    promised = sum(row.dtype == "int8" for row in subject.report.operators)
    integers = {kind: kinds[kind] for kind in sorted(kinds) if kind in INTEGERS}
    floats = {kind: kinds[kind] for kind in sorted(kinds) if kind in FLOATS}
    return FileCheck(found, integers, floats, promised)


class _Engine:
    """A file as an engine of `conformance`."""

    def __init__(self, path: Path, subject: Subject, name: str) -> None:
        self.__name__, self.subject = name, subject
        self.file = OnnxFile(path, subject, optimized=name == OPTIMIZED)

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, torch.Tensor]:
        return self.file(self.subject.named((args, kwargs)))


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
