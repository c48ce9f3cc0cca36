"""The file of a profile: YAML that can be read and edited."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..errors import JitPassesError
from . import document
from .document import Part, Row
from .value import EXPONENTS, MOST_BINS, ValueProfile

VERSION = 1
KEYS = ("jit_passes", "form", "graph", "weights", "bins", "values")
OPTIONAL = "weights"  # files of versions that did not hash them have none
VALUE_KEYS = (
    *("name", "weight", "finite", "min", "max", "ranks"),
    *("count", "exponent", "offset", "histogram"),
)
HEADER = """\
# Ranges and histograms of a model's values: jit_passes.Profile.load("{name}").
# Bin i of a histogram counts the x with floor(x / 2^exponent) = offset + i; empty bins at both ends
# are left out. min and max may be edited: what lies outside then counts at the ends.
"""


def write(
    name: str, version: str, graph: str, weights: str, bins: int, values: Iterable[ValueProfile]
) -> str:
    """Return the text of the file, whose name its first line says."""
    fields = (version, VERSION, graph, weights, bins, [_entry(value) for value in values])
    return HEADER.format(name=name) + document.write(dict(zip(KEYS, fields, strict=True)))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a `Profile`.

    Raises:
        JitPassesError: the file is not of this form.
        OSError: it cannot be read.
    """
    parts = document.read(path)
    if len(parts) != 1:
        hint = "; Profile.from_glow reads the files of Glow" if len(parts) == 3 else ""
        raise JitPassesError(f"{path}: one document is expected, got {len(parts)}{hint}")
    found = parts[0].mapping(KEYS, "a profile")
    _require(parts[0], found, (key for key in KEYS if key != OPTIONAL))
    form = found["form"].whole(1, 1 << 31)
    if form != VERSION:
        found["form"].fail(f"the form of the file is {form}, and this version reads {VERSION}")
    bins = found["bins"].whole(2, MOST_BINS)
    values: dict[str, ValueProfile] = {}
    lines: dict[str, str] = {}
    for part in found["values"].items("values"):
        value = _read_value(part, bins)
        if value.name in values:
            part.fail(f"the value '{value.name}' is there twice")
        values[value.name] = value
        lines[value.name] = f"{part.path}, line {part.line}"
    return {
        "version": found["jit_passes"].text(),
        "graph": found["graph"].text(),
        "weights": found["weights"].text() if "weights" in found else "",
        "bins": bins,
        "values": values,
        "lines": lines,
    }


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


def _read_value(part: Part, bins: int) -> ValueProfile:
    part = part.called("name")
    found = part.mapping(VALUE_KEYS, "a value")
    _require(part, found, ("name",))
    name = found["name"].text()
    weight = found["weight"].flag() if "weight" in found else False
    ranks = _read_ranks(found["ranks"]) if "ranks" in found else None
    if "finite" in found and not found["finite"].flag():
        return ValueProfile(name, ranks=ranks, weight=weight, finite=False)
    counts = found["histogram"].counts(bins) if "histogram" in found else ()
    if "count" in found and (count := found["count"].whole(0, (1 << 63) - 1)) != sum(counts):
        found["count"].fail(f"the count is {count}, and the histogram sums up to {sum(counts)}")
    if sum(counts) == 0 and not ("min" in found or "max" in found):
        return ValueProfile(name, ranks=ranks, weight=weight)
    _require(part, found, ("min", "max"))
    low, high = found["min"].number(), found["max"].number()
    if low > high:
        found["min"].fail(f"min is {low} and max is {high}, which is smaller: swap or correct them")
    if sum(counts) == 0:
        return ValueProfile(name, low, high, ranks, weight=weight)
    _require(part, found, ("exponent", "offset"))
    exponent = found["exponent"].whole(*EXPONENTS)
    offset = found["offset"].whole(-(1 << 53), 1 << 53)
    return ValueProfile(name, low, high, ranks, exponent, offset, counts, weight)


def _read_ranks(part: Part) -> tuple[int, int]:
    ranks = [item.whole(0, 64) for item in part.items("two numbers")]
    if len(ranks) != 2 or ranks[0] > ranks[1]:
        part.fail(f"ranks are the lowest and the highest number of dimensions, not {ranks}")
    return ranks[0], ranks[1]


def _require(part: Part, found: dict[str, Part], keys: Iterable[str]) -> None:
    missing = [key for key in keys if key not in found]
    if missing:
        part.fail(f"the key '{missing[0]}' is missing")
