"""The command `jit-passes`, and `python -m jit_passes`: see docs/command_line.md."""

from .main import main, run

__all__ = ["main", "run"]
