"""Configurations in YAML files, and in dicts of the same structure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from ..errors import JitPassesError
from ..observers import Observer, observer_of, parameters_of
from .checks import OptionError
from .configuration import Configuration, Rule
from .located import Dumper, Located, from_file, from_python, from_yaml
from .options import TENSORS, LayerOptions, TensorOptions
from .selector import SELECTORS, Selector
from .stages import STAGE_KEYS, StageOptions

VERSION = 1
TOP_KEYS = ("version", "allow_unmatched", "stages", "global", "rules")
LAYER_KEYS = ("bits", *TENSORS, "keep_float", "mode")
TENSOR_KEYS = tuple(option.name for option in fields(TensorOptions) if option.compare)
RULE_KEYS = (*SELECTORS, "allow_unmatched", *LAYER_KEYS)
VALUE_KEYS = (*SELECTORS, "allow_unmatched", *TENSOR_KEYS)


def read_configuration(source: str | Path | Mapping[str, Any]) -> Configuration:
    """Read a configuration; docs/configuration.md describes the format.

    Args:
        source: the path of a YAML file, as `Path` or as text that ends in .yaml or .yml; YAML
            itself, as text of several lines; or a dict of the same structure.

    Raises:
        JitPassesError: it cannot be read, or something in it is not as it should be; the message
            says what, and with file, line and column where.
    """
    if isinstance(source, Mapping):
        return _configuration(from_python(source, "configuration"))
    if isinstance(source, Path):
        return _configuration(from_file(source))
    if not isinstance(source, str):
        raise JitPassesError(
            f"a configuration is a path, YAML or a dict, not {type(source).__name__}"
        )
    if "\n" in source:
        return _configuration(from_yaml(source, "configuration"))
    if source.endswith((".yaml", ".yml")):
        return _configuration(from_file(Path(source)))
    raise JitPassesError(
        f"{source[:60]!r} is neither a path that ends in .yaml or .yml nor YAML of several lines: "
        "pass a pathlib.Path for a file of another name"
    )


def write_configuration(
    configuration: Configuration, comment: str = "", comments: Mapping[int, str] | None = None
) -> str:
    """Return YAML that `read_configuration` makes an equal configuration of.

    Args:
        configuration: to be written.
        comment: lines to put in front of everything.
        comments: a line to put in front of a rule, by its number from 0 on.
    """
    data: dict[str, Any] = {"version": VERSION}
    if configuration.allow_unmatched:
        data["allow_unmatched"] = True
    if stages := configuration.stages.given():
        data["stages"] = stages
    if configuration.everywhere != LayerOptions():
        data["global"] = _layer_data(configuration.everywhere)
    parts = [f"# {line}\n" for line in comment.splitlines()] + [_yaml(data)]
    if configuration.rules:
        parts.append("rules:\n")
    for number, rule in enumerate(configuration.rules):
        if comments is not None and number in comments:
            parts.append(f"# {comments[number]}\n")
        parts.append(_yaml([_rule_data(rule)]))
    return "".join(parts)


def _yaml(data: Any) -> str:
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))


def _configuration(source: Located) -> Configuration:
    top = source.mapping("a configuration", TOP_KEYS)
    if "version" not in top:
        raise source.error(f"the version of the format is missing: add 'version: {VERSION}'")
    version = top["version"]
    if version.content != VERSION or isinstance(version.content, bool):
        raise version.error(
            f"version {VERSION} of the format can be read, not {version.describe()}"
        )
    everywhere, rules = top.get("global"), top.get("rules")
    layer, where = LayerOptions(), ""
    if everywhere is not None and not everywhere.empty:
        layer, where = _layer(everywhere, "global", LAYER_KEYS), source.key_place("global")
    stages = top.get("stages")
    listed = [] if rules is None or rules.empty else rules.items("rules")
    allow = top.get("allow_unmatched")
    return Configuration(
        layer,
        tuple(_rule(rule) for rule in listed),
        allow is not None and allow.boolean("allow_unmatched"),
        where,
        StageOptions() if stages is None or stages.empty else _stages(stages),
    )


def _stages(source: Located) -> StageOptions:
    entries = source.mapping("stages", STAGE_KEYS)
    options = {name: _given(name, entry) for name, entry in entries.items()}
    try:
        return StageOptions(**options, where={name: entries[name].place for name in options})
    except OptionError as error:
        raise entries[error.option].error(str(error)) from error


def _rule(source: Located) -> Rule:
    for_value = isinstance(source.content, dict) and "value" in source.content
    if for_value and not source.content.keys() & {*TENSORS, "keep_float", "mode"}:
        entries = source.mapping("a rule for a value", VALUE_KEYS)
        options: LayerOptions | TensorOptions = _tensor_options(source)
    else:  # of a value too: with keep_float or tensors, it is about the operator that computes it
        entries = _hinted(source, "a rule", RULE_KEYS)
        options = _layer(source, "a rule", RULE_KEYS)
    selectors = {name: entries[name].names(name) for name in SELECTORS if name in entries}
    allow = entries.get("allow_unmatched")
    try:
        selector = Selector(**selectors)  # type: ignore[arg-type]
        return Rule(
            selector,
            options,
            allow is not None and allow.boolean("allow_unmatched"),
            source.place,
        )
    except ValueError as error:
        at = entries.get(str(error).split(" ")[0], source)
        raise at.error(str(error)) from error


def _hinted(source: Located, what: str, known: tuple[str, ...]) -> dict[str, Located]:
    """Return the mapping; the error for a tensor's key says where that key goes."""
    if isinstance(source.content, dict):
        for key in source.content:
            if key in TENSOR_KEYS and key not in known:
                raise JitPassesError(
                    f"{source.key_place(key)}: '{key}' is an option of one tensor: put it under "
                    f"{', '.join(TENSORS[:-1])} or {TENSORS[-1]}"
                )
    return source.mapping(what, known)


