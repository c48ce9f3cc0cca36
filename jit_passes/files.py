"""Writing files that are there as a whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes | memoryview) -> None:
    """Write a file beside its place, which it then takes; text as UTF-8.

    Whatever happens, there is the old file or the new one. A device or a pipe is written to.

    Raises:
        OSError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        target.write_bytes(data)
        return
    handle, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
    part = Path(name)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
