"""An interruption while the command starts: importing torch takes a second.

This module is imported ahead of everything else, and has an effect only in the command's process.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def is_command() -> bool:
    """Say whether this process is `jit-passes`, or `python -m jit_passes`."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "-m":  # while Python imports the package
        given = sys.orig_argv
        return "-m" in given and given[given.index("-m") + 1 :][:1] == ["jit_passes"]
    return name.removesuffix(".exe") == "jit-passes"


def stop(number: int, _: Any) -> None:
    """End the process as the command ends where it is interrupted later."""
    os.write(2, b"interrupted: no result was written\n")
    os._exit(128 + number)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stop)
