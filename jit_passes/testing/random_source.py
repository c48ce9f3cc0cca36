"""Random source of modules: statements drawn by weight, put together to a class."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import random_idioms as idioms
from . import random_layers as layers
from . import random_statements as statements
from .random_writer import DoesNotFit, Writer

HEADER = """\
from typing import List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


"""

HELPER = """
    def helper(self, x: Tensor, scale: Optional[Tensor] = None, offset: Optional[float] = None):
        if scale is not None:
            x = x * scale
        return x if offset is None else x + offset
"""

INPUTS = (
    (2, 4, 6), (3, 3, 5), (2, 3, 6, 5), (2, 4, 5, 5), (1, 6, 6, 4), (2, 2, 4, 4, 3),
    (2, 3, 3, 4, 4),
    (4, 6), (3, 5), (2, 3, 4), (3, 6, 6), (2, 6, 7), (2, 4, 4, 6),
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A class `Net`: source, sizes of forward's arguments, names of methods."""

    source: str
    inputs: tuple[tuple[int, ...], ...]
    methods: tuple[str, ...]


_STATEMENTS: dict[Callable[[Writer], None], int] = {
    statements.elementwise: 14, statements.activation_module: 7, statements.reshape: 10,
    statements.pair: 9, statements.write: 8, statements.alias_and_write: 4, layers.convolution: 9,
    layers.transposed: 4, layers.functional_convolution: 5, layers.shared: 3, layers.linear: 7,
    layers.batch_norm: 3, layers.convolution_norm: 7, layers.other_norm: 2, layers.dropout: 3,
    layers.pool: 4, statements.resize: 3, statements.unpack: 3, statements.lists: 3,
    statements.sizes: 2, statements.branch: 5, statements.loop: 5, layers.layers: 3,
    layers.attention: 1, statements.state: 3, statements.optional: 2, layers.concatenation: 2,
    layers.many_groups: 2, layers.layer_scale: 3, statements.dictionary: 3,
    statements.write_in_block: 4, statements.list_of_views: 3, statements.swap: 2,
    layers.fused_attention: 1, layers.embedding: 2, layers.recurrent: 3,
    idioms.spelled_out_activation: 4, idioms.spelled_out_norm: 3, idioms.masked_attention: 3,
    idioms.heads: 2, idioms.transformer: 2, idioms.rows: 2, idioms.written_bias: 2,
    idioms.resize_as: 2, idioms.pool_of_lines: 2, idioms.cast: 2, idioms.recurrent_cell: 1,
    idioms.listed: 2,
}  # fmt: skip


def draw(rng: random.Random) -> Drawn:
    """Draw a class; whether it runs in both modes is for the caller to see."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's advice on the drawn modules
        return _draw(rng)


def _draw(rng: random.Random) -> Drawn:
    shapes: list[tuple[int, ...]] = [rng.choice(INPUTS)]
    if rng.random() < 0.4:
        shapes.append(shapes[0])
    inputs = [f"x{i}" for i in range(len(shapes))]
    optional = rng.random() < 0.15
    if optional:
        inputs.append("extra")
        shapes.append((2,))
    w = Writer(rng, inputs, shapes)
    statements, weights = list(_STATEMENTS), list(_STATEMENTS.values())
    wanted = rng.randint(3, 9)
    for _ in range(60):
        if len(w.lines) >= wanted:
            break
        with contextlib.suppress(DoesNotFit, KeyError):
            rng.choices(statements, weights)[0](w)
        for name in [k for k in w.scope if k.startswith("v") and k not in "\n".join(w.lines)]:
            del w.scope[name]
    names = [name for name, value in w.tensors().items() if name not in inputs] or [inputs[0]]
    results = list(dict.fromkeys([*w.results, names[-1]]))
    if rng.random() < 0.5:
        results += [n for n in rng.sample(names, min(2, len(names))) if n not in results]
    return Drawn(*_class(w, rng, results, optional))


def _class(
    w: Writer, rng: random.Random, results: list[str], optional: bool
) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]:
    result = ", ".join(results)
    if len(results) == 1:
        result = rng.choice((result, result, result, f"({result},)", f"[{result}, {result}]"))
    else:
        result = rng.choice(
            (f"({result})", f"[{result}]", f"{{'a': {results[0]}, 'b': {results[1]}}}")
        )
    if len(results) > 2 and result.startswith("{"):
        result = f"({', '.join(results)})"
    arguments = "".join(f", {name}: Tensor" for name in w.inputs if name != "extra")
    arguments += ", extra: Optional[Tensor] = None" if optional else ""
    if any("missing is not None" in line for line in w.lines):
        arguments += ", missing: Optional[Tensor] = None"
    members = [f"        {line}\n" for line in w.members]
    body = [f"        {part}\n" for line in w.lines for part in line.split("\n")]
    source = (
        "class Net(nn.Module):\n    def __init__(self) -> None:\n        super().__init__()\n"
        + "".join(members)
        + f"\n    def forward(self{arguments}):\n{''.join(body)}        return {result}\n"
    )
    if "self.helper(" in source:
        source += HELPER
    methods = ["forward"]
    if rng.random() < 0.1:
        methods.append("other")
        given = ", ".join(part.split(":")[0] for part in arguments[2:].split(", "))
        source += f"\n    @torch.jit.export\n    def other(self{arguments}):\n"
        source += (
            f"        result = self.forward({given})\n        return result, {w.inputs[0]} * 1\n"
        )
    return source, tuple(w.shapes), tuple(methods)
