"""Nested data from YAML or Python that knows where each part was written."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import JitPassesError, nearest

_STANDARD = ("str", "int", "float", "bool", "null", "seq", "map")
# Dates and the like are text here: a module may be called "2001-01-01".
_AS_TEXT = ("timestamp", "value", "merge")
_DEEPEST = 30


@dataclass(frozen=True)
class Located:
    """A part of the data.

    Attributes:
        place: where it is: `layers.yaml:12:5`, or `configuration.rules[2]` in Python's data.
        content: dict of `Located` by key, list of `Located`, or a scalar.
        keys: where the keys of a dict were written.
        text: what stands there, for scalars without quotes; else "".
    """

    place: str
    content: Any
    keys: Mapping[str, str] | None = None
    text: str = ""

    def error(self, message: str) -> JitPassesError:
        """Return an error that begins with the place."""
        return JitPassesError(f"{self.place}: {message}")

    def describe(self) -> str:
        """Return the content for a message: short, whatever it is."""
        if isinstance(self.content, dict):
            return "a mapping"
        if isinstance(self.content, list):
            return "a list"
        if self.content is None:
            return "nothing"
        what = repr(self.content)
        return what if len(what) <= 60 else what[:57] + "..."

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
        """Return text. Numbers without quotes are the text that stands there: modules have such."""
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

    def number(self) -> Any:
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
        return self.number()


def from_file(path: Path) -> Located:
    """Read a YAML file.

    Raises:
        JitPassesError: it cannot be read, or is not plain YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            line = error.object[: error.start].count(b"\n") + 1
            raise JitPassesError(
                f"{path}:{line}: this is not text in UTF-8: save the file in that encoding"
            ) from error
        folder = path.parent
        others = [p.name for p in folder.glob("*.y*ml")] if folder.is_dir() else []
        hint = f"; in its folder, {nearest(path.name, others)}" if others else ""
        raise JitPassesError(f"cannot read '{path}': {error.strerror}{hint}") from error
    return from_yaml(text, str(path))


def from_yaml(text: str, name: str) -> Located:
    """Read YAML: mappings, lists and scalars, no tags, each key once.

    Args:
        text: one document.
        name: what places begin with.

    Raises:
        JitPassesError: it is something else; with line and column.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise JitPassesError(f"{name}:1:1: the file is empty")
            return _from_node(node, name, loader, {})
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise JitPassesError(f"{place}: this is not YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1
        raise JitPassesError(f"{name}:{line}:{column}: this is not YAML: {error.reason}") from error
    except RecursionError as error:
        raise JitPassesError(f"{name}: it is nested too deeply") from error


def _from_node(
    node: yaml.Node, name: str, loader: yaml.SafeLoader, done: dict[int, Located | None]
) -> Located:
    """Read a node; `done` has what an alias may mean, None for what is being read."""
    place = _place(node, name)
    if id(node) in done:
        known = done[id(node)]
        if known is None:
            raise JitPassesError(f"{place}: the alias in it means what it is a part of")
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
            raise JitPassesError(f"{place}: {node.value!r} is no {tag}") from error
        found = Located(place, content, text=node.value if node.style is None else "")
    else:
        raise JitPassesError(f"{place}: the tag '{tag}' does not fit what it stands before")
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
    """Read dicts, lists and scalars.

    Args:
        data: what to read. Keys are text.
        place: what places begin with.
        depth: how deep in the whole this is.

    Raises:
        JitPassesError: a key is not text, or it is nested too deeply.
    """
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
