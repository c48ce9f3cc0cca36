"""A profile of a model, and its file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise

from ..errors import JitPassesError, count_of
from ..files import path_of, write_whole
from ..tables import html_table
from . import form, glow
from .value import MOST_BINS, State, ValueProfile

SPARKS = " ▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 24


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """Ranges and histograms of all float values of a model, over some data.

    Profiles are equal when their graph, number of bins and all values seen are.

    Attributes:
        graph: hash of the normalized graph, see `Probes`.
        bins: number of bins of each histogram.
        values: the record of each value, by its name, in program order. A value that was never
            reached is there without a range, or not at all; integers and constants are not.
        version: of the jit_passes that made it, or of Glow.
        weights: hash of the model's weights; "" where it is not known.
        lines: where values stand in the file that they were read from; messages say so.
        shards: the parts of the data that it is of, `3/8`; none for all data.
    """

    graph: str
    bins: int
    values: Mapping[str, ValueProfile] = field(default_factory=dict)
    version: str = ""
    weights: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    shards: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", dict(self.values))  # not the caller's

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Profile):
            return NotImplemented
        return (self.graph, self.bins) == (other.graph, other.bins) and _seen(self) == _seen(other)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def digest(self) -> str:
        """A text that is equal for equal ranges and histograms of one graph and its weights."""
        seen = self.values.values()
        text = form.write("", "", self.graph, self.weights, self.bins, self.shards, seen)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        """Return one line; `str` gives the table."""
        return f"<Profile of graph {self.graph}: {len(self.values)} values, {self.bins} bins>"

    def __add__(self, other: Profile) -> Profile:
        """Return the profile of the data of both."""
        if not isinstance(other, Profile):
            return NotImplemented
        return Profile.merge(self, other)

    def merge(*given: Profile | Iterable[Profile]) -> Profile:
        """Return the profile of all data, from profiles of its parts.

        The result is exactly the profile of one run over all data, for any parts in any order.
        A profile of all shards names no shard, so merging it with a shard counts this shard twice.

            a.merge(b, c)
            Profile.merge(a, b, c)
            Profile.merge(shards)

        Args:
            given: profiles, and lists of them. Called on a profile, this profile is the first.

        Raises:
            JitPassesError: there is none; they are of several graphs, numbers of bins, weights or
                versions; a shard is there twice, or they are shards of several numbers.
        """
        profiles = list(_flat(given))
        if not profiles:
            raise JitPassesError("there is nothing to merge: pass at least one profile")
        first = profiles[0]
        for position, other in enumerate(profiles[1:], 1):
            if other.graph != first.graph:
                raise JitPassesError(
                    f"profile {position} is of another graph, {other.graph}, than the first one, "
                    f"{first.graph}: {describe_difference(first.values, other.values)}; profile "
                    "one model"
                )
            if other.bins != first.bins:
                raise JitPassesError(
                    f"profile {position} has {other.bins} bins and the first one {first.bins}: "
                    "profile with the same number"
                )
            if other.version and first.version and other.version != first.version:
                raise JitPassesError(
                    f"profile {position} was made by version {other.version}, and the first one by "
                    f"{first.version}: values may have other names or counts; profile with one "
                    "version"
                )
        names = dict.fromkeys(name for profile in profiles for name in profile.values)
        merged = {}
        for name in names:
            found = [profile.values[name] for profile in profiles if name in profile.values]
            value = _merge(found, first.bins)
            # A value that another profile leaves out holds integers, which only data have shown
            # there.
            if len(found) == len(profiles) or value.reached or value.ranks or not value.finite:
                merged[name] = value
        weights = {profile.weights for profile in profiles} - {""}
        if len(weights) > 1:
            raise JitPassesError(
                f"the profiles are of models with {len(weights)} different sets of weights: "
                "profile one model"
            )
        shards = _joined([shard for profile in profiles for shard in profile.shards])
        known = first.graph, first.bins, merged, first.version, "".join(weights)
        return Profile(*known, shards=shards)

    @property
    def missing(self) -> list[str]:
        """The shards that it lacks: none where it is of all data."""
        count = int(self.shards[0].partition("/")[2]) if self.shards else 0
        every = (f"{number}/{count}" for number in range(1, count + 1))
        return [shard for shard in every if shard not in self.shards]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as YAML, which can be read and edited: ranges in particular.

        A range that was edited by hand still gets headroom where fewer than 1024 numbers were
        counted; `range: [low, high]` in a configuration is exact.

        Raises:
            JitPassesError: the file cannot be written; this is an OSError too.
        """
        seen = self.values.values()
        text = form.write(
            path_of(path).name, self.version, self.graph, self.weights, self.bins, self.shards,
            seen,
        )  # fmt: skip
        write_whole(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a file that `save` wrote. Nothing in it is ever executed.

        Raises:
            JitPassesError: it is no profile, or holds impossible values; the message says where.
            JitPassesError: the file cannot be read; this is an OSError too.
        """
        return cls(**form.read(path))

    def to_glow(self, path: str | os.PathLike[str], bins: int = glow.BINS) -> None:
        """Write it in the form of Glow's profiles: three YAML documents.

        Three things are lost: ranks; values that were never reached or were infinite, and weights;
        and the bins' borders. Glow's bins are as many equal parts of [min, max]: our counts are
        spread evenly over these and rounded, keeping the total. Names get ":0" appended, their own
        ":" is written as "%3A".

        Args:
            path: the file.
            bins: number of bins.

        Raises:
            JitPassesError: bins is no number from 1 to 2**20.
            JitPassesError: the file cannot be written; this is an OSError too.
        """
        if not 1 <= bins <= MOST_BINS:
            raise JitPassesError(f"bins is a number from 1 to {MOST_BINS}, not {bins!r}")
        seen = [v for v in self.values.values() if v.reached and not v.weight]
        text = glow.write(self.version, self.graph, seen, bins)
        write_whole(path, text)

    @classmethod
    def from_glow(cls, path: str | os.PathLike[str], bins: int = 2048) -> Profile:
        """Read a profile in Glow's form, with its lower-case keys too.

        Ranges are exact. The counts of Glow's bins, equal parts of [min, max], are spread evenly
        over ours and rounded, keeping the total. So many equal values, as zeros after a relu, are
        spread too. Ranks are not known, and count as the target's ranks.

        Args:
            path: the file.
            bins: number of bins to have.

        Raises:
            JitPassesError: it is another file, or holds impossible values; the message says where.
            JitPassesError: the file cannot be read; this is an OSError too.
        """
        if not 2 <= bins <= MOST_BINS:
            raise JitPassesError(f"bins is a number from 2 to {MOST_BINS}, not {bins!r}")
        version, graph, values = glow.read(path, bins)
        return cls(graph, bins, values, version)

    def __str__(self) -> str:
        width = max([len(name) for name in self.values] + [len("value")])
        lines = [f"graph {self.graph}, {self.bins} bins, jit_passes {self.version}"]
        lines.append(f"{'value':<{width}}  {'min':>12}  {'max':>12}  {'count':>12}  ")
        for value in self.values.values():
            lines.append(f"{value.name:<{width}}  {_row(value)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = (
            (value.name, f"{value.low:.6g}", f"{value.high:.6g}", str(value.count), _spark(value))
            if value.reached
            else (value.name, "", "", "", _row(value))
            for value in self.values.values()
        )
        return html_table(("value", "min", "max", "count", "histogram"), rows, repr(self)[1:-1])


def _joined(shards: Sequence[str]) -> tuple[str, ...]:
    """Return shards in order; none where they are all there are."""
    found = sorted(shard for text in shards if (shard := form.shard_of(text)) is not None)
    counts = {count for _, count in found}
    if len(counts) > 1:
        raise JitPassesError(f"the profiles are of shards of {sorted(counts)}: split data once")
    twice = [f"{a}/{count}" for (a, count), (b, _) in pairwise(found) if a == b]
    if twice:
        raise JitPassesError(f"the shard {twice[0]} is there twice: its data would count twice")
    if found and len(found) == found[0][1]:
        return ()
    return tuple(f"{number}/{count}" for number, count in found)


def _flat(given: Iterable[Profile | Iterable[Profile]]) -> Iterator[Profile]:
    for item in given:
        if isinstance(item, Profile):
            yield item
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes):
            yield from _flat(item)
        else:
            raise JitPassesError(
                f"merge takes profiles, not {type(item).__name__}: read a file with Profile.load"
            )


def describe_difference(wanted: Iterable[str], found: Iterable[str]) -> str:
    """Say in which names two sets of values differ."""
    ours, theirs = dict.fromkeys(wanted), dict.fromkeys(found)
    missing = [name for name in ours if name not in theirs]
    added = [name for name in theirs if name not in ours]
    parts = [
        f"{count_of(len(names), 'value')} {what}: {', '.join(islice(names, 4))}"
        + (", ..." if len(names) > 4 else "")
        for names, what in ((missing, "missing"), (added, "of its own"))
        if names
    ]
    return "; ".join(parts) or "names are equal, and operators or constants differ"


def _seen(profile: Profile) -> dict[str, ValueProfile]:
    return {name: v for name, v in profile.values.items() if v.ranks or v.reached or not v.finite}


def _merge(values: list[ValueProfile], bins: int) -> ValueProfile:
    first = values[0]
    if len(values) == 1:
        return first
    if first.weight:
        if any(value != first for value in values):
            raise JitPassesError(
                f"the weight '{first.name}' differs between the profiles: profile one model, or "
                "leave weights out"
            )
        return first
    state = State.new(bins)
    for value in values:
        state.add(value.with_bins(bins))
    merged = ValueProfile.of(first.name, state)
    if merged.reached:  # an edited range need not be of float32
        seen = [value for value in values if value.reached]
        low, high = min(v.low for v in seen), max(v.high for v in seen)
        return ValueProfile(**{**vars(merged), "low": low, "high": high})
    return merged


def _row(value: ValueProfile) -> str:
    if not value.finite:
        return "not finite"
    if not value.reached:
        return "never reached" if value.ranks is None else "always empty"
    return f"{value.low:>12.6g}  {value.high:>12.6g}  {value.count:>12}  {_spark(value)}"


def _spark(value: ValueProfile) -> str:
    """Draw the histogram between min and max, by the square root of the counts."""
    if not value.counts:
        return ""
    columns = [0] * SPARK_COLUMNS
    for i, count in enumerate(value.counts):
        columns[i * SPARK_COLUMNS // len(value.counts)] += count
    top = max(columns)
    levels = [-(-((len(SPARKS) - 1) * (count / top) ** 0.5) // 1) for count in columns]
    return "".join(SPARKS[int(level)] for level in levels)
