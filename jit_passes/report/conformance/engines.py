"""The engines that `conformance` knows by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import JitPassesError, JitPassesWarning
from ...export import to_exported_program
from ...export.program.sums import keep_apart
from ...targets import Target, resolve_target
from .compiled_c import CompiledC
from .foreign import errors_of, imported
from .onnx_runtime import OnnxRuntime, exported, sizes_of
from .openvino import OpenVinoFile
from .subject import Subject
from .values import Codes, codes_of_results, results_of

Engine = Callable[[tuple[Any, ...]], Mapping[str, torch.Tensor]]  # of a batch, args and kwargs


def _lowered(subject: Subject, target: str | Target) -> Engine:
    with warnings.catch_warnings():
        # Operators that stay in float: the report of the model names them.
        warnings.simplefilter("ignore", JitPassesWarning)
        return subject.watched(subject.lowered(resolve_target(target)))


class Inductor:
    """`torch.compile` of the exported program, made anew for other sizes; it shows results."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.config = imported("torch._inductor.config")
        self._compiled: dict[Any, Any] = {}

    def __call__(self, arguments: tuple[Any, ...]) -> Codes:
        given = self.subject.named(arguments)
        sizes = sizes_of(given)
        frozen = self.config.patch(freezing=True, compile_threads=1)
        with errors_of("Inductor"), frozen, torch.no_grad():
            if sizes not in self._compiled:
                method = self.subject.report.method
                program = to_exported_program(self.subject.model, given, method=method)
                keep_apart(program)  # of models for other engines
                self._compiled[sizes] = torch.compile(program.module())
            result = self._compiled[sizes](**given)
        return codes_of_results(result, self.subject.grids)


class OpenVino:
    """OpenVINO's CPU plugin, of the ONNX file; it shows results.

    Raises:
        JitPassesError: openvino is not installed, or all results are floats.
    """

    def __init__(self, subject: Subject) -> None:
        imported("openvino")
        if not any(name in subject.grids for name, _ in results_of(subject.graph)):
            raise JitPassesError(
                "it shows results alone, and the results of this model are floats, which have no "
                "codes: export the model to ONNX, and compare the file by `jit-passes check`, in "
                "Python check_onnx, with engine openvino"
            )
        self.subject = subject
        self._files: dict[Any, OpenVinoFile] = {}

    def __call__(self, arguments: tuple[Any, ...]) -> Codes:
        given = self.subject.named(arguments)
        sizes = sizes_of(given)
        if sizes not in self._files:
            self._files[sizes] = OpenVinoFile(exported(self.subject, given))
        found = self._files[sizes](given)
        return codes_of_results(found[0] if len(found) == 1 else found, self.subject.grids)


ENGINES: dict[str, Callable[[Subject], Engine]] = {
    "reference": lambda subject: subject.watched(),
    "fixed_point": lambda subject: _lowered(subject, subject.fixed_point),
    "c": CompiledC,
    "stock": lambda subject: _lowered(subject, "stock"),
    "x86": lambda subject: _lowered(subject, "x86"),
    "onnxruntime": lambda subject: OnnxRuntime(subject, optimized=False),
    "onnxruntime_optimized": lambda subject: OnnxRuntime(subject, optimized=True),
    "openvino": OpenVino,
    "inductor": Inductor,
}
