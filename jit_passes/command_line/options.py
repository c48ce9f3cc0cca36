"""Options that several commands have."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
import yaml

from .. import _C
from ..configuration.options import MODES
from ..errors import ArgumentError, JitPassesError, nearest
from ..passes.plugins import load_plugins
from ..profile.form import shard_of
from ..report.provenance import provenance
from ..targets import Target, resolve_target, targets
from .data import Data, data_of, random_data
from .images import Images
from .outcome import note, warning

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)
MODEL = click.argument("model", type=FILE)
RANDOM_BATCHES = 8


class TargetType(click.ParamType):  # type: ignore[type-arg]
    """A target by its name, with options: `stock`, `stock:engine=onednn,reduce_range=true`."""

    name = "target"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the text; targets of plugins are not known yet."""
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        names = ("auto", *Target.named())
        return [click.shell_completion.CompletionItem(n) for n in names if n.startswith(incomplete)]


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them: `0.485,0.456,0.406`."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            found = tuple(map(float, value.split(",")))
        except ValueError:
            self.fail(f"{value!r} is not numbers with commas between them: 0.485,0.456,0.406")
        if len(found) not in (1, 3):
            self.fail(f"{value!r} is {len(found)} numbers: give one for each channel, 1 or 3")
        return found


class Shard(click.ParamType):  # type: ignore[type-arg]
    """A part of the data: `3/8`."""

    name = "shard"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = shard_of(value)
        if found is None:
            self.fail(f"{value!r} is no shard: give a number and how many there are, 3/8")
        return found


class Strength(click.ParamType):  # type: ignore[type-arg]
    """A number from 0 to 1, `search`, `auto` or `none`."""

    name = "strength"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in ("auto", "none", "search"):
            return value
        try:
            found = float(value)
        except ValueError:
            self.fail(f"{value!r} is no strength: give auto, none, search, or a number from 0 to 1")
        if not 0 <= found <= 1:
            self.fail(f"{value} is not between 0 and 1")
        return found