def _layer(source: Located, what: str, known: tuple[str, ...]) -> LayerOptions:
    entries = _hinted(source, what, known)
    tensors = dict.fromkeys(TENSORS, TensorOptions())
    for name in TENSORS:
        if name in entries:
            entries[name].mapping(name, TENSOR_KEYS)
            tensors[name] = _tensor_options(entries[name])
    if "bits" in entries:
        bits = _checked(entries, {"bits": _given("bits", entries["bits"])}, source)
        for name in ("input", "weight", "output"):
            tensors[name] = bits.updated(tensors[name])
    keep, mode = entries.get("keep_float"), entries.get("mode")
    try:
        options = LayerOptions(
            **tensors,
            keep_float=None if keep is None else keep.boolean("keep_float"),
            mode=None if mode is None else mode.name("mode"),
        )
        options.check_mode()
    except OptionError as error:
        raise entries.get(error.option, source).error(str(error)) from error
    return options


def _tensor_options(source: Located) -> TensorOptions:
    entries: dict[str, Located] = source.content
    options = {name: _given(name, entries[name]) for name in TENSOR_KEYS if name in entries}
    if "calibration" in options:
        options["calibration"] = _calibration(entries["calibration"])
    return _checked(entries, options, source)


def _given(name: str, entry: Located) -> Any:
    if entry.empty:
        raise entry.error(f"{name} has no value: give one, or leave the key out")
    return entry.plain()


def _checked(
    entries: Mapping[str, Located], options: Mapping[str, Any], source: Located
) -> TensorOptions:
    """Return the options; an error has the place of the one that it is about."""
    try:
        return TensorOptions(**options, where={name: entries[name].place for name in options})
    except OptionError as error:
        raise entries.get(error.option, source).error(str(error)) from error


def _calibration(source: Located) -> Observer:
    if isinstance(source.content, Observer):
        return source.content
    entries: dict[str, Located] = {}
    method = source
    if isinstance(source.content, dict):
        entries = dict(source.content)
        if "method" not in entries:
            raise source.error("calibration has no method: add 'method: entropy', say")
        method = entries.pop("method")
    elif not isinstance(source.content, str):
        raise source.error(
            "calibration is a method's name, or a mapping of method and its parameters, "
            f"not {source.describe()}"
        )
    try:
        parameters = {name: entry.plain() for name, entry in entries.items()}
        return observer_of(method.name("method"), **parameters)
    except ValueError as error:
        raise JitPassesError(f"{_place_of(str(error), source, method)}: {error}") from error


def _place_of(message: str, source: Located, method: Located) -> str:
    """Return the place of the method or parameter that a message of `observer_of` names."""
    if message.startswith("no calibration"):
        return method.place
    names = [name for name in source.keys or () if name != "method"]
    quoted = [name for name in names if f"'{name}'" in message]
    named = quoted or [name for name in names if re.search(rf"\b{re.escape(name)}\b", message)]
    return source.key_place(named[0]) if named else source.place


def _rule_data(rule: Rule) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in SELECTORS:
        given = getattr(rule.selector, name)
        if given is not None:
            data[name] = list(given) if isinstance(given, tuple) else given
    if rule.allow_unmatched:
        data["allow_unmatched"] = True
    if isinstance(rule.options, TensorOptions):
        return {**data, **_tensor_data(rule.options)}
    return {**data, **_layer_data(rule.options)}


def _layer_data(options: LayerOptions) -> dict[str, Any]:
    data = {name: _tensor_data(getattr(options, name)) for name in TENSORS}
    data = {name: tensor for name, tensor in data.items() if tensor}
    for name in ("keep_float", "mode"):
        if (said := getattr(options, name)) is not None:
            data[name] = said
    return data


def _tensor_data(options: TensorOptions) -> dict[str, Any]:
    data = options.given()
    if options.range is not None:
        data["range"] = list(options.range)
    if options.calibration is not None:
        method, parameters = parameters_of(options.calibration)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in parameters.items()}
        data["calibration"] = {"method": method, **plain} if plain else method
    return data
