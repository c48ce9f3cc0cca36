"""Passes of other packages, found by their entry points.

A package that declares

    [project.entry-points."jit_passes.plugins"]
    fpga = "fpga_passes"

has the module `fpga_passes` imported by `load_plugins`. The import registers its passes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from .. import _C
from ..errors import warn
from .registry import passes


@dataclass(frozen=True)
class Plugin:
    """An entry point.

    Attributes:
        name: its name, "fpga".
        distribution: the package that it belongs to, as pip calls it; "" where that is unknown.
        version: of that package.
        passes: the passes that importing it registered.
        error: why it could not be imported; "" when it was.
    """

    name: str
    distribution: str
    version: str
    passes: tuple[str, ...]
    error: str


_loaded: dict[tuple[str, str, str], Plugin] = {}
_lock = threading.Lock()


def load_plugins(group: str = "jit_passes.plugins") -> list[Plugin]:
    """Import the packages that have passes for us.

    Each package is imported once; another call returns the packages that the first call found,
    imports packages installed meanwhile, and tries failed packages again. A package that fails to
    import is skipped with a `JitPassesWarning`. Nothing is loaded unless this is called.

    Args:
        group: of the entry points.

    Returns:
        All loaded packages, by package and name.
    """
    plugins = []
    for entry in entry_points(group=group):
        with _lock:
            plugin = _load(entry)
        plugins.append(plugin)
        if plugin.error:
            warn(
                f"skipped the entry point '{entry.name} = {entry.value}' of the package "
                f"'{plugin.distribution}' {plugin.version}, which does not import: {plugin.error}"
            )
    return sorted(plugins, key=lambda plugin: (plugin.distribution, plugin.name))


def _load(entry: EntryPoint) -> Plugin:
    distribution, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
    key = (distribution, entry.group, f"{entry.name} = {entry.value}")
    if key in _loaded:
        return _loaded[key]
    before = set(passes)
    error = ""
    try:
        entry.load()
        _C.raise_kept_errors()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    new = tuple(sorted(set(passes) - before))
    plugin = Plugin(entry.name, distribution, version, new, error)
    if not error:
        _loaded[key] = plugin
    return plugin
