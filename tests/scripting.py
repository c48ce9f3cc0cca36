"""Scripting that does not repeat, for each module, work whose result depends on the class alone.

`torch.jit.script` reads and parses the source of each method, and goes over all names of each
submodule three times, also where a module of an equal type was compiled before.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

Lines = tuple[list[str], int]
# Types of many attributes of a class. PyTorch looks at each attribute for a mark, and only
# functions in Python have marks.
PLAIN = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def script_faster() -> None:
    """Change scripting in this process."""
    read_source_once()
    parse_once()
    look_for_overloads_where_there_are()
    look_for_properties_where_there_are()
    look_at_marked_names()


def read_source_once() -> None:
    """Keep the source of each class and function that is scripted.

    For a class, Python parses the whole file anew, and TorchScript asks for the class of each
    module several times.
    """
    read = inspect.getsourcelines
    known: WeakKeyDictionary[Any, Lines] = WeakKeyDictionary()

    def lines_of(thing: Any) -> Lines:
        if inspect.ismethod(thing):
            thing = thing.__func__
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            return read(thing)
        if thing not in known:
            known[thing] = read(thing)
        lines, first = known[thing]
        return list(lines), first  # TorchScript edits the list

    inspect.getsourcelines = lines_of


def parse_once() -> None:
    """Keep the syntax tree of each function, which scripting does not change."""
    from torch.jit import _recursive, _script, frontend

    parse: Callable[..., Any] = frontend.get_jit_def
    known: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def definition_of(
        fn: Any, def_name: str, self_name: str | None = None, is_classmethod: bool = False
    ) -> Any:
        function = getattr(fn, "__func__", fn)
        if not inspect.isfunction(function):
            return parse(fn, def_name, self_name, is_classmethod)
        trees = known.setdefault(function, {})
        # A function that is marked later has another body.
        key = def_name, self_name, is_classmethod, frontend.should_drop(fn)
        if key not in trees:
            trees[key] = parse(fn, def_name, self_name, is_classmethod)
        return trees[key]

    for module in (frontend, _recursive, _script):
        module.get_jit_def = definition_of


def look_for_overloads_where_there_are() -> None:
    """Pass over modules whose class has no overloaded method, which are nearly all."""
    from torch import _jit_internal
    from torch.jit import _recursive

    find: Callable[[Any, set[str]], dict[Any, Any]] = _recursive.get_overload_annotations
    known: dict[str, dict[str, Any]] = _jit_internal._overloaded_methods  # by method, then class

    def overloads_of(module: Any, ignored: set[str]) -> dict[Any, Any]:
        name = type(module).__name__
        return find(module, ignored) if any(name in classes for classes in known.values()) else {}

    _recursive.get_overload_annotations = overloads_of


def look_for_properties_where_there_are() -> None:
    """Pass over modules whose class has no property."""
    from torch.jit import _recursive

    find: Callable[[Any], list[Any]] = _recursive.get_property_stubs

    def stubs_of(module: Any) -> list[Any]:
        values = (value for kind in type(module).__mro__ for value in vars(kind).values())
        return find(module) if any(isinstance(value, property) for value in values) else []

    _recursive.get_property_stubs = stubs_of


def is_plain(value: Any) -> bool:
    """Whether an attribute of a class is a method that scripting has nothing to do with."""
    value = getattr(value, "__func__", value)  # of static and class methods
    if inspect.isfunction(value):
        return not hasattr(value, "_torchscript_modifier")
    return isinstance(value, PLAIN)


def look_at_marked_names() -> None:
    """Let scripting go over those names of a module that it may do something about.

    Scripting looks for methods that are exported, ignored, or copied to the scripted module. Most
    of a hundred and fifty names are methods of `nn.Module`, without a mark.
    """
    from torch.jit import _recursive

    known: WeakKeyDictionary[type, list[str]] = WeakKeyDictionary()

    def own(kind: type) -> list[str]:
        """The names that a class adds to those of its bases, or has anew."""
        if kind not in known:
            known[kind] = [name for name, value in vars(kind).items() if not is_plain(value)]
        return known[kind]

    def names_of(thing: Any) -> list[str]:
        if not isinstance(thing, nn.Module) or isinstance(thing, torch.jit.ScriptModule):
            return dir(thing)
        ignored = getattr(thing, "__jit_ignored_attributes__", ())
        names = itertools.chain.from_iterable(map(own, type(thing).__mro__))
        return sorted({*names, *thing.__dict__, *ignored})

    _recursive.dir = names_of
