"""How many cases a test draws: few by default, all of them with JIT_PASSES_SEEDS=all."""

from __future__ import annotations

import os

FEW = 20


def seeds(count: int) -> range:
    """Return the seeds of a test that draws so many cases in `make fuzz`."""
    return range(count if os.environ.get("JIT_PASSES_SEEDS") == "all" else min(count, FEW))
