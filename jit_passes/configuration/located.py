"""Nested data from YAML, JSON or Python that knows where each part was written."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from ..errors import InputError, JitPassesError, nearest

_STANDARD = ("str", "int", "float", "bool", "null", "seq", "map")
# Dates and the like are text here: a module may be called "2001-01-01".
_AS_TEXT = ("timestamp", "value", "merge")
_DEEPEST = 30
# libyaml's parser where PyYAML is built with it: five times as fast. Both build plain data only.
_Loader = cast(type[yaml.SafeLoader], getattr(yaml, "CSafeLoader", yaml.SafeLoader))
Dumper = cast(type[yaml.SafeDumper], getattr(yaml, "CSafeDumper", yaml.SafeDumper))


@dataclass(frozen=True)
class Located:
    """A part of the data.

    Attributes:
        place: where it is: `layers.yaml:12:5`, or `configuration.rules[2]` in Python's data.
        content: dict of `Located` by key, list of `Located`, or a scalar.
        keys: where the keys of a dict were written.
        text: the text as written, for scalars without quotes; else "".
    """

    place: str
    content: Any
    keys: Mapping[str, str] | None = None
    text: str = ""

    def error(self, message: str) -> JitPassesError:
        """Return an error that begins with the place."""
        return JitPassesError(f"{self.place}: {message}")

    def describe(self) -> str:
        """Return the content for a message, cut to a short text."""
        if isinstance(self.content, dict):
            return "a mapping"
        if isinstance(self.content, list):
            return "a list"
        if self.content is None:
            return "nothing"
        return brief(self.content)

    @property
    def empty(self) -> bool:
        """Whether nothing, or null, stands there."""
        return self.content is None

    def mapping(self, what: str, known: tuple[str, ...]) -> dict[str, Located]:
        """Return the values of a mapping that has known keys only."""
        if not isinstance(self.content, dict):
            raise self.error(f"{what} is a mapping, not {self.describe()}")
        for key in self.content:
            if key not in known:
                raise JitPassesError(
                    f"{self.key_place(key)}: {what} has no key '{key}': {nearest(key, known, 20)}"
                )
        return self.content

    def complete(
        self, what: str, known: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Located]:
        """Return the values of a mapping that has all of these keys, but for optional ones."""
        found = self.mapping(what, known)
        self.require(key for key in known if key not in optional)
        return found

    def require(self, keys: Iterable[str]) -> None:
        """Raise an error for a mapping that lacks a key."""
        for key in keys:
            if not isinstance(self.content, dict) or key not in self.content:
                raise self.error(f"the key '{key}' is missing")

    def key_place(self, key: str) -> str:
        """Return where a key of a mapping was written."""
        return (self.keys or {}).get(key, self.place)

    def items(self, what: str) -> list[Located]:
        """Return the elements of a list."""
        if not isinstance(self.content, list):
            raise self.error(f"{what} is a list, not {self.describe()}")
        return self.content

    def boolean(self, what: str) -> bool:
        """Return true or false."""
        if not isinstance(self.content, bool):
            raise self.error(f"{what} is true or false, not {self.describe()}")
        return self.content

    def name(self, what: str) -> str:
        """Return text. Numbers without quotes stay as written: modules have numbers as names."""
        if isinstance(self.content, str):
            return self.content
        if self.text and not self.empty:
            return self.text
        raise self.error(f"{what} is text, not {self.describe()}")

    def names(self, what: str) -> tuple[str, ...]:
        """Return one text or several."""
        if isinstance(self.content, list):
            if not self.content:
                raise self.error(f"{what} is text or a list of texts, and this one is empty")
            return tuple(element.name(what) for element in self.content)
        return (self.name(what),)

    def whole(self, what: str, low: float = -math.inf, high: float = math.inf) -> int:
        """Return a whole number from low to high."""
        value = self.content
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            ends = f" from {low} to {high}" if math.isfinite(low) else ""
            raise self.error(f"{what} is a whole number{ends}, not {self.describe()}")
        return value

    def number(self, what: str, below: float = math.inf) -> float:
        """Return a finite number whose magnitude is below the given one."""
        value = self.scalar()
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < below:
            within = "" if below == math.inf else f" of magnitude below {below:g}"
            raise self.error(f"{what} is a finite number{within}, not {self.describe()}")
        return float(value)

    def scalar(self) -> Any:
        """Return the scalar, as a number if it is `1e-3`, which YAML 1.1 takes for text."""
        if isinstance(self.content, str) and self.text:
            try:
                number = float(self.text)
            except ValueError:
                return self.content
            return number if math.isfinite(number) else self.content
        return self.content

    def plain(self) -> Any:
        """Return the data without places."""
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        if isinstance(self.content, list):
            return [element.plain() for element in self.content]
        return self.scalar()


def from_file(path: Path) -> Located:
    """Read a YAML file."""
    try:
        return from_yaml(path.read_bytes(), str(path))
    except OSError as error:
        folder = path.parent
        others = [p.name for p in folder.glob("*.y*ml")] if folder.is_dir() else []
        hint = f"; in its folder, {nearest(path.name, others)}" if others else ""
        raise InputError(f"cannot read '{path}': {error.strerror}{hint}") from error


def from_yaml(data: str | bytes, name: str) -> Located:
    """Read one document of YAML; see `documents`."""
    found = documents(data, name)
    if not found:
        raise JitPassesError(f"{name}:1:1: the file is empty")
    if len(found) > 1:
        raise found[1].error("one document is expected, and this is another one")
    return found[0]


def documents(data: str | bytes, name: str, hint: str = "") -> list[Located]:
    """Read YAML: mappings, lists and scalars, no tags, each key once.

    Args:
        data: the text; bytes of a file.
        name: of the file, for messages.
        hint: the end of the message about a file that is no text.
    """
    text = data if isinstance(data, str) else _decoded(data, name, hint)
    try:
        _check_depth(text, name)
        loader = _Loader(text)
        found = []
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                found.append(_from_node(node, name, loader, {}))
        return found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise JitPassesError(f"{place}: this is not YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes.
        bytes_before = text.encode()[: error.position].decode(errors="ignore")
        before = text[: error.position] if _Loader is yaml.SafeLoader else bytes_before
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise JitPassesError(f"{name}:{line}:{column}: this is not YAML: {error.reason}") from error


_BINARY = {
    b"PK\x03\x04": "a zip archive, as .npz and .pt files are",
    b"\x93NUMPY": "an array of NumPy",
    b"\x80": "a pickle",
    b"\x1f\x8b": "a compressed file",
}


def _decoded(data: bytes, name: str, hint: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        for start, kind in _BINARY.items():
            if data.startswith(start):
                raise JitPassesError(f"{name}: this is {kind}, and no YAML{hint}") from error
        if b"\0" in data:
            raise JitPassesError(f"{name}: this is binary, and no YAML{hint}") from error
        line = data[: error.start].count(b"\n") + 1
        raise JitPassesError(
            f"{name}:{line}: this is not text in UTF-8: save the file in that encoding"
        ) from error


def _check_depth(text: str, name: str) -> None:
    """Raise an error for nesting that would exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise JitPassesError(f"{name}: it is nested too deeply")


