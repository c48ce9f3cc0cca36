"""The file of a profile: YAML that can be read and edited."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from ..configuration.located import Dumper, Located, documents
from ..errors import JitPassesError, count_of
from ..files import read_bytes
from .value import EXPONENTS, MOST_BINS, ValueProfile

VERSION = 1
KEYS = ("jit_passes", "form", "graph", "weights", "bins", "shards", "length", "values")
# Files of versions that did not hash weights have no hash, and files of all data no shards. The
# length shows whether a file was cut; a file that is written by hand may leave it out.
OPTIONAL = ("weights", "shards", "length")
VALUE_KEYS = (
    *("name", "weight", "finite", "min", "max", "ranks"),
    *("count", "exponent", "offset", "histogram"),
)
HEADER = """\
# Ranges and histograms of a model's values: jit_passes.Profile.load("{name}").
# Bin i of a histogram counts the x with floor(x / 2^exponent) = offset + i; empty bins at both ends
# are left out. min and max may be edited: numbers outside then count at the ends. A value with
# fewer than 1024 numbers gets headroom beyond them: "range:" in a configuration is exact.
"""
BEYOND_FLOAT32 = 3.4028235677973366e38  # numbers below it round to the largest float32 at most


class Row(list[int]):
    """Numbers that are written on one line."""


class _Writer(Dumper):  # type: ignore[misc, valid-type]
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Writer.add_representer(
    Row,
    lambda dumper, row: dumper.represent_sequence("tag:yaml.org,2002:seq", row, flow_style=True),
)


HINT = ": a profile is the YAML file that profiling writes; samples are data, not a profile"


def write(
    name: str, version: str, graph: str, weights: str, bins: int, shards: Iterable[str],
    values: Iterable[ValueProfile],
) -> str:  # fmt: skip
    """Return the text of the file, whose name its first line says."""
    entries = [_entry(value) for value in values]
    fields = (version, VERSION, graph, weights, bins, list(shards), len(entries), entries)
    data = dict(zip(KEYS, fields, strict=True))
    if not data["shards"]:
        del data["shards"]
    text = yaml.dump(data, Dumper=_Writer, sort_keys=False, width=1 << 30, allow_unicode=True)
    return HEADER.format(name=name) + str(text)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a `Profile`."""
    parts = documents(read_bytes(path), str(path), HINT)
    if len(parts) != 1:
        hint = "; Profile.from_glow reads the files of Glow" if len(parts) == 3 else ""
        raise JitPassesError(f"{path}: one document is expected, got {len(parts)}{hint}")
    found = parts[0].complete("a profile", KEYS, OPTIONAL)
    form = found["form"].whole("form")
    if form != VERSION:
        raise found["form"].error(f"the form is {form}, and this version reads {VERSION}")
    bins = found["bins"].whole("bins", 2, MOST_BINS)
    by_hand = "length" not in found
    values = read_values(found["values"], "name", lambda entry: _read_value(entry, bins, by_hand))
    length = len(values) if by_hand else found["length"].whole("length")
    if length != len(values):
        count = count_of(len(values), "value")
        raise found["length"].error(f"the length is {length}, and there are {count}: it is cut")
    places = [entry.place for entry in found["values"].content]
    return {
        "version": found["jit_passes"].name("jit_passes"),
        "graph": found["graph"].name("graph"),
        "weights": found["weights"].name("weights") if "weights" in found else "",
        "bins": bins,
        "shards": _read_shards(found["shards"]) if "shards" in found else (),
        "values": values,
        "lines": dict(zip(values, places, strict=True)),
    }


def _read_shards(source: Located) -> tuple[str, ...]:
    shards = [item.name("a shard") for item in source.items("shards")]
    for shard in shards:
        if shard_of(shard) is None:
            raise source.error(f"a shard is written 3/8, not '{shard}'")
    return tuple(shards)


