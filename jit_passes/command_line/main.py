"""The entry point: arguments, plugins, errors and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from .._starting import stop
from .._version import __version__
from ..errors import JitPassesError, JitPassesWarning, OutputError, with_type
from ..files import reason_of
from .check import check
from .compare import compare
from .conformance import conformance
from .export import export
from .files import forget_outputs, written
from .improve import improve
from .inspect import inspect
from .listings import passes, targets, versions
from .outcome import Exit, failure, note, warning
from .profile import merge, profile
from .quantize import quantize
from .report import report
from .sensitivity import sensitivity
from .tune import tune

EPILOG = """\b
Examples:
  jit-passes inspect model.pt
  jit-passes quantize model.pt --data calib.npz -o int8.pt
  jit-passes quantize model.pt --random 1x3x224x224 --target stock -o int8.pt
  jit-passes inspect int8.pt
  jit-passes compare model.pt int8.pt --data test.npz
  jit-passes report model.pt int8.pt --data test.npz -o report.html
  jit-passes sensitivity model.pt --data test.npz
  jit-passes tune model.pt --data test.npz --budget 30 -o layers.yaml
  jit-passes improve model.pt --data calib.npz -o int8.pt --recipe recipe.yaml

\b
Exit codes:
  0  done
  1  failed by a mistake of jit_passes or PyTorch
  2  the command line is wrong
  3  a model, data, a profile, a configuration, a metric or a plugin is wrong, or cannot be read;
     or the value of an option does not fit the model, the file's form or this machine
  4  a result, or the standard output, cannot be written
  5  compare --min-sqnr: the quantized model is not good enough; conformance, check: codes differ
  130, 143  interrupted, terminated: no result was written, unless stderr names it

Results go to stdout, everything else to stderr.
"""


@click.group(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="jit_passes")
def cli() -> None:
    """Quantize TorchScript models to int8, and look into them.

    A model is a .pt file of torch.jit.save, scripted or traced; its Python source is not needed.
    """


for command in (
    *(quantize, improve, inspect, compare, conformance, check, report),
    *(sensitivity, tune, profile, merge, export),
    *(passes, targets, versions),
):
    cli.add_command(command)


def run() -> None:
    """Run the command of this process, and end it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.TERMINATED))
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main()
        _ignore_signals()
    except KeyboardInterrupt as error:  # behind the command
        _ignore_signals()
        code = _code_of(error)
    sys.exit(_flushed(code))


def _ignore_signals() -> None:
    """Let the process end: all output is written."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _flushed(code: int) -> int:
    """Flush stdout; return the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python would try once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or _code_of(error)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: without the name of the program; None for the arguments of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    forget_outputs()
    debug = "--debug" in given
    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=JitPassesWarning)
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            result = cli.main(given, prog_name="jit-passes", standalone_mode=False)
            return int(result) if isinstance(result, int) else Exit.DONE
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # click's way to say so
                return _code_of(error.__context__)
            raise
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            return _code_of(error)


def _code_of(error: BaseException) -> Exit:
    """Tell the user about an error, and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return Exit(error.exit_code)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        done = ", ".join(map(str, written()))
        note(f"interrupted: {done} was written" if done else "interrupted: no result was written")
        return Exit.INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return Exit.USAGE
    if isinstance(error, BrokenPipeError):  # the reader of stdout has seen enough
        return Exit.OUTPUT
    if isinstance(error, JitPassesError):
        failure(error.command)
        return Exit.OUTPUT if isinstance(error, OutputError) else Exit.INPUT
    if isinstance(error, OSError):  # of the system; it names the file, but not stdout
        where = f"{error.filename}" if error.filename else "the standard output cannot be written"
        failure(f"{where}: {reason_of(error)}")
        return Exit.INPUT if error.filename else Exit.OUTPUT
    failure(with_type(error))
    note(
        "this is a mistake of jit_passes, or of PyTorch: run it again with --debug, and report "
        "that with the output of `jit-passes versions`"
    )
    return Exit.FAILED


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any
) -> None:
    if isinstance(message, JitPassesWarning):
        warning(message.command)
    else:
        note(warnings.formatwarning(message, category, filename, line).rstrip())
