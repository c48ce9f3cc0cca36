"""Profiles in the form of Glow, the compiler: three YAML documents.

    ---
    GlowToolsVersion: '1.0'
    ---
    GraphPreLowerHash: 0x00000000000000ff
    ---
    - NodeOutputName: 'conv:0'
      Min: -1.5
      Max: 3.25
      Histogram: [ 0, 12, 7 ]

Source: lib/Quantization/Serialization.cpp of pytorch/glow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from decimal import Decimal

from ..configuration.located import Located, documents
from ..errors import JitPassesError
from ..files import read_bytes
from .form import read_counts, read_range, read_values
from .value import MOST_BINS, ValueProfile, index_of, layout, spread

BINS = 2000
HEADS = ("GlowToolsVersion", "GraphPreLowerHash")
KEYS = ("NodeOutputName", "Min", "Max", "Histogram")
LOWER_KEYS = ("nodeOutputName", "min", "max", "histogram")


def write(version: str, graph: str, values: Iterable[ValueProfile], bins: int) -> str:
    """Return the text of the file."""
    entries = [
        f"- NodeOutputName: '{_escape(value.name)}'\n"
        f"  Min: {_exact(value.low)}\n"
        f"  Max: {_exact(value.high)}\n"
        f"  Histogram: [ {', '.join(map(str, _rebin(value, bins)))} ]\n"
        for value in values
    ]
    quoted = version.replace("'", "''")
    return (
        f"---\n{HEADS[0]}: '{quoted}'\n...\n"
        f"---\n{HEADS[1]}: 0x{graph}\n...\n"
        f"---\n{''.join(entries) or '[]'}...\n"
    )


def read(path: str | os.PathLike[str], bins: int) -> tuple[str, str, dict[str, ValueProfile]]:
    """Return version, hash of the graph, and values with so many bins."""
    parts = documents(read_bytes(path), str(path))
    if len(parts) != 3:
        raise JitPassesError(
            f"{path}: Glow's profiles are three YAML documents, with {HEADS[0]}, {HEADS[1]} and a "
            f"list of values; this file has {len(parts)}"
        )
    version, graph = (
        part.complete("Glow's profile", (key,))[key]
        for part, key in zip(parts[:2], HEADS, strict=True)
    )
    number = graph.whole("the hash", 0, (1 << 64) - 1)
    values = read_values(parts[2], KEYS[0], lambda entry: _read_value(entry, bins))
    return version.name("the version"), f"{number:016x}", values


def _read_value(source: Located, bins: int) -> ValueProfile:
    given = source.mapping("a value", (*KEYS, *LOWER_KEYS))
    keys = KEYS if KEYS[0] in given else LOWER_KEYS
    source.require(keys)
    name_part, low_part, high_part, histogram = (given[key] for key in keys)
    name = _unescape(name_part.name("a name"))
    low, high = read_range(low_part, high_part)
    counts = read_counts(histogram, MOST_BINS, rounded=True)  # Glow's are float32
    if sum(counts) == 0:
        return ValueProfile(name, low, high)
    exponent, offset = layout(low, high, bins)
    edges = _equal_parts(low, high, len(counts))
    borders = [k * 2.0**exponent for k in range(offset, index_of(high, exponent) + 2)]
    own = tuple(spread(counts, edges, borders))
    return ValueProfile(name, low, high, None, exponent, offset, own).trimmed()


def _rebin(value: ValueProfile, bins: int) -> list[int]:
    inside = value.clipped()
    if value.low == value.high:
        return [value.count] + [0] * (bins - 1)
    return spread(inside.counts, inside.edges(), _equal_parts(value.low, value.high, bins))


def _equal_parts(low: float, high: float, bins: int) -> list[float]:
    return [low + (high - low) * (i / bins) for i in range(bins)] + [high]


def _exact(number: float) -> str:
    """Return all decimal digits, as Glow writes them."""
    text = f"{Decimal(number):f}"
    return text if "." in text else f"{text}.0"


def _escape(name: str) -> str:
    """Return Glow's name: node, colon, number of the result."""
    return name.replace("%", "%25").replace(":", "%3A").replace("'", "''") + ":0"


def _unescape(name: str) -> str:
    node, colon, result = name.rpartition(":")
    if not colon or not re.fullmatch("[0-9]+", result):
        node, result = name, "0"
    plain = node.replace("%3A", ":").replace("%25", "%")
    return plain if int(result) == 0 else f"{plain}.{int(result)}"
