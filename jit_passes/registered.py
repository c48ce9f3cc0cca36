"""Classes that any package may add to: each is known by its name once it is defined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import ArgumentError, JitPassesError, nearest

if TYPE_CHECKING:
    from typing_extensions import Self

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("text", (str,)),
    "bool": ("True or False", (bool,)),
}


class UnknownError(ArgumentError):
    """No class has that name, or the class has no parameter of that name."""


class Registered:
    """Base of `Target`, `Observer` and `FakeQuantizer`.

    A subclass of these is a frozen dataclass. Its fields are its options, and defining it registers
    it, so another package needs nothing but an import. *Why not a decorator:* a forgotten decorator
    would show only when a model is loaded again, after the calibration.

    Attributes:
        name: how users, configurations and saved models call it. A class that gives none in its
            body has its path, `package.module:Class`.
        aliases: other names that users may give.
        registered: all classes of the kind, by name and alias.
        noun: the kind, for messages.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    registered: ClassVar[dict[str, Any]]
    noun: ClassVar[str]

    def __init_subclass__(
        cls, noun: str | None = None, abstract: bool = False, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if abstract:  # a base of other classes, never asked for by name
            return
        if noun is not None:
            cls.registered, cls.noun = {}, noun
            return
        if "name" not in vars(cls):
            cls.name = path_of(cls)
        for name in (cls.name, *vars(cls).get("aliases", ())):
            other = cls.registered.get(name, cls)
            if path_of(other) != path_of(cls):  # the same one is defined anew, in a notebook say
                raise JitPassesError(
                    f"two {cls.noun}s are called '{name}', {path_of(other)} and {path_of(cls)}: "
                    "give one of them another `name`"
                )
        for name in (cls.name, *vars(cls).get("aliases", ())):
            cls.registered[name] = cls

    @classmethod
    def named(cls) -> dict[str, type[Self]]:
        """Return the classes that have names of their own, by name."""
        found = cls.registered.items()
        return {name: kind for name, kind in sorted(found) if kind.name == name and ":" not in name}

    @classmethod
    def make(cls, name: str, /, **options: Any) -> Self:
        """Return the object that a name and options stand for.

        Raises:
            UnknownError: no class has that name, or the class does not have an option.
        """
        kind = cls.registered.get(name) if isinstance(name, str) else None
        if kind is None:
            known = [known for known in cls.registered if ":" not in known]
            raise UnknownError(f"no {cls.noun} {name!r}: {nearest(str(name), known, 20)}")
        declared = {field.name: field for field in fields(kind) if field.init}
        for option, value in options.items():
            if option not in declared:
                there = nearest(option, declared) if declared else "it has none"
                raise UnknownError(f"{name} has no parameter '{option}': {there}")
            if value is not declared[option].default:
                _check_type(f"{option} of {name}", declared[option].type, value)
        made: Self = kind(**{option: _frozen(value) for option, value in options.items()})
        return made

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the options that users may give, with their defaults."""
        return {f.name: f.default for f in fields(cls) if f.init}  # type: ignore[arg-type]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make an equal one."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]

    def record(self) -> dict[str, Any]:
        """Return its record in a saved model, for `from_record`."""
        return {"name": self.name, "class": path_of(type(self)), "options": self.options}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return an equal of the object that gave the record, perhaps in another process.

        Raises:
            JitPassesError: its class is not known in this process, or has other options here.
        """
        name, path = record["name"], record["class"]
        if name not in cls.registered:
            module, _, qualified = path.partition(":")
            why = (
                f"the model was made with the {cls.noun} '{name}', the class {qualified} of the "
                f"module {module}, which this process does not have"
            )
            raise JitPassesError(
                f"{why}: import {module} first", command=f"{why}: pass --plugin {module}"
            )
        return cls.make(name, **record["options"])


def path_of(kind: type) -> str:
    """Return the path of a class, `package.module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _check_type(what: str, annotation: Any, value: Any) -> None:
    word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if word not in _TYPES:
        return  # the class itself judges
    meaning, allowed = _TYPES[word]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise UnknownError(f"{what} is {meaning}, not {value!r}")


def _frozen(value: Any) -> Any:
    """Return a file's list as a tuple: fields of frozen dataclasses hold no lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
