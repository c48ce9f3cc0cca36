"""Programs in C99 of models that are lowered for `fixed_point`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ...errors import ArgumentError, JitPassesError, not_among
from ...files import write_whole, writing
from ...graph.view import GraphView
from .arena import place_buffers
from .cmsis import with_cmsis
from .program import Program
from .reading import example_of, read_program
from .text import Writer

__all__ = ["export_c"]
KERNELS = ("plain", "cmsis")  # of loops
BEYOND = 2.0**17  # steps: no code of 16 bits is so far from 0


def export_c(
    model: torch.jit.ScriptModule,
    folder: str | os.PathLike[str],
    example_inputs: Any,
    vectors: Iterable[Any] = (),
    *,
    name: str = "model",
    method: str = "forward",
    kernels: str = "plain",
) -> None:
    """Write a model that is lowered for `fixed_point` as a program in C99, with test vectors.

    The function `<name>_run` takes codes and gives codes, the integers of the lowered model. The
    program uses no floats, no library, and one arena of memory, whose size is in the header. Its
    sizes are fixed by the example, batch included. Files: `<name>.c`, `<name>.h`,
    `<name>_vectors.h`, `main.c` and `Makefile`; `make test` runs the vectors.

    Args:
        model: lowered for the target `fixed_point`; it is not touched.
        folder: of the files; it is made.
        example_inputs: a tensor, or tensors in a tuple or dict; arguments with a default may be
            left out. The example is the first test vector.
        vectors: further ones, of the same sizes. Three are added: inputs with the lowest codes,
            with the highest, and with random ones.
        name: of the function and the files.
        method: the method to export.
        kernels: "plain", loops of the program's own; or "cmsis", calls of CMSIS-NN where it has the
            arithmetic, for models with int8 activations and `half_up` or `double_round`. The
            program then needs CMSIS-NN's sources: `make CMSIS_NN=path test`.

    Raises:
        JitPassesError: with "cmsis", no operator has CMSIS-NN's arithmetic.
        JitPassesError: the model is lowered for another target, or computes something in float; an
            operator has no form in C; the name is none in C; or a vector has other sizes.
        JitPassesError: a file cannot be written; this is an OSError too.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ArgumentError(f"name is a name in C, not {name!r}")
    if kernels not in KERNELS:
        raise ArgumentError(not_among("kernels", kernels, KERNELS))
    first = example_of(example_inputs, model, method)
    program, given, results = read_program(model, first, method)
    written = with_cmsis(program) if kernels == "cmsis" else program
    arena = place_buffers(written)
    examples = [[*given, *results]]
    edges = _edges(program, GraphView.of(model, method), first)
    for inputs in (*examples_of(vectors, first, model, method), *edges):
        _, own, found = read_program(model, inputs, method)
        examples.append([*own, *found])
    files = Writer(written, name, arena).files(examples)
    path = Path(folder)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_whole(path / file, content)


def examples_of(
    inputs: Iterable[Any], sizes: Sequence[Any], model: Any, method: str
) -> Iterator[tuple[Any, ...]]:
    """Yield test vectors in the order of the method's arguments.

    Raises:
        JitPassesError: one has other sizes than the example.
    """
    for given in inputs:
        found = example_of(given, model, method)
        shapes = [[list(x.shape) for x in tensors_in(some)] for some in (found, sizes)]
        if shapes[0] != shapes[1]:
            raise JitPassesError(
                f"a test vector has the sizes {shapes[0]}, and the example {shapes[1]}: the "
                "program in C has the example's sizes"
            )
        yield found


def tensors_in(example: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments of an example."""
    return [x for x in example if isinstance(x, torch.Tensor)]


def _edges(program: Program, graph: GraphView, first: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield inputs with the lowest codes, with the highest, and with random ones."""
    generator = torch.Generator().manual_seed(0)
    buffers = {buffer.name: buffer for buffer in program.inputs}
    known = [buffers.get(value.name) for value in graph.inputs]
    for beyond in (-BEYOND, BEYOND, None):
        found = []
        for x, buffer in zip(first, known, strict=True):
            if buffer is None:
                found.append(x)
            elif beyond is not None:
                found.append(torch.full_like(x, beyond * buffer.scale))
            else:
                limits = torch.iinfo(buffer.dtype)
                codes = torch.randint(limits.min, limits.max + 1, x.shape, generator=generator)
                found.append((codes - buffer.zero_point) * buffer.scale)
        yield tuple(found)
