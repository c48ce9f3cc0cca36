"""The program of `export_c`, compiled and called."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from ...errors import JitPassesError
from ...export.c import export_c
from ...export.c.program import Buffer
from ...export.c.reading import example_of, read_program
from ...specification.parameters import QParams
from ...specification.qparams import codes_of
from ...stages.recording import tensors_of
from ...targets.fixed_point.rescale import rounding_of_codes
from .subject import Subject
from .values import OUTPUT, Codes

FLAGS = ("-std=c99", "-O1", "-shared", "-fPIC")


class CompiledC:
    """The codes of a program in C99, by a shared library of it for each set of sizes.

    The program shows results alone: its inner buffers share memory. The compiler is `$CC`, or the
    first of cc, gcc and clang.

    Raises:
        JitPassesError: there is no compiler, or the model is not written as C.
    """

    def __init__(self, subject: Subject) -> None:
        names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
        found = next((path for name in names if name and (path := shutil.which(name))), None)
        if found is None:
            raise JitPassesError(
                "no C compiler was found: install gcc or clang, or set CC to its path"
            )
        self.subject, self.compiler = subject, found
        self.model = subject.lowered(subject.fixed_point)
        self._programs: dict[Any, _Library] = {}

    def __call__(self, arguments: tuple[Any, ...]) -> Codes:
        given = self.subject.named(arguments)
        sizes = tuple(tuple(value.shape) for value in given.values())
        if sizes not in self._programs:
            self._programs[sizes] = _Library(self, given)
        return self._programs[sizes](given)


class _Library:
    def __init__(self, engine: CompiledC, given: dict[str, torch.Tensor]) -> None:
        method, grids = engine.subject.report.method, engine.subject.grids
        example = example_of(given, engine.model, method)
        self.program, _, _ = read_program(engine.model, example, method)
        for buffer in self.program.inputs:
            if not buffer.scale:
                raise JitPassesError(f"the program does not know the scale of '{buffer.name}'")
        result = getattr(engine.model, method)(**given)
        self.results = [name for name, _ in tensors_of(result, OUTPUT)]
        self.grids = grids
        with tempfile.TemporaryDirectory() as folder:
            export_c(engine.model, folder, given, method=method)
            library = Path(folder) / "model.so"
            command = [engine.compiler, *FLAGS, "model.c", "-o", library.name]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                said = next(iter(done.stderr.splitlines()), "")
                raise JitPassesError(f"{engine.compiler} does not compile the program: {said}")
            # The file may go once it is loaded.
            self.function = ctypes.CDLL(str(library)).model_run

    def __call__(self, given: dict[str, torch.Tensor]) -> Codes:
        inputs, outputs = self.program.inputs, self.program.outputs
        codes = [codes_of(given[b.name], self.grid_of(b)).contiguous() for b in inputs]
        results = [torch.zeros(buffer.shape, dtype=buffer.dtype) for buffer in outputs]
        self.function(*(ctypes.c_void_p(t.data_ptr()) for t in (*codes, *results)))
        found: Codes = {}
        for name, buffer, result in zip(self.results, outputs, results, strict=True):
            if (grid := self.grids.get(name)) is not None:
                values = (result.double() - buffer.zero_point) * buffer.scale
                found[name] = grid.codes(values)
        return found

    def grid_of(self, x: Buffer) -> QParams:
        """Return the grid of an input, whose codes the caller of a program in C computes."""
        ends, dtype = torch.iinfo(x.dtype), str(x.dtype).removeprefix("torch.")
        rounding = rounding_of_codes(self.program.rounding)
        return QParams(x.scale, x.zero_point, None, ends.min, ends.max, dtype, rounding)
