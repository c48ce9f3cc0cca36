"""The text of a program in C99."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import torch

from ...errors import without_folders
from .arena import Arena
from .cmsis_kernels import CMSIS, INCLUDE, MACRO, MACROS, ONCE
from .functions import FUNCTIONS
from .helpers import called, helpers
from .program import Argument, Buffer, Call, Constant, Program, Struct, identifier
from .repeats import Repeat
from .structs import RESCALING, STRUCTS

WIDTH = 100
_OWN = ("rescaling", "conv2d_shape", "pool_shape", "loops", "place", "count_of", "scratch")


class Writer:
    """Writes the files of a program.

    Args:
        program: its buffers are placed.
        name: of the function and the files.
        arena: the memory between operators.
    """

    def __init__(self, program: Program, name: str, arena: Arena) -> None:
        self.program, self.name, self.arena = program, name, arena
        self.upper = name.upper()
        taken = [call.function for call in program.calls] + [c.name for c in program.constants]
        self.names = _named(
            (*program.inputs, *program.outputs), (*taken, *_OWN, *helpers(program.rounding))
        )
        buffers = (b for call in program.calls for b in (call.writes, *call.reads))
        self.wide = any(buffer.dtype == torch.int16 for buffer in buffers)
        self.cmsis = any(call.kernel in CMSIS for call in program.calls)

    @property
    def declared(self) -> str:
        """The parameters of the function, inputs first."""
        constant = {"input": "const ", "output": ""}
        return ", ".join(
            f"{constant[buffer.role]}{buffer.ctype} *{name}" for buffer, name in self.names.items()
        )

    def files(self, examples: Sequence[Sequence[torch.Tensor]]) -> dict[str, str]:
        """Return the files by name.

        Args:
            examples: of each test vector the codes of the inputs, and then of the outputs.
        """
        return {
            f"{self.name}.h": self.header(),
            f"{self.name}.c": self.source(),
            f"{self.name}_vectors.h": self.vectors(examples),
            "main.c": self.main(),
            "Makefile": self.makefile(),
        }

    def makefile(self) -> str:
        """Return rules that compile the program and run the vectors."""
        text = _MAKEFILE
        if self.cmsis:
            once = self.program.rounding in ONCE
            text = _MAKEFILE_OF_CMSIS.replace("MACRO", f" -D{MACRO}" if once else "")
        return text.replace("NAME", self.name)

    def header(self) -> str:
        """Return the header: sizes, and the one function."""
        guard = f"{self.upper}_H"
        text = [f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", ""]
        text.append("/* Memory between operators, one array of the source. */")
        text.append(f"#define {self.upper}_ARENA_BYTES {self.arena.size}")
        if self.program.scratch:
            text.append("/* Memory that functions of CMSIS-NN need beside it. */")
            text.append(f"#define {self.upper}_SCRATCH_BYTES {self.program.scratch}")
        for buffer, name in self.names.items():
            shape = " x ".join(map(str, buffer.shape)) or "1"
            value = f"value = (code - {buffer.zero_point}) * {buffer.scale!r}"
            text += ["", f"/* '{_quoted(buffer.name)}', {buffer.role}: {shape} codes; {value} */"]
            text.append(f"#define {self.upper}_{name.upper()}_COUNT {buffer.count}")
        text += ["", f"void {self.name}_run({self.declared});", "", f"#endif /* {guard} */", ""]
        return "\n".join(text)

    def source(self) -> str:
        """Return the source."""
        program = self.program
        text = [f'#include "{self.name}.h"', ""]
        if self.cmsis:
            text += [INCLUDE, MACROS[program.rounding]]
        text.append(RESCALING.text)
        kernels = dict.fromkeys(call.kernel for call in program.calls)
        structs = dict.fromkeys(s.name for name in kernels for s in FUNCTIONS[name].structs)
        structs.pop(RESCALING.name, None)  # which stands in front of its functions
        text += called(program.rounding, (FUNCTIONS[name].body for name in kernels))
        text += [STRUCTS[name].text for name in structs]
        if program.scratch:
            text.append(f"static int32_t scratch[{self.upper}_SCRATCH_BYTES / 4];\n")
        functions = {call.function: call for call in program.calls}
        text += [_function(call, program.accumulator_bits) for call in functions.values()]
        text += [_array(constant) for constant in program.constants]
        if self.arena.size:
            ctype, size = ("int16_t", " / 2") if self.wide else ("uint8_t", "")
            text.append(f"static {ctype} arena[{self.upper}_ARENA_BYTES{size}];\n")
        text += [f"void {self.name}_run({self.declared})", "{"]
        done = 0
        for repeat in self.arena.repeats:
            for call in program.calls[done : repeat.first]:
                text += self._call([call], "    ")
            text += self._loop(repeat)
            done = repeat.end
        for call in program.calls[done:]:
            text += self._call([call], "    ")
        return "\n".join((*text, "}", ""))

    def _loop(self, repeat: Repeat) -> Iterator[str]:
        yield f"    /* {repeat.count} rounds, with the names of the first one. */"
        yield f"    for (int32_t step = 0; step < {repeat.count}; ++step) {{"
        for column in repeat.columns(self.program.calls):
            yield from self._call(column, " " * 8)
        yield "    }"

    def _call(self, column: Sequence[Call], indent: str) -> Iterator[str]:
        """Yield the lines of a call, given it in all rounds of its loop."""
        call, second = column[0], column[min(1, len(column) - 1)]
        source = without_folders(call.source)
        where = f" ({_quoted(source)})" if source else ""
        yield f"{indent}/* {_quoted(call.name)}{where} */"
        pairs = zip(call.arguments.values(), second.arguments.values(), strict=True)
        joined = ", ".join(self._argument(*pair) for pair in pairs)
        yield from _wrapped(f"{call.function}({joined});", indent, indent + "    ")

    def _argument(self, argument: Argument, later: Argument) -> str:
        """Return the text of an argument, given it in the first round and in the second."""
        if argument is None:
            return "0"
        if isinstance(argument, int):
            assert isinstance(later, int)
            return _grown(argument, later - argument)
        if isinstance(argument, tuple):
            return f"(const int32_t[]){_braces(argument)}"
        if isinstance(argument, Struct):
            fields = _braces(map(self._field, argument.values.values()))
            return f"&(const {argument.type.name}){fields}"
        if isinstance(argument, Constant):
            return argument.name
        if argument.role != "arena":
            return self.names[argument]
        assert isinstance(later, Buffer)
        place = f"arena + {self._place(argument, later)}"
        own = "int16_t" if self.wide else "uint8_t"
        return place if argument.ctype == own else f"({argument.ctype} *)({place})"

    def _place(self, buffer: Buffer, later: Buffer) -> str:
        """Return where a buffer is in the arena."""
        unit = 2 if self.wide else 1
        ring = self.arena.rings.get(buffer)
        if buffer is later or ring is None or ring.slots in (1, len(ring.buffers)):
            return _grown(buffer.offset // unit, (later.offset - buffer.offset) // unit)
        at, then = (ring.buffers.index(b) for b in (buffer, later))
        begin = (buffer.offset - at % ring.slots * ring.step) // unit
        return f"{begin} + {ring.step // unit} * (({_grown(at, then - at)}) % {ring.slots})"

    def _field(self, value: Argument) -> str:
        return _braces(value) if isinstance(value, tuple) else self._argument(value, value)

    def vectors(self, examples: Sequence[Sequence[torch.Tensor]]) -> str:
        """Return the test vectors: codes of inputs and of outputs, one array for each."""
        text = ["#include <stdint.h>", "", f"#define {self.upper}_VECTORS {len(examples)}", ""]
        for position, (buffer, name) in enumerate(self.names.items()):
            rows = [example[position].flatten().tolist() for example in examples]
            head = f"static const {buffer.ctype} {name}_vectors"
            text.append(f"{head}[{len(rows)}][{max(buffer.count, 1)}] = {{")
            for row in rows:
                text += ["    {", *_table(row, " " * 8), "    },"]
            text += ["};", ""]
        return "\n".join(text)

    def main(self) -> str:
        """Return a program that runs the test vectors, and says which number differs first."""
        given = [f"{self.names[buffer]}_vectors[n]" for buffer in self.program.inputs]
        results = [self.names[buffer] for buffer in self.program.outputs]
        text = ["#include <stdio.h>", "", f'#include "{self.name}.h"']
        text += [f'#include "{self.name}_vectors.h"', ""]
        for buffer, own in zip(self.program.outputs, results, strict=True):
            text.append(f"static {buffer.ctype} {own}[{max(buffer.count, 1)}];")
        text += ["", "int main(void)", "{", "    long wrong = 0, count = 0;"]
        text.append(f"    for (int n = 0; n < {self.upper}_VECTORS; ++n) {{")
        text.append(f"        {self.name}_run({', '.join((*given, *results))});")
        for buffer, own in zip(self.program.outputs, results, strict=True):
            text.append(_COMPARISON.replace("COUNT", str(buffer.count)).replace("OWN", own))
        return "\n".join((*text, _END))


_COMPARISON = """\
        for (int i = 0; i < COUNT; ++i) {
            ++count;
            if (OWN[i] != OWN_vectors[n][i] && wrong++ == 0) {
                printf("vector %d, OWN[%d]: %d, expected %d\\n", n, i,
                       (int)OWN[i], (int)OWN_vectors[n][i]);
            }
        }"""
_END = """\
    }
    printf("%ld of %ld codes differ\\n", wrong, count);
    return wrong != 0;
}
"""
_MAKEFILE = """\
CFLAGS = -std=c99 -O2 -Wall -Wextra -pedantic -Wconversion