def brief(value: Any) -> str:
    """Return a short text for any value, for messages."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print very long numbers
        return "a number of very many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _from_node(
    node: yaml.Node, name: str, loader: yaml.SafeLoader, done: dict[int, Located | None]
) -> Located:
    """Read a node; `done` has the anchors' values, None for nodes that are being read."""
    place = _place(node, name)
    if id(node) in done:
        known = done[id(node)]
        if known is None:
            raise JitPassesError(f"{place}: the alias in it stands for the part that holds it")
        return known
    done[id(node)] = None
    tag = node.tag.removeprefix("tag:yaml.org,2002:")
    if tag not in _STANDARD + _AS_TEXT:
        raise JitPassesError(f"{place}: the tag '{tag}' is not allowed: only plain data is read")
    if isinstance(node, yaml.MappingNode) and tag == "map":
        found = _from_mapping(node, name, loader, done)
    elif isinstance(node, yaml.SequenceNode) and tag == "seq":
        elements = [_from_node(element, name, loader, done) for element in node.value]
        found = Located(place, elements)
    elif isinstance(node, yaml.ScalarNode) and tag not in ("map", "seq"):
        try:
            content = node.value if tag in _AS_TEXT else loader.construct_object(node)
        except (ValueError, KeyError, IndexError) as error:
            raise JitPassesError(f"{place}: {brief(node.value)} is no {tag}") from error
        found = Located(place, content, text="" if node.style else node.value)
    else:
        raise JitPassesError(f"{place}: the tag '{tag}' does not fit the data behind it")
    done[id(node)] = found
    return found


def _from_mapping(
    node: yaml.MappingNode, name: str, loader: yaml.SafeLoader, done: dict[int, Located | None]
) -> Located:
    content: dict[str, Located] = {}
    keys: dict[str, str] = {}
    for key_node, value_node in node.value:
        place = _place(key_node, name)
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise JitPassesError(f"{place}: '<<' is not supported: write the keys out, or a rule")
        key = _from_node(key_node, name, loader, done).name("a key")
        if key in content:
            raise JitPassesError(f"{place}: the key '{key}' is there twice, first at {keys[key]}")
        keys[key] = place
        content[key] = _from_node(value_node, name, loader, done)
    return Located(_place(node, name), content, keys)


def _place(node: yaml.Node, name: str) -> str:
    mark = node.start_mark
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def from_python(data: Any, place: str, depth: int = 0) -> Located:
    """Read dicts, lists and scalars."""
    if depth > _DEEPEST:
        raise JitPassesError(f"{place}: it is nested too deeply")
    if isinstance(data, Mapping):
        content = {}
        for key, value in data.items():
            if not isinstance(key, str):
                raise JitPassesError(f"{place}: a key is text, not {key!r}")
            content[key] = from_python(value, f"{place}.{key}", depth + 1)
        return Located(place, content, {key: f"{place}.{key}" for key in content})
    if isinstance(data, list | tuple):
        elements = [from_python(x, f"{place}[{i}]", depth + 1) for i, x in enumerate(data)]
        return Located(place, elements)
    whole = isinstance(data, numbers.Integral) and not isinstance(data, bool)
    return Located(place, data, text=str(data) if whole else "")