class Size(click.ParamType):  # type: ignore[type-arg]
    """Height and width: `224`, `320x224`."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        sides = value.split("x")
        if len(sides) > 2 or not all(side.isdigit() and int(side) for side in sides):
            self.fail(f"{value!r} is no size: give 224, or height and width, 320x224")
        return int(sides[0]), int(sides[-1])


def _options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


TARGET = click.option(
    "--target", type=TargetType(), default="auto", show_default=True,
    help="Backend: a name of `jit-passes targets`, with options after a colon, "
    "stock:engine=onednn.",
)  # fmt: skip
FORMS_OF = click.option(
    "--target", type=TargetType(), default=None,
    help="Write down values of the forms in which this backend computes operators.",
)  # fmt: skip
METHOD = click.option("--method", default="forward", show_default=True, help="Method of the model.")
CONFIG = click.option("--config", type=FILE, help="YAML with options layer by layer.")
MODE = click.option(
    "--mode", type=click.Choice(MODES),
    help="For layers without a mode in --config; dynamic and weight_only need no data. By "
    "default auto: by the graph.",
)  # fmt: skip
METRIC = click.option(
    "--metric", metavar="FILE.py:FUNCTION",
    help="A function of yours that takes a model and returns a number, larger is better. Default: "
    "the SQNR of the output on the data.",
)  # fmt: skip
RESUME = click.option(
    "--resume", type=FILE,
    help="Write scores to this file, and go on from it after an interruption.",
)  # fmt: skip
WORKERS = _options(
    click.option(
        "--workers", type=click.IntRange(1), default=1, show_default=True,
        help="Processes that measure, with an equal share of the cores each.",
    ),
    click.option(
        "--dask", metavar="ADDRESS",
        help="Let the workers of a cluster of Dask measure: tcp://host:8786, its scheduler.",
    ),
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
DATA = _options(
    click.option(
        "--data", type=FILE,
        help="Samples: .npy, .npz, .pt, .safetensors, .tar, or a folder of these, or of images.",
    ),
    click.option(
        "--random", "random", multiple=True, metavar="[NAME=]SHAPE[:DTYPE]",
        help="Random numbers in place of data, 1x3x224x224; once for each argument. Ranges are "
        "made up.",
    ),
    click.option(
        "--batch-size", type=click.IntRange(1), default=32, show_default=True,
        help="Samples in a batch. Four batches are needed to round weights and correct biases.",
    ),
    click.option("--batches", type=click.IntRange(1), help="Take that many batches at most."),
    click.option("--image-size", type=Size(), help="For images: 224, or 320x224."),
    click.option("--mean", type=Numbers(), help="For images: 0.485,0.456,0.406."),
    click.option("--std", type=Numbers(), help="For images: 0.229,0.224,0.225."),
    click.option("--grey", is_flag=True, help="For images: one channel."),
    click.option(
        "--no-progress", "progress", is_flag=True, help="Draw no progress bar.",
        callback=lambda _, __, given: False if given else None,  # None: on terminals only
    ),
)  # fmt: skip


def common(command: Command) -> Command:
    """Add the options of all commands: plugins, and how errors are shown."""

    @functools.wraps(command)
    def run(*args: Any, plugin: tuple[str, ...], **kwargs: Any) -> Any:
        load_plugins()
        for name in plugin:
            load_plugin(name)
        return command(*args, **kwargs)

    return _options(
        click.option(
            "--plugin", multiple=True, metavar="MODULE",
            help="Import a module, .py or .so with targets, passes or operators first.",
        ),
        click.option(
            "--debug", is_flag=True, expose_value=False, help="Show the traceback of errors."
        ),
    )(run)  # type: ignore[return-value]  # fmt: skip


def load_plugin(name: str) -> None:
    """Import a module by its name or file, or load a library with operators.

    Raises:
        JitPassesError: it cannot be.
    """
    try:
        if Path(name).suffix == ".so":
            torch.ops.load_library(name)  # type: ignore[no-untyped-call]
        else:
            _imported(name)
        _C.raise_kept_errors()
    except Exception as error:
        raise JitPassesError(
            f"--plugin {name} does not import: {type(error).__name__}: {error}"
        ) from error


class NamedMetric:
    """A metric of a module or file, which processes import anew under its text.

    Args:
        text: `metrics.py:accuracy`.
        function: that the text stands for.
    """

    def __init__(self, text: str, function: Callable[[torch.jit.ScriptModule], Any]) -> None:
        self._text, self._function = text, function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, model: torch.jit.ScriptModule) -> Any:
        return self._function(model)

    def __reduce__(self) -> tuple[Any, ...]:
        return metric_of, (self._text,)


def metric_of(text: str | None) -> Callable[[torch.jit.ScriptModule], Any] | None:
    """Return the function that `metrics.py:accuracy` or `package.metrics:accuracy` stands for.

    Raises:
        click.UsageError: the text has another form, or the function does not exist.
        JitPassesError: its module does not import.
    """
    if text is None:
        return None
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise click.UsageError(f"--metric {text}: give FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        found = getattr(_imported(module), name, None)
    except Exception as error:
        raise JitPassesError(
            f"--metric {text} does not import: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise click.UsageError(f"--metric {text}: {module} has no function '{name}'")
    return NamedMetric(text, found)


@contextlib.contextmanager
def resumable(path: Path | None) -> Iterator[None]:
    """Say where the scores are, if the work is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if path is not None and path.exists():
            note(f"{path} has the scores so far: the same command goes on from there")
        raise


def _imported(name: str) -> Any:
    """Import a module by its name or file."""
    path = Path(name)
    if path.suffix == ".py":
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(Path.cwd()))


