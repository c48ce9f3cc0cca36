"""A program of calls on buffers, which is written as C."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch

from .functions import FUNCTIONS
from .structs import StructType

CTYPES = {
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
}
CODES = (torch.uint8, torch.int8, torch.int16)


_WORDS = frozenset(
    (
        *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else"),
        *("enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register"),
        *("restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch"),
        *("typedef", "union", "unsigned", "void", "volatile", "while"),
        *("main", "arena", "n", "i", "count", "wrong", "step"),  # of the text around them
    )
)


def identifier(name: str) -> str:
    """Return a name that C99 and the functions around it leave free."""
    found = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    return f"x_{found}" if not found or found[0].isdigit() or found in _WORDS else found


@dataclass(eq=False)
class Buffer:
    """Codes in memory, one after the other, the last axis innermost.

    Attributes:
        name: of the value, as reports have it.
        dtype: of the codes.
        shape: of the value that is computed into it.
        role: "input", "output" or "arena".
        scale: input units per step; 0 where no report knows it.
        zero_point: likewise.
        offset: in the arena, in bytes.
        base: the buffer that this one has in another shape.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    role: str = "arena"
    scale: float = 0.0
    zero_point: int = 0
    offset: int = 0
    base: Buffer | None = None

    @property
    def memory(self) -> Buffer:
        """The buffer whose memory it is."""
        return self.base or self

    def reshaped(self, shape: tuple[int, ...]) -> Buffer:
        """Return the same memory in another shape."""
        return Buffer(self.name, self.dtype, shape, base=self.memory)

    @property
    def count(self) -> int:
        """How many codes it holds."""
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.count * self.dtype.itemsize

    @property
    def ctype(self) -> str:
        """The type of a code in C."""
        return CTYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Constant:
    """An array of constants.

    Attributes:
        name: in C.
        ctype: of its numbers.
        numbers: whole ones; the last axis is innermost in C.
    """

    name: str
    ctype: str
    numbers: torch.Tensor


@dataclass(frozen=True, eq=False)
class Struct:
    """A struct that a call points to.

    Attributes:
        type: its type.
        values: of its fields, by name.
    """

    type: StructType
    values: Mapping[str, Argument]

    def __post_init__(self) -> None:
        assert list(self.values) == list(self.type.fields), self.type.name


def noted(known: dict[str, Constant], made: Constant) -> Constant:
    """Return a constant, or the known one of its name with equal numbers; note it if it is new.

    Where others have the name, it becomes `name_2`, `name_3` and so on.
    """
    name, number = made.name, 1
    while found := known.get(made.name):
        if found.ctype == made.ctype and torch.equal(found.numbers, made.numbers):
            return found  # the weight of another step of a recurrent layer, say
        number += 1
        made = replace(made, name=f"{name}_{number}")
    known[made.name] = made
    return made


Argument = int | tuple[int, ...] | Buffer | Constant | Struct | None  # None: a pointer to nothing


@dataclass(frozen=True)
class Call:
    """An operator of the program.

    Attributes:
        kernel: name of the function in `FUNCTIONS`.
        types: what stands for X, X2, W and Y in it.
        arguments: by the names of its function's parameters, in order.
        reads: the buffers that it reads.
        writes: the buffer that it writes.
        name: of its result, as reports have it.
        source: the line of the model's code; "" where the graph does not know.
    """

    kernel: str
    types: Mapping[str, str]
    arguments: Mapping[str, Argument]
    reads: tuple[Buffer, ...]
    writes: Buffer
    name: str
    source: str

    def __post_init__(self) -> None:
        assert list(self.arguments) == list(FUNCTIONS[self.kernel].parameters), self.kernel

    @property
    def constants(self) -> Iterator[Constant]:
        """The arrays of constants among its arguments."""
        for argument in self.arguments.values():
            parts = argument.values.values() if isinstance(argument, Struct) else (argument,)
            yield from (part for part in parts if isinstance(part, Constant))

    @property
    def function(self) -> str:
        """The name of its function in C: of the kernel, and of its types."""
        suffixes = [name.removesuffix("_t").replace("int", "") for name in self.types.values()]
        short = ["s" + text if text.isdigit() else text for text in suffixes]
        return "_".join([self.kernel, *short])


@dataclass
class Program:
    """Calls in order.

    Attributes:
        calls: these.
        inputs: buffers that the caller fills.
        outputs: buffers that the caller reads.
        rounding: of the target.
        accumulator_bits: of the target.
        codes: of each buffer, for the example that the program was read with.
        scratch: bytes that functions of CMSIS-NN need beside the arena.
    """

    rounding: str
    accumulator_bits: int
    calls: list[Call] = field(default_factory=list)
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    codes: dict[Buffer, torch.Tensor] = field(default_factory=dict)
    scratch: int = 0

    @property
    def constants(self) -> list[Constant]:
        """All arrays of constants, in the order of their use."""
        return list(dict.fromkeys(c for call in self.calls for c in call.constants))
