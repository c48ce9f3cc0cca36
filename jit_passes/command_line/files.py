"""Reading models, and writing results."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..errors import JitPassesError, OutputError, first_line
from ..files import write_whole
from .outcome import warning

TO_SCRIPT = (
    "this command takes TorchScript: in Python, torch.jit.script(model.eval()) or "
    "torch.jit.trace(model.eval(), example), then torch.jit.save"
)
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # how torch.save began before 1.6


def load_model(path: Path) -> torch.jit.ScriptModule:
    """Return the TorchScript model of a file, on the CPU and in eval mode.

    Raises:
        JitPassesError: there is none; the message says what the file is instead.
    """
    check_readable(path)
    try:
        model: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            str(path), map_location="cpu"
        )
    except Exception as error:
        raise JitPassesError(f"{path}: {_explain(path, error)}") from error
    if getattr(model, "training", False):
        warning(f"{path} was saved in training mode: it is taken in eval mode")
        model.eval()
    return model


def check_readable(path: Path) -> None:
    """Raise an error if a file cannot be read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise JitPassesError(f"{path} cannot be read: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Return what the system says, `No space left on device`."""
    return error.strerror or str(error)


def _explain(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        start = file.read(len(LEGACY))
    if not zipfile.is_zipfile(path):
        if start == LEGACY:
            return f"a file of torch.save, in the form before torch 1.6, is no model: {TO_SCRIPT}"
        return f"no TorchScript model, or one that was cut off: {TO_SCRIPT}"
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return f"a program of torch.export, which is no TorchScript: {TO_SCRIPT}"
    if "data.pkl" in names and "constants.pkl" not in names:
        return (
            "a file of torch.save, with a state dict or an eager module in it: load it where the "
            f"model's code is; {TO_SCRIPT}"
        )
    said = first_line(error)
    if "Unknown builtin op" in said or "Unknown type name" in said:
        return (
            "the model uses operators or classes of a library that is not loaded: pass --plugin "
            f"with its module, or its .so. PyTorch says: {said}"
        )
    return f"no TorchScript model that can be loaded. PyTorch says: {said}"


def check_output(output: Path, inputs: Sequence[Path]) -> None:
    """Check, before hours of work, that a file can be written, and is not one that was given.

    Raises:
        OutputError: it cannot.
        JitPassesError: it is one of the inputs.
    """
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise JitPassesError(f"{output} is an input, which is never overwritten: name another")
    folder = Path(os.path.realpath(output)).parent
    if output.is_dir():
        raise OutputError(f"{output} is a folder: name a file in it")
    if not folder.is_dir():
        raise OutputError(f"{output} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{output} cannot be written: no permission to write in {folder}")


def save_model(model: torch.jit.ScriptModule, output: Path) -> None:
    """Write a model as `torch.jit.save` does.

    Raises:
        OutputError: the file cannot be written.
    """
    buffer = io.BytesIO()  # PyTorch's writer of files ends the process on a full disk
    torch.jit.save(model, buffer)
    with writing(output):
        write_whole(output, buffer.getbuffer())


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Make an error of the system one about the output.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {reason_of(error)}") from error
