"""Reading models, and writing results."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import JitPassesError, first_line
from ..export import from_exported_program
from ..export.program.decomposed import decomposed
from ..files import check_writable, reason_of, write_whole
from ..logs import silenced
from .outcome import warning

TO_SCRIPT = (
    "this command takes TorchScript: in Python, torch.jit.script(model.eval()) or "
    "torch.jit.trace(model.eval(), example), then torch.jit.save"
)
_PROGRAM = {"archive_format", "serialized_exported_program.json"}
_START = 16  # bytes that tell a file of ONNX
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # how torch.save began before 1.6


def load_model(path: Path) -> torch.jit.ScriptModule:
    """Return the model of a file of TorchScript or of `torch.export`, on the CPU, in eval mode.

    Raises:
        JitPassesError: there is none; the message names the kind of the file.
    """
    check_readable(path)
    names = _members(path)
    if other := _of_an_engine(path, names):
        raise JitPassesError(f"{path}: {other}")
    if _PROGRAM & {name.rpartition("/")[2] for name in names}:
        return _load_program(path)
    try:
        model: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
            str(path), map_location="cpu"
        )
    except Exception as error:
        raise JitPassesError(f"{path}: {_explain(path, error)}") from error
    _check_code(path)
    if getattr(model, "training", False):
        warning(f"{path} was saved in training mode: it is taken in eval mode")
        model.eval()
    return model


def _members(path: Path) -> list[str]:
    """Return the files in an archive; none where it is no archive, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except Exception:  # loading says so
        return []


def _of_an_engine(path: Path, names: Sequence[str]) -> str:
    """Return that a file was made for an engine, and how to run it; "" for other files.

    Args:
        path: of the file.
        names: of the files in it, where it is an archive.
    """
    if any("/data/aotinductor/" in name for name in names):
        return (
            "a package of AOTInductor, compiled code for one processor: run it with "
            "torch._inductor.aoti_load_package or from C++; this command takes the model that it "
            "was made from"
        )
    with path.open("rb") as file:
        start = file.read(_START)
    if path.suffix == ".onnx" or _is_onnx(start):
        return (
            "a file of ONNX: run it in an engine, or compare it with the reference model that it "
            "was made from, "
            f"`jit-passes check {path.name} --against reference.pt --data test.npz`; "
            "this command takes that model"
        )
    return ""


def _is_onnx(start: bytes) -> bool:
    """Say whether a file begins as a ModelProto: its version, and who wrote it."""
    return len(start) > 2 and start[0] == 0x08 and start[1] < 0x40 and start[2] == 0x12


def _load_program(path: Path) -> torch.jit.ScriptModule:
    decomposed()  # a program that is quantized has these operators
    try:
        # An open file, since PyTorch warns of paths without the suffix .pt2.
        with path.open("rb") as file, silenced("torch.export"):
            program = torch.export.load(file)
    except Exception as error:
        why = "a program of torch.export that is damaged, or of another version of torch"
        raise JitPassesError(f"{path}: {why}") from error
    return from_exported_program(program)


def check_readable(*paths: Path | None) -> None:
    """Raise an error if a file cannot be read; None stands for no file."""
    for path in filter(None, paths):
        try:
            path.open("rb").close()
        except OSError as error:
            raise JitPassesError(f"{path} cannot be read: {reason_of(error)}") from error


def _check_code(path: Path) -> None:
    """Raise an error for a file whose code is damaged; PyTorch reads some of it much later."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/data/" not in name and "/constants/" not in name:
                    archive.read(name)  # which compares its checksum
    except Exception as error:
        raise JitPassesError(f"{path}: the file is damaged: {error}") from error


def _explain(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        start = file.read(len(LEGACY))
    try:
        if not zipfile.is_zipfile(path):
            if start == LEGACY:
                form = "a file of torch.save, in the form before torch 1.6"
                return f"{form}, is no model: {TO_SCRIPT}"
            return f"no TorchScript model, or one that was cut off: {TO_SCRIPT}"
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except Exception as damaged:  # of several classes, where bytes of its directory are others
        return f"the file is damaged: {first_line(damaged)}"
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


_before: dict[Path, Any] = {}  # files to be written, and the files in their places before


def forget_outputs() -> None:
    """Begin a command, which has written nothing."""
    _before.clear()


def written() -> list[Path]:
    """Return the files that this command has written by now."""
    return [path for path, known in _before.items() if _state_of(path) != known]


def _state_of(path: Path) -> Any:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def check_output(output: Path, inputs: Iterable[Path | None]) -> None:
    """Check, before hours of work, that a file can be written, and is not one that was given.

    Args:
        output: the file to be written.
        inputs: the files that were given, and other results; None for an option without one.

    Raises:
        OutputError: it cannot.
        JitPassesError: it is one of these files.
    """
    check_writable(output)
    for path in filter(None, inputs):
        is_same = output.exists() and path.exists() and output.samefile(path)
        if is_same or output.resolve() == path.resolve():
            raise JitPassesError(
                f"{output} is an input or another result, which is never overwritten: name another"
            )
    _before[output] = _state_of(output)


def save_model(model: torch.jit.ScriptModule, output: Path) -> None:
    """Write a model as `torch.jit.save` does.

    Raises:
        OutputError: the file cannot be written.
    """
    buffer = io.BytesIO()  # PyTorch's writer of files ends the process on a full disk
    torch.jit.save(model, buffer)
    write_whole(output, buffer.getbuffer())
