"""Reading files, and writing files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import ArgumentError, InputError, OutputError


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        JitPassesError: it cannot be read, which is an `OSError` too; or the path is none.
    """
    found = path_of(path)
    try:
        return found.read_bytes()
    except OSError as error:
        raise _as(InputError, f"{path} cannot be read", error) from error


def write_whole(
    path: str | os.PathLike[str], content: str | bytes | memoryview | Iterator[bytes]
) -> None:
    """Write a file beside its place, which it then takes; text as UTF-8, parts one after another.

    A failure leaves the old file or the new one, never a part. A device or a pipe is written to.

    Raises:
        JitPassesError: the file cannot be written, which is an `OSError` too; or the path is none.
    """
    check_writable(path)
    data = content.encode() if isinstance(content, str) else content
    parts = [data] if isinstance(data, bytes | memoryview) else data
    target = Path(os.path.realpath(path))
    with writing(path):
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as file:
                file.writelines(parts)
            return
        handle, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
        part = Path(name)
        try:
            with open(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check, before hours of work, that a file can be written.

    Raises:
        JitPassesError: it cannot, which is an `OSError` too; or the path is none.
    """
    target = Path(os.path.realpath(path_of(path)))
    with writing(path):  # a name may be too long to ask for
        is_folder = target.is_dir()
    if is_folder:
        raise OutputError(f"{path} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK) and not os.access(target, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission to write in {target.parent}")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make an error of the system one about the file.

    Raises:
        JitPassesError: the file cannot be written, which is an `OSError` too.
    """
    try:
        yield
    except OSError as error:
        raise _as(OutputError, f"{path} cannot be written", error) from error


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path.

    Raises:
        JitPassesError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"a path is text or a pathlib.Path, not {path!r}")
    return Path(path)


def reason_of(error: OSError) -> str:
    """Return the system's reason, `No space left on device`."""
    return error.strerror or str(error)


def _as(
    kind: type[InputError | OutputError], what: str, error: OSError
) -> InputError | OutputError:
    found = kind(f"{what}: {reason_of(error)}")
    found.errno = error.errno
    return found


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
