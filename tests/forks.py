"""Processes of their own that begin with the imports already done.

Importing torch takes seconds, and a script that runs in a process of its own pays for it again.
Here a server, a fresh Python, imports the packages and nothing else; each script runs in a fork of
it.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Packages that scripts import. Of this package only what `import jit_passes` loads.
IMPORTED = ["torch", "jit_passes", "sklearn.datasets", "sklearn.model_selection", "tqdm"]


@functools.cache
def _server() -> ForkServerContext:
    """The context whose server has the imports, one for each process that runs tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_script(
    script: Path, *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python file as `python script arguments` does, in a fork with the imports done.

    Args:
        script: the file; its folder is the first of `sys.path`.
        arguments: its `sys.argv[1:]`.
        cwd: the folder that it runs in; its temporary files go there too.
        environment: variables besides those of this process; read after the imports.

    Returns:
        The exit status and what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "stdout"), Path(folder, "stderr")
        process = _server().Process(
            target=_run, args=(script, arguments, cwd, dict(environment or {}), files)
        )
        process.start()
        process.join()
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in files]
        code = process.exitcode
        process.close()
    return subprocess.CompletedProcess([str(script), *arguments], code or 0, *texts)


def _run(
    script: Path,
    arguments: tuple[str, ...],
    cwd: Path,
    environment: dict[str, str],
    files: tuple[Path, Path],
) -> None:
    """The forked process: as Python begins and ends."""
    for stream, file in zip((sys.stdout, sys.stderr), files, strict=True):
        written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, stream.fileno())
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = str(cwd)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        with contextlib.suppress(ValueError):
            sys.stdout.flush()
