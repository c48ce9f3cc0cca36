"""Loops in C: of recurrent layers, and of programs drawn at random, with rings of buffers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.export.c.arena import Arena, place_buffers
from jit_passes.export.c.layout import loops
from jit_passes.export.c.program import Argument, Buffer, Call, Program, Struct
from jit_passes.export.c.structs import RESCALING
from jit_passes.export.c.text import Writer
from jit_passes.targets import FixedPoint
from tests.advice import traced_branches
from tests.export.c.test_c import check, compiled

pytestmark = traced_branches

INPUT, HIDDEN, COUNT = 4, 6, 5


class Layers(nn.Module):
    """A recurrent layer, in both directions or one; with `given`, its states come in."""

    def __init__(self, kind: str, both: bool, given: bool) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(INPUT, HIDDEN, batch_first=True, bidirectional=both)
        self.lstm, self.given = kind == "LSTM", given
        self.last = nn.Linear(HIDDEN * (2 if both else 1), 3)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        states = (h, c) if self.lstm else h
        y, _ = self.layers(x, states) if self.given else self.layers(x)
        tags: Tensor = self.last(y)
        return tags


def run_of(folder: Path) -> str:
    """Return the function that holds the calls."""
    return (folder / "model.c").read_text().rpartition("void model_run")[2]


@pytest.mark.parametrize(
    ("kind", "both", "given"),
    [("LSTM", False, False), ("GRU", False, True), ("RNN", True, False)],
)
def test_steps_are_a_loop(kind: str, both: bool, given: bool, tmp_path: Path) -> None:
    """More steps are more rounds, and no more text; gcc gives the codes."""
    texts = []
    for steps in (5, 6):
        torch.manual_seed(0)
        batches = [(torch.randn(2, steps, INPUT), *torch.randn(2, 1, 2, HIDDEN)) for _ in range(3)]
        traced = torch.jit.trace(Layers(kind, both, given).eval(), batches[0])
        lowered = jit_passes.quantize_script(traced, batches, target=FixedPoint(steps=steps))
        jit_passes.export_c(lowered, tmp_path, batches[0], batches[1:2])
        texts.append(run_of(tmp_path))
    check(tmp_path, lowered(*batches[0]).numel(), 2)
    assert "step < " in texts[0]
    assert texts[0].count(";") == texts[1].count(";")


class Drawn:
    """A program of averages, (a + b + 1) >> 1 of `COUNT` codes each, and the codes of its values.

    Operands of a call are the input, earlier calls of the round, and calls of the two rounds
    before. In the end results of all rounds are joined.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.program = Program("half_up", 32)
        self.codes: dict[Buffer, list[int]] = {}
        self.input = self.buffer("x", COUNT, "input")
        self.codes[self.input] = [self.draw.randrange(-128, 128) for _ in range(COUNT)]
        self.program.inputs.append(self.input)

    def buffer(self, name: str, count: int, role: str = "arena") -> Buffer:
        return Buffer(name, torch.int8, (count,), role)

    def call(self, kernel: str, reads: list[Buffer], writes: Buffer, **given: Argument) -> None:
        types = {name: "int8_t" for name, _ in zip(("X", "X2"), reads, strict=False)}
        types["Y"] = "int8_t"
        call = Call(kernel, types, given, tuple(reads), writes, writes.name, "")
        self.program.calls.append(call)

    def average(self, a: Buffer, b: Buffer, name: str) -> Buffer:
        y = self.buffer(name, COUNT)
        values = (None, None, 0, 0, -128, 127)  # it only saturates
        plain = Struct(RESCALING, dict(zip(RESCALING.fields, values, strict=True)))
        self.call(
            "add", [a, b], y, l=loops([COUNT], [1], [1]),
            a=a, zero_a=0, factor_a=1, b=b, zero_b=0, factor_b=1, shift=1, r=plain, y=y,
        )  # fmt: skip
        pairs = zip(self.codes[a], self.codes[b], strict=True)
        self.codes[y] = [(one + other + 1) >> 1 for one, other in pairs]
        return y

    def joined(self, parts: list[Buffer]) -> None:
        """Let parts in a row be a result."""
        y = self.buffer(f"y{len(self.program.outputs)}", COUNT * len(parts), "output")
        for number, x in enumerate(parts):
            self.call(
                "copy", [x], y, l=loops([COUNT], [1], y=[1]),
                begin_x=0, x=x, begin_y=number * COUNT, y=y,
            )  # fmt: skip
        self.codes[y] = [code for x in parts for code in self.codes[x]]
        self.program.outputs.append(y)

    def rounds(self, period: int, count: int) -> list[list[Buffer]]:
        """Add rounds of calls, and return their values, round by round."""
        ways = [
            [(self.draw.randrange(-1, 3), self.draw.randrange(period)) for _ in range(2)]
            for _ in range(period)
        ]
        start = [self.average(self.input, self.input, f"start{n}") for n in range(period)]
        found = [start, start]
        for number in range(count):
            own: list[Buffer] = []
            found.append(own)
            for place, way in enumerate(ways):
                operands = [
                    self.input if back < 0 or (back == 0 and of >= place) else found[-1 - back][of]
                    for back, of in way
                ]
                own.append(self.average(*operands, f"v{number}_{place}"))
        return found[2:]

    def check(self, folder: Path) -> Arena:
        arena = place_buffers(self.program)
        shown = [*self.program.inputs, *self.program.outputs]
        examples = [[torch.tensor(self.codes[buffer], dtype=torch.int8) for buffer in shown]]
        for name, text in Writer(self.program, "model", arena).files(examples).items():
            (folder / name).write_text(text)
        done = compiled(folder)
        count = sum(buffer.count for buffer in self.program.outputs)
        assert done.stdout == f"0 of {count} codes differ\n", (done.stdout, done.stderr)
        return arena


@pytest.mark.parametrize("seed", range(8))
def test_drawn_programs(seed: int, tmp_path: Path) -> None:
    drawn = Drawn(seed)
    rounds = drawn.rounds(period=1 + seed % 4, count=6)
    drawn.joined([own[-1] for own in rounds][:: drawn.draw.choice((1, -1))])
    drawn.joined(rounds[-1])
    arena = drawn.check(tmp_path)
    calls = len(drawn.program.calls)
    covered = sum(repeat.period * repeat.count for repeat in arena.repeats)
    assert covered > calls / 2  # the rounds, or all but the first two, which read the start twice


def test_slots(tmp_path: Path) -> None:
    """A value that the next two rounds read takes three slots, and not one for each round."""
    drawn = Drawn(0)
    a, b = (drawn.average(drawn.input, drawn.input, name) for name in ("a", "b"))
    for number in range(7):
        a, b = b, drawn.average(a, b, f"v{number}")
    drawn.joined([a, b])
    arena = drawn.check(tmp_path)
    assert [(repeat.period, repeat.count) for repeat in arena.repeats] == [(1, 7)]
    assert {ring.slots for ring in arena.rings.values()} == {3}
    assert "% 3)" in run_of(tmp_path)


def test_buffers_in_two_orders(tmp_path: Path) -> None:
    """One order of buffers is a loop, and others of the same ones cannot be."""
    drawn = Drawn(1)
    parts = [drawn.average(drawn.input, drawn.input, f"v{number}") for number in range(5)]
    drawn.joined(parts[::-1])
    drawn.joined([parts[n] for n in (0, 2, 1, 4, 3)])
    drawn.joined([parts[n] for n in (0, 1, 0, 1, 0)])
    arena = drawn.check(tmp_path)
    assert [(repeat.first, repeat.count) for repeat in arena.repeats] == [(0, 5), (5, 5)]