test: NAME_test
\t./NAME_test

NAME_test: main.c NAME.c NAME.h NAME_vectors.h
\t$(CC) $(CFLAGS) -o $@ main.c NAME.c

clean:
\trm -f NAME_test

.PHONY: test clean
"""


_MAKEFILE_OF_CMSIS = """\
# Where CMSIS-NN's sources are: make CMSIS_NN=/path/to/CMSIS-NN
CMSIS_NN ?= CMSIS-NN
CFLAGS = -std=c99 -O2 -Wall -Wextra -pedantic -Wconversion
CPPFLAGS =MACRO -isystem $(CMSIS_NN)/Include
SOURCES = $(filter-out %_f16.c %_f32.c %_flt.c,$(wildcard $(CMSIS_NN)/Source/*/*.c))

test: NAME_test
\t./NAME_test

NAME_test: main.c NAME.c NAME.h NAME_vectors.h cmsis_nn.a
\t$(CC) $(CFLAGS) $(CPPFLAGS) -o $@ main.c NAME.c cmsis_nn.a

cmsis_nn.a:
\trm -rf cmsis_nn && mkdir cmsis_nn
\tcd cmsis_nn && $(CC) -O2 $(CPPFLAGS) -c $(abspath $(SOURCES))
\t$(AR) rcs $@ cmsis_nn/*.o

clean:
\trm -rf NAME_test cmsis_nn.a cmsis_nn

.PHONY: test clean
"""


def _named(buffers: Sequence[Buffer], taken: Iterable[str]) -> dict[Buffer, str]:
    """Return names of parameters, each another one."""
    found: dict[Buffer, str] = {}
    used = set(taken)
    for buffer in buffers:
        base = name = identifier(buffer.name)
        number = 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        found[buffer] = name
    return found


def _function(call: Call, accumulator_bits: int) -> str:
    types = {"SUM": "int64_t" if accumulator_bits > 32 else "int32_t", "NAME": call.function}
    types |= call.types
    types.setdefault("X2", types.get("X", ""))
    pattern = re.compile(rf"\b({'|'.join(types)})\b")
    kernel = FUNCTIONS[call.kernel]
    head = "static void NAME("
    lines = _wrapped(
        f"{head}{', '.join(kernel.head)})", "", " " * len(f"static void {call.function}(")
    )
    text = "\n".join((*lines, kernel.body))
    return pattern.sub(lambda found: types[found.group()], text)


def _grown(number: int, by: int) -> str:
    """Return a number that grows from round to round, or shrinks."""
    if by == 0:
        return str(number)
    times = "step" if abs(by) == 1 else f"{abs(by)} * step"
    return f"{number} - {times}" if by < 0 else f"{number} + {times}" if number else times


def _braces(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _array(constant: Constant) -> str:
    numbers = constant.numbers.flatten().tolist() or [0]
    head = f"static const {constant.ctype} {constant.name}[{len(numbers)}] = {{"
    return "\n".join([head, *_table(numbers, "    "), "};\n"])


def _table(numbers: Sequence[int], indent: str) -> Iterator[str]:
    """Yield lines of numbers, each with as many as fit if all are the widest."""
    texts = repr(list(numbers))[1:-1].split(", ")  # several times faster than one by one
    if min(numbers, default=0) == -(2**31):  # C has no literal for it
        texts = ["INT32_MIN" if text == str(-(2**31)) else text for text in texts]
    count = (WIDTH - len(indent)) // (max(map(len, texts), default=1) + 2)
    for start in range(0, len(texts), count):
        comma = "," * (start + count < len(texts))
        yield f"{indent}{', '.join(texts[start : start + count])}{comma}"


def _wrapped(text: str, first: str, later: str) -> Iterator[str]:
    """Break a text behind commas."""
    line = first
    for word in re.split(r"(?<=,) ", text):
        if len(line) + len(word) >= WIDTH and line.strip():
            yield line.rstrip()
            line = later
        line += word + " "
    yield line.rstrip()


def _quoted(name: str) -> str:
    return name.replace("*/", "* /")
