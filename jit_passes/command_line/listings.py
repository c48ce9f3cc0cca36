"""`jit-passes passes`, `jit-passes targets` and `jit-passes versions`."""

from __future__ import annotations

import click

from ..errors import aligned, nearest
from ..passes.registry import passes as registered
from ..report.versions import versions as find_versions
from ..targets import Target
from . import options
from .outcome import show

PASSES = """\b
Examples:
  jit-passes passes
  jit-passes passes fold_batch_norm
  jit-passes passes --plugin my_passes
"""
TARGETS = """\b
Examples:
  jit-passes targets
  jit-passes targets stock                  its capability, operator by operator
  jit-passes targets stock:engine=onednn
"""
VERSIONS = """\b
Examples:
  jit-passes versions > versions.txt
"""


@click.command(short_help="List the graph passes.", epilog=PASSES)
@click.argument("name", required=False)
@options.JSON
@options.common
def passes(name: str | None, as_json: bool) -> None:
    """List the graph passes, or show one of them with its options."""
    if name is not None and name not in registered:
        raise click.UsageError(f"no pass {name!r}: {nearest(name, registered)}")
    chosen = {name: registered[name]} if name is not None else dict(registered.items())
    result = [
        {
            "name": key,
            "summary": info.summary,
            "options": [str(option) for option in info.options],
            "requires": list(info.requires),
            "ensures": list(info.ensures),
        }
        for key, info in chosen.items()
    ]
    table = aligned([(key, info.summary) for key, info in chosen.items()])
    show(str(registered[name]) if name is not None else table, result, as_json)


@click.command(short_help="List the backends.", epilog=TARGETS)
@click.argument("name", required=False)
@options.JSON
@options.common
def targets(name: str | None, as_json: bool) -> None:
    """List the backends with their options, or show the capability of one of them."""
    if name is not None:
        target = options.target_of(name, option="")
        show(str(target), {**target.record(), "capability": str(target.capability)}, as_json)
        return
    rows, result = [], []
    for key, kind in Target.named().items():
        summary = (kind.__doc__ or "").strip().split("\n")[0]
        defaults = {option: str(value) for option, value in kind.defaults().items()}
        given = ", ".join(f"{option}={value}" for option, value in defaults.items())
        rows.append((key, given, summary))
        result.append({"name": key, "options": defaults, "summary": summary})
    show(aligned(rows), result, as_json)


@click.command(epilog=VERSIONS)
@options.JSON
@options.common
def versions(as_json: bool) -> None:
    """Show versions and the processor, for the report of an error."""
    found = find_versions()
    show("\n".join(f"{name}: {value}" for name, value in found.items()), found, as_json)
