"""YAML files as trees whose branches know their line, so that errors can name it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from ..errors import JitPassesError

# libyaml's parser and writer are ten times faster. Both build plain data only, and refuse tags that
# ask for anything else.
_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_Dumper = cast(type[yaml.SafeDumper], getattr(yaml, "CSafeDumper", yaml.SafeDumper))

DEEPEST = 16


class Row(list[int]):
    """Numbers that are written on one line."""


class Writer(_Dumper):  # type: ignore[misc, valid-type]
    """Writes plain data, in the order given."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Writer.add_representer(
    Row,
    lambda dumper, row: dumper.represent_sequence("tag:yaml.org,2002:seq", row, flow_style=True),
)


def write(data: Any) -> str:
    """Return the text of one document."""
    text: str = yaml.dump(data, Dumper=Writer, sort_keys=False, width=1 << 30, allow_unicode=True)
    return text


@dataclass(frozen=True)
class Part:
    """A node of a file.

    Attributes:
        path: the file.
        node: as PyYAML composes it.
        owner: what messages call the entry that it belongs to; "" for none.
    """

    path: Path
    node: yaml.Node
    owner: str = ""

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return int(self.node.start_mark.line) + 1

    def fail(self, problem: str) -> NoReturn:
        """Raise an error that says where."""
        owner = f", value '{self.owner}'" if self.owner else ""
        raise JitPassesError(f"{self.path}, line {self.line}{owner}: {problem}")

    def called(self, *keys: str) -> Part:
        """Return the same with what one of these keys says as the owner."""
        pairs = self.node.value if isinstance(self.node, yaml.MappingNode) else []
        for key, node in pairs:
            if key.value in keys and isinstance(node, yaml.ScalarNode):
                return Part(self.path, self.node, str(node.value)[:200])
        return self

    def mapping(self, known: Sequence[str], what: str) -> dict[str, Part]:
        """Return the parts of a mapping whose keys are among the known ones."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"{what} is expected here, with the keys {', '.join(known)}")
        parts: dict[str, Part] = {}
        for key, node in self.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "..."
            part = Part(self.path, node, self.owner)
            if name not in known:
                part.fail(f"there is no key '{name[:60]}' in {what}: keys are {', '.join(known)}")
            if name in parts:
                part.fail(f"the key '{name}' is there twice")
            parts[name] = part
        return parts

    def items(self, what: str) -> list[Part]:
        """Return the parts of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"a list of {what} is expected here")
        return [Part(self.path, node, self.owner) for node in self.node.value]

    def plain(self) -> Any:
        """Return a scalar, or a list of scalars, as Python has it."""
        try:
            loader = _Loader("")
            return loader.construct_object(self.node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
            problem = getattr(error, "problem", None) or str(error)
            self.fail(f"plain data is expected here: {str(problem)[:200]}")

    def text(self) -> str:
        """Return a string."""
        value = self.plain()
        if not isinstance(value, str):
            self.fail(f"text is expected here, got {_brief(value)}: put it into quotes")
        return value

    def number(self) -> float:
        """Return a finite number within float32."""
        value = self.plain()
        if isinstance(value, str):  # YAML 1.1 takes 1e-5, without a point, as text
            try:
                value = float(value)
            except ValueError:
                self.fail(f"a number is expected here, got {_brief(value)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"a number is expected here, got {_brief(value)}")
        if not abs(value) < 3.4028235677973366e38:  # rounds to the largest float32; no NaN
            self.fail(f"a finite number within float32 is expected here, got {_brief(value)}")
        return float(value)

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from low to high."""
        value = self.plain()
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(f"a whole number from {low} to {high} is expected here, got {_brief(value)}")
        return value

    def flag(self) -> bool:
        """Return a truth value."""
        value = self.plain()
        if not isinstance(value, bool):
            self.fail(f"true or false is expected here, got {_brief(value)}")
        return value

    def counts(self, most: int, rounded: bool = False) -> tuple[int, ...]:
        """Return whole numbers that are not negative: a list, or text with spaces between them.

        Args:
            most: how many there may be.
            rounded: whether they may be written as any number, which is rounded.
        """
        value = self.plain()
        words = value.split() if isinstance(value, str) else value
        if isinstance(words, int) and not isinstance(words, bool):
            words = [words]
        if not isinstance(words, list):
            self.fail(f"numbers with spaces between them are expected here, got {_brief(value)}")
        if len(words) > most:
            self.fail(f"{len(words)} bins are too many: at most {most}")
        counts = [self._count(word, rounded) for word in words]
        if sum(counts) >= 1 << 63:
            self.fail(f"the counts sum up to {sum(counts)}, which is 2^63 or more")
        return tuple(counts)

    def _count(self, word: Any, rounded: bool) -> int:
        try:
            if (isinstance(word, str) and len(word) < 20) or type(word) is int:
                count = round(float(word)) if rounded else int(word)
            else:
                count = round(word) if rounded and isinstance(word, float) else -1
        except (ValueError, OverflowError):  # no number, NaN, infinite
            count = -1
        if count < 0:
            self.fail(f"counts are whole numbers that are not negative, got {_brief(word)}")
        return count


def read(path: str | os.PathLike[str]) -> list[Part]:
    """Return the documents of a file.

    Raises:
        JitPassesError: it is not YAML.
        OSError: it cannot be read.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        _check_depth(file, data)
        loader = _Loader(data)
        nodes = []
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                nodes.append(node)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error) or type(error).__name__
        raise JitPassesError(f"{file}{line}: not YAML: {problem}") from error
    return [Part(file, node) for node in nodes]


def _check_depth(file: Path, data: bytes) -> None:
    """Raise an error for what is nested so deeply that composing it would exhaust the stack."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise JitPassesError(
                f"{file}: lists and mappings are nested more than {DEEPEST} deep, which no profile "
                "needs"
            )


def _brief(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 1 << 200:
        return "a number of very many digits"  # printing it may itself be refused
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
