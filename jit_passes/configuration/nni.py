"""Reading NNI's lists of layers to quantize."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import JitPassesError, nearest
from ..graph.modules import only
from .checks import OptionError
from .configuration import Configuration, Rule
from .located import Located, from_python
from .options import FLOAT, LayerOptions, TensorOptions
from .selector import Selector

QUANT_TYPES = ("weight", "input", "output")
_OLD_KEYS = ("quant_types", "quant_bits", "op_types", "op_names", "quant_start_step", "exclude")
_NEW_KEYS = (
    "target_names", "target_settings", "quant_dtype", "quant_scheme", "granularity", "op_types",
    "op_names", "op_names_re", "exclude_op_names", "exclude_op_names_re", "fuse_names",
)  # fmt: skip
_SETTINGS = ("quant_dtype", "quant_scheme", "granularity")
_TARGETS = {
    "_input_": "input",
    "_input_0": "input",
    "weight": "weight",
    "bias": "bias",
    "_output_": "output",
    "_output_0": "output",
}
_FLOAT = TensorOptions(dtype=FLOAT)
_NOTHING = LayerOptions(input=_FLOAT, weight=_FLOAT, output=_FLOAT, keep_float=True)


def from_nni(
    config_list: Sequence[Mapping[str, Any]], allow_unmatched: bool = False
) -> Configuration:
    """Read the `config_list` of an NNI quantizer, in the form of 2.x or of 3.x.

    2.x: `[{"quant_types": ["weight"], "quant_bits": {"weight": 8}, "op_types": ["Conv2d"]}]`
    3.x: `[{"op_types": ["Conv2d"], "target_names": ["weight"], "quant_dtype": "int8"}]`

    Only listed tensors are quantized. Later entries win; a type that an entry does not list keeps
    its earlier setting. op_types are classes of modules, op_names their paths; an entry without
    either is about all. 32 bits are float.

    Args:
        config_list: the list.
        allow_unmatched: whether entries may match nothing, as NNI allows.

    Raises:
        JitPassesError: NNI's format or this package lacks a part of an entry; with its place.
    """
    source = from_python(config_list, "config_list")
    rules = tuple(_rule(entry) for entry in source.items("config_list"))
    return Configuration(_NOTHING, rules, allow_unmatched, "config_list")


def _rule(entry: Located) -> Rule:
    if not isinstance(entry.content, dict):
        raise entry.error(f"an entry is a mapping, not {entry.describe()}")
    if "exclude_op_types" in entry.content:
        raise JitPassesError(
            f"{entry.key_place('exclude_op_types')}: exclude_op_types is not supported: list the "
            "types that are meant in op_types"
        )
    new = entry.content.keys() & set(_NEW_KEYS) - set(_OLD_KEYS)
    entries = entry.mapping("an entry", _NEW_KEYS if new else _OLD_KEYS)
    options = _new_options(entry, entries) if new else _old_options(entry, entries)
    return Rule(_selector(entries, entry), options, where=entry.place)


def _selector(entries: Mapping[str, Located], entry: Located) -> Selector:
    types = entries["op_types"].names("op_types") if "op_types" in entries else None
    if types and "default" in types:
        raise entries["op_types"].error("'default' is not supported: list the types of modules")
    lists = {
        key: entries[key].names(key) if key in entries else ()
        for key in ("op_names", "op_names_re", "exclude_op_names", "exclude_op_names_re")
    }
    escaped = tuple(map(only, types)) if types else None
    names = lists["op_names"]
    if not any(lists[key] for key in lists if key != "op_names"):
        module = tuple(map(only, names)) or (None if types else "*")
        return Selector(module=module, module_type=escaped)
    # NNI's expressions fit from the beginning of a path on, but need not reach its end.
    wanted = [re.escape(name) for name in names] + [f"(?:{x}).*" for x in lists["op_names_re"]]
    unwanted = [re.escape(name) for name in lists["exclude_op_names"]]
    unwanted += [f"(?:{x}).*" for x in lists["exclude_op_names_re"]]
    expression = f"(?:{'|'.join(wanted)})" if wanted else ".*"
    if unwanted:
        expression = f"(?!(?:{'|'.join(unwanted)})$){expression}"
    try:
        return Selector(module_regex=expression, module_type=escaped)
    except ValueError as error:
        raise entry.error(str(error)) from error


def _old_options(entry: Located, entries: Mapping[str, Located]) -> LayerOptions:
    start = entries.get("quant_start_step")
    if start is not None and start.content != 0:
        raise start.error(
            "quant_start_step belongs to a schedule of training, and this configuration has none: "
            "leave it out, and begin to train with quantization at that step"
        )
    if "exclude" in entries and entries["exclude"].boolean("exclude"):
        return LayerOptions(keep_float=True)
    for key in ("quant_types", "quant_bits"):
        if key not in entries:
            raise entry.error(f"{key} is missing: list the quantized tensors, and their bits")
    listed = entries["quant_types"]
    types = listed.names("quant_types")
    for name in types:
        if name not in QUANT_TYPES:
            raise listed.error(f"no quant_type '{name}': {nearest(name, QUANT_TYPES)}")
    bits = entries["quant_bits"]
    if not isinstance(bits.content, dict):
        return _layer({name: _of_bits(bits) for name in types})
    per_type = bits.mapping("quant_bits", QUANT_TYPES)
    for name in types:
        if name not in per_type:
            raise bits.error(f"quant_bits has none for '{name}', which quant_types lists")
    for name in per_type:
        if name not in types:
            raise per_type[name].error(f"quant_bits has '{name}', which quant_types does not list")
    return _layer({name: _of_bits(per_type[name]) for name in types})


def _of_bits(source: Located) -> TensorOptions:
    if source.empty:
        raise source.error("quant_bits has no number: give one, or leave the tensor out")
    if source.content == 32:
        return _FLOAT
    return _checked(source, bits=source.content)


def _new_options(entry: Located, entries: Mapping[str, Located]) -> LayerOptions:
    settings: dict[str, Mapping[str, Located]] = {}
    if "target_settings" in entries:
        targets = entries["target_settings"].mapping("target_settings", tuple(_TARGETS))
        settings = {
            name: setting.mapping("a setting", _SETTINGS) for name, setting in targets.items()
        }
    named: tuple[str, ...] = tuple(settings)
    if "target_names" in entries:
        named = entries["target_names"].names("target_names")
    if not named:
        raise entry.error("target_names is missing: name the quantized tensors, ['weight'] say")
    tensors: dict[str, TensorOptions] = {}
    for name in dict.fromkeys((*named, *settings)):
        if name not in _TARGETS:
            raise entry.error(f"no target '{name}': {nearest(name, _TARGETS, 10)}")
        common = {key: entries[key] for key in _SETTINGS if key in entries}
        tensors[_TARGETS[name]] = _of_setting({**common, **settings.get(name, {})}, entry)
    return _layer(tensors)


def _of_setting(setting: Mapping[str, Located], entry: Located) -> TensorOptions:
    bits, dtype, at = 8, "int8", entry  # NNI's default
    if "quant_dtype" in setting:
        at = setting["quant_dtype"]
        word = at.name("quant_dtype")
        found = re.fullmatch(r"(u?)int(\d{1,3})", word)
        if not found:
            raise at.error(f"quant_dtype is int or uint and a number of bits, not {word!r}")
        bits = int(found[2])
        if found[1] and bits > 8:
            raise at.error(f"{word} cannot be asked for: unsigned codes have 8 bits at most")
        dtype = "uint8" if found[1] else "int8" if bits <= 8 else "int16"
    options: dict[str, Any] = {"bits": bits, "dtype": dtype}
    if "quant_scheme" in setting:
        at = setting["quant_scheme"]
        if at.content not in ("affine", "symmetric"):
            raise at.error(f"quant_scheme is affine or symmetric, not {at.describe()}")
        options["scheme"] = at.content
    if "granularity" in setting and setting["granularity"].content != "default":
        at = setting["granularity"]
        if at.content != "per_channel":
            raise at.error(f"granularity is default or per_channel, not {at.describe()}")
        options["channelwise"] = True
    return _checked(setting.get("quant_dtype", entry), **options)


def _layer(tensors: Mapping[str, TensorOptions]) -> LayerOptions:
    return LayerOptions(**tensors, keep_float=False, mode=None)


def _checked(source: Located, **options: Any) -> TensorOptions:
    try:
        return TensorOptions(**options)
    except OptionError as error:
        raise source.error(str(error)) from error
