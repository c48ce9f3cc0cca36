"""`jit-passes profile` and `jit-passes merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import JitPassesError, shortened
from ..profile import Profile
from ..profile import profile as run_profile
from . import options
from .files import check_output, load_model
from .outcome import show

EPILOG = """\b
Examples:
  jit-passes profile model.pt --data calib.npz -o ranges.yaml
  jit-passes quantize model.pt --profile ranges.yaml -o int8.pt
  jit-passes profile model.pt --data folder --shard 3/8 -o part3.yaml

The data may stay where they are: the file has ranges and histograms only, and can be edited.
"""


@click.command(short_help="Write ranges of all values to a file.", epilog=EPILOG)
@options.MODEL
@options.DATA
@click.option("--bins", type=click.IntRange(2, 1 << 20), default=2048, show_default=True,
              help="Bins of each histogram.")  # fmt: skip
@click.option("--weights", is_flag=True, help="Write down the constants too.")
@click.option("--shard", type=options.Shard(), metavar="K/N",
              help="Take every N-th file of a folder of samples, or else batch, from the K-th on; "
              "`jit-passes merge` puts the profiles together.")  # fmt: skip
@options.FORMS_OF
@options.METHOD
@click.option("-o", "--output", type=options.FILE, required=True, help="YAML.")
@options.JSON
@options.common
def profile(
    model: Path, bins: int, weights: bool, shard: tuple[int, int] | None, target: str | None,
    method: str, output: Path, as_json: bool, progress: bool | None, **data: Any,
) -> None:  # fmt: skip
    """Run data through MODEL, and write ranges and histograms of all its values to a file."""
    loaded = load_model(model)
    check_output(output, (model, data["data"]))
    why = "ranges come from --data or --random"
    batches = options.needed_data(loaded, method, why, shard=shard, **data)
    options.warn_of_random(data["random"])
    made = run_profile(
        loaded,
        batches,
        bins=bins,
        weights=weights,
        progress=progress,
        method=method,
        target=None if target is None else options.target_of(target),
        shard=shard,
    )
    _save(made, output, as_json)


def _save(made: Profile, output: Path, as_json: bool) -> None:
    """Write a profile, and show it."""
    made.save(output)
    result = {
        "output": str(output),
        "graph": made.graph,
        "weights": made.weights,
        "digest": made.digest,
        "values": {v.name: [v.low, v.high] if v.reached else None for v in made.values.values()},
    }
    show(str(made), result, as_json)


MERGE_EPILOG = """\b
Examples:
  jit-passes merge part*.yaml -o all.yaml
  jit-passes merge --partial part1.yaml part2.yaml -o node1.yaml

The result equals the profile of one run over all data, byte for byte under one name.
"""


@click.command(short_help="Put profiles of parts of the data together.", epilog=MERGE_EPILOG)
@click.argument("profiles", type=options.FILE, nargs=-1, required=True)
@click.option("--partial", is_flag=True, help="Shards may be missing, to be merged later.")
@click.option("-o", "--output", type=options.FILE, required=True, help="YAML.")
@options.JSON
@options.common
def merge(profiles: tuple[Path, ...], partial: bool, output: Path, as_json: bool) -> None:
    """Put PROFILES of parts of the data together, in any order."""
    check_output(output, profiles)
    merged: Profile | None = None
    known: set[Path] = set()
    for path in profiles:
        if path.resolve() in known:
            raise JitPassesError(f"{path} is given twice: its data would count twice")
        known.add(path.resolve())
        found = Profile.load(path)
        try:
            merged = found if merged is None else merged.merge(found)
        except JitPassesError as error:
            raise JitPassesError(f"{path}: {error}") from error
    assert merged is not None
    if merged.missing and not partial:
        missing = shortened(merged.missing)
        raise JitPassesError(f"shards are missing: {missing}; --partial merges without them")
    _save(merged, output, as_json)