def target_of(text: str, option: str = "--target", offered: Iterable[str] | None = None) -> Target:
    """Return the target that a text stands for.

    Args:
        text: its name, with options.
        option: that the text was given to; "" for an argument.
        offered: the names that the message offers for an unknown name; None for all.

    Raises:
        click.UsageError: there is none, or it does not take these options.
    """
    name, _, options = text.partition(":")
    where = f"{option} {text}".lstrip()
    if name in targets and options:
        pairs = [pair.partition("=") for pair in options.split(",")]
        try:
            return Target.make(name, **{key: _value_of(key, value) for key, _, value in pairs})
        except ArgumentError as error:
            raise click.UsageError(f"{where}: {error}") from error
    if text != "auto" and text not in targets:
        known = list(("auto", *Target.named()) if offered is None else offered)
        close = nearest(name, known, len(known))
        raise click.UsageError(f"{where}: there is none of that name: {close}")
    return resolve_target(text)


def _value_of(key: str, text: str) -> Any:
    """Return the value that a text in YAML stands for.

    Raises:
        ArgumentError: it stands for none.
    """
    try:
        return yaml.safe_load(text)
    except Exception as error:  # a date without that day, say, is no YAMLError
        raise ArgumentError(
            f"the value of {key} is a number, a word, true, false or null, not {text!r}"
        ) from error


def given_data(
    model: torch.jit.ScriptModule, method: str, data: Path | None, random: tuple[str, ...],
    batch_size: int, batches: int | None, image_size: tuple[int, int] | None,
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, grey: bool,
    shard: tuple[int, int] | None = None,
) -> Data | None:  # fmt: skip
    """Return the batches that the options stand for; None if they say nothing of data.

    Raises:
        click.UsageError: they contradict each other.
        JitPassesError: the data cannot be read.
    """
    if data is not None and random:
        raise click.UsageError("--data or --random, not both")
    if any(value is not None for value in (image_size, mean, std)) or grey:
        if image_size is None or mean is None or std is None:
            raise click.UsageError("images need all three: --image-size, --mean and --std")
        if data is None or not data.is_dir():
            raise click.UsageError("--image-size, --mean and --std are for a folder of images")
        images = Images(image_size, mean, std, 1 if grey else 3)
    else:
        images = None
    if not model._c._has_method(method):
        names = ", ".join(sorted(model._c._method_names()))
        raise click.UsageError(f"--method {method}: the model has {names or 'none'}")
    if shard is not None and data is None:
        raise click.UsageError("--shard is a part of --data")
    if random:
        return random_data(random, batches or RANDOM_BATCHES, getattr(model, method))
    if data is None:
        return None
    return data_of(data, batch_size, batches, images, getattr(model, method), shard or (1, 1))


def needed_data(model: torch.jit.ScriptModule, method: str, why: str, **data: Any) -> Data:
    """Return the batches that the options stand for; see `given_data`.

    Raises:
        click.UsageError: they say nothing of data; `why` is the message.
    """
    found = given_data(model, method, **data)
    if found is None:
        raise click.UsageError(why)
    return found


def data_to_compare(
    model: torch.jit.ScriptModule, quantized: torch.jit.ScriptModule, method: str, **data: Any
) -> tuple[Data, str]:
    """Return batches for a model and a quantized one, and the method that both run.

    The method comes from the report of the quantized model, or else from the caller.
    """
    made = provenance(quantized, method)
    method = made["method"] if made is not None else method
    why = "give --data or --random, on which both models run"
    return needed_data(model, method, why, **data), method


def words_of(data: Mapping[str, Any]) -> list[str]:
    """Return the words of a command that name the data, as `given_data` takes them."""
    words = [] if data["random"] else ["--data", str(data["data"] or "DATA")]
    words += [word for text in data["random"] for word in ("--random", text)]
    if data["image_size"] is not None:
        words += ["--image-size", "x".join(map(str, data["image_size"]))]
        words += [w for n in ("mean", "std") for w in (f"--{n}", ",".join(map(str, data[n])))]
        words += ["--grey"] * data["grey"]
    return words


def warn_of_random(random: tuple[str, ...]) -> None:
    """Tell that ranges of random data are made up."""
    if random:
        warning(
            "the data are random, so ranges are made up: good for sizes and timings, not for use"
        )
