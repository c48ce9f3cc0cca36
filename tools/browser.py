"""A headless Chromium, for pages that have to be looked at as they are shown."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "JIT_PASSES_BROWSER"


@functools.cache
def find() -> str:
    """Return the browser of the environment variable, or one that is installed; "" for none.

    A browser that does not start counts as none.
    """
    for name in (os.environ.get(VARIABLE, ""), *NAMES):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            started = subprocess.run(
                [path, "--version"], capture_output=True, check=False, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if started.returncode == 0:
            return path
    return ""


def opened(page: Path, size: tuple[int, int], *options: str) -> str:
    """Open a file without a network; return what the browser writes to stdout.

    Args:
        page: an HTML file.
        size: of the window, in pixels.
        options: of the browser: `--dump-dom`, `--screenshot=FILE`.

    Raises:
        RuntimeError: the browser fails.
    """
    width, height = size
    command = [
        find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--virtual-time-budget=2000", f"--window-size={width},{height}",
        *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"the browser fails: {done.stderr[-2000:]}")
    return done.stdout
