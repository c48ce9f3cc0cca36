"""Processes of their own, that begin with torch imported.

Importing torch takes seconds, and each script that runs in a process of its own pays for it again.
Here a server, a fresh Python, imports packages of others and nothing of ours; each script runs in a
fork of it, and imports jit_passes itself where it uses it.

Forks have one hash seed. A test of what depends on it, or on how Python begins, starts Python.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import torch

from tests.folders import ROOT

# The first optimizer imports torch._dynamo, which takes as long as torch itself.
IMPORTED = ["torch", "torch._dynamo", "sklearn.datasets", "sklearn.model_selection", "tqdm"]


@functools.cache
def _server() -> ForkServerContext:
    """The context whose server has the imports, one for each process that runs tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


@dataclass(frozen=True)
class Running:
    """A script that runs.

    Attributes:
        process: its process.
        folder: has the files `stdout` and `stderr`; removed by `wait`.
    """

    process: ForkServerProcess
    folder: tempfile.TemporaryDirectory[str]

    def wait(self, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Return its exit status and what it wrote; one that takes longer is killed."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        files = (Path(self.folder.name, name) for name in ("stdout", "stderr"))
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in files]
        code = self.process.exitcode
        assert code is not None
        self.process.close()
        self.folder.cleanup()
        return subprocess.CompletedProcess([], code, *texts)


def start_script(
    script: str | Path,
    *arguments: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> Running:
    """Start a Python file as `python script arguments` does.

    Args:
        script: the file; its folder is the first of `sys.path`.
        arguments: its `sys.argv[1:]`.
        cwd: the folder that it runs in.
        environment: its variables, besides those of this process; torch has read them before.
    """
    folder = tempfile.TemporaryDirectory()
    files = [str(Path(folder.name, name)) for name in ("stdout", "stderr")]
    # Sums of floats have other last bits on other numbers of threads.
    how = (str(cwd), {**os.environ, **(environment or {})}, files, torch.get_num_threads())
    process = _server().Process(target=_run, args=([str(script), *map(str, arguments)], *how))
    process.start()
    return Running(process, folder)


def run_script(
    script: str | Path,
    *arguments: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a Python file as `start_script` starts it."""
    return start_script(script, *arguments, cwd=cwd, environment=environment).wait()


def run_code(
    code: str,
    *arguments: str | Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c code arguments` does, but for the file that it then has."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "code.py")
        file.write_text(code)
        return run_script(file, *arguments, cwd=cwd, environment=environment)


def run_python(*arguments: str | Path, cwd: Path) -> str:
    """Run `python arguments`, where these are a file or `-c` and a program, each with arguments.

    Returns:
        Its text on the standard output.
    """
    first, *rest = arguments
    done = run_code(*map(str, rest), cwd=cwd) if first == "-c" else run_script(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_fresh(manifest: Path) -> None:
    """Run the modules of a manifest in a process that knows torch alone; see fresh.py."""
    code = "import sys; from pathlib import Path; from tests.fresh import main; "
    code += "main(Path(sys.argv[1]))"
    done = run_code(code, manifest, cwd=ROOT, environment={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]


def _run(
    command: list[str], cwd: str, environment: dict[str, str], files: list[str], threads: int
) -> None:
    """The forked process: as Python begins and ends."""
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None  # chosen anew, by this environment
    torch.set_num_threads(threads)
    sys.argv = command
    # A process that runs tests finds the package in the checkout; a script need not.
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept = [path for path in sys.path if path and Path(path) != ROOT]
    sys.path[:] = [str(Path(command[0]).parent), *named, *kept]
    try:
        runpy.run_path(command[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