def shard_of(text: str) -> tuple[int, int] | None:
    """Return the 3 and the 8 of `3/8`; None for other texts."""
    found = re.fullmatch("([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
    if found is None or int(found[1]) > int(found[2]):
        return None
    return int(found[1]), int(found[2])


def _entry(value: ValueProfile) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": value.name}
    if value.weight:
        entry["weight"] = True
    if not value.finite:
        entry["finite"] = False
    if value.reached:
        entry |= {"min": value.low, "max": value.high}
    if value.ranks:
        entry["ranks"] = Row(value.ranks)
    entry["count"] = value.count
    if value.counts:
        entry |= {"exponent": value.exponent, "offset": value.offset}
        # Text and not a list: a hundred times faster to read.
        entry["histogram"] = " ".join(map(str, value.counts))
    return entry


def _read_value(source: Located, bins: int, by_hand: bool) -> ValueProfile:
    found = source.complete("a value", VALUE_KEYS, VALUE_KEYS[1:])
    if not by_hand:  # a line that is cut behind the name has no count
        source.require(("count",))
    name = found["name"].name("name")
    weight = found["weight"].boolean("weight") if "weight" in found else False
    ranks = _read_ranks(found["ranks"]) if "ranks" in found else None
    if "finite" in found and not found["finite"].boolean("finite"):
        return ValueProfile(name, ranks=ranks, weight=weight, finite=False)
    counts = read_counts(found["histogram"], bins) if "histogram" in found else ()
    total = sum(counts)
    if "count" in found and (count := found["count"].whole("count")) != total:
        raise found["count"].error(f"the count is {count}, and the histogram sums up to {total}")
    if total == 0 and not ("min" in found or "max" in found):
        return ValueProfile(name, ranks=ranks, weight=weight)
    source.require(("min", "max"))
    low, high = read_range(found["min"], found["max"])
    if total == 0:
        return ValueProfile(name, low, high, ranks, weight=weight)
    source.require(("exponent", "offset"))
    exponent = found["exponent"].whole("exponent", *EXPONENTS)
    offset = found["offset"].whole("offset", -(1 << 53), 1 << 53)
    return ValueProfile(name, low, high, ranks, exponent, offset, counts, weight)


def _read_ranks(source: Located) -> tuple[int, int]:
    ranks = [item.whole("a rank", 0, 64) for item in source.items("ranks")]
    if len(ranks) != 2 or ranks[0] > ranks[1]:
        raise source.error(f"ranks are the lowest and the highest one, not {ranks}")
    return ranks[0], ranks[1]


def read_values(
    source: Located, name: str, read: Callable[[Located], ValueProfile]
) -> dict[str, ValueProfile]:
    """Return the entries of a list by name; errors in one say which it is."""
    found: dict[str, ValueProfile] = {}
    for entry in source.items("values"):
        content = entry.content if isinstance(entry.content, dict) else {}
        names = [part for key, part in content.items() if key.lower() == name.lower()]
        try:
            value = read(entry)
            if value.name in found:
                raise entry.error(f"the value '{value.name}' is there twice")
        except JitPassesError as error:
            owner = f" (value '{str(names[0].plain())[:200]}')" if names else ""
            raise JitPassesError(f"{error}{owner}") from error
        found[value.name] = value
    return found


def read_range(low: Located, high: Located) -> tuple[float, float]:
    """Return two finite float32, the first one not the larger."""
    ends = low.number("min", BEYOND_FLOAT32), high.number("max", BEYOND_FLOAT32)
    if ends[0] > ends[1]:
        raise low.error(f"min is {ends[0]} and max is {ends[1]}, which is smaller: correct them")
    return ends


def read_counts(source: Located, most: int, rounded: bool = False) -> tuple[int, ...]:
    """Return whole numbers that are not negative: a list, or text with spaces between them."""
    value = source.plain()
    words = value.split() if isinstance(value, str) else value
    words = [words] if isinstance(words, int) and not isinstance(words, bool) else words
    if not isinstance(words, list):
        raise source.error(f"a histogram is counts with spaces between, not {source.describe()}")
    if len(words) > most:
        raise source.error(f"{len(words)} bins are too many: at most {most}")
    counts = tuple(_count(source, word, rounded) for word in words)
    if sum(counts) >= 1 << 63:
        raise source.error(f"the counts sum up to {sum(counts)}, which is 2^63 or more")
    return counts


def _count(source: Located, word: Any, rounded: bool) -> int:
    try:
        if (isinstance(word, str) and len(word) < 20) or type(word) is int:
            count = round(float(word)) if rounded else int(word)
        else:
            count = round(word) if rounded and isinstance(word, float) else -1
    except (ValueError, OverflowError):  # no number, NaN, infinite
        count = -1
    if count < 0:
        given = str(word)[:60] if isinstance(word, str) else type(word).__name__
        raise source.error(f"counts are whole numbers that are not negative, not '{given}'")
    return count
