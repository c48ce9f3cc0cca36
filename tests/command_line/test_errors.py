"""Mistakes of users: a message without a traceback, an exit code, and files as they were."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.command_line import main
from jit_passes.command_line.outcome import Exit
from tests.command_line.running import (  # noqa: F401  fixtures
    ROOT,
    Net,
    Run,
    command,
    images,
    model_fixture,
    run_fixture,
    saved,
    start_command,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "calib.npy"
    np.save(path, images().numpy())
    return path


def half_a_program(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/archive_format", "pt2")


def package(path: Path) -> None:
    """Write the names that a package of AOTInductor has."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/aotinductor/model/code.wrapper.so", b"")


# The contents of the file, and words of the message.
NO_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "empty": (lambda path: path.touch(), "no TorchScript model"),
    "text": (lambda path: path.write_text("no model"), "no TorchScript model"),
    "state_dict": (lambda path: torch.save(Net().state_dict(), path), "state dict"),
    "eager": (lambda path: torch.save(Net(), path), "eager module"),
    "legacy": (
        lambda path: torch.save({"x": 1}, path, _use_new_zipfile_serialization=False),
        "before torch 1.6",
    ),
    "export": (half_a_program, "torch.export that is damaged"),
    "aoti": (package, "a package of AOTInductor, compiled code"),
    # Of ModelProto the version of the format, and the name of what wrote it.
    "onnx": (lambda path: path.write_bytes(b"\x08\n\x12\x07pytorch"), "`jit-passes check model.pt"),
    "cut_off": (lambda path: path.write_bytes(saved(path).read_bytes()[:900]), "cut off"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
@pytest.mark.parametrize("name", ["quantize", "inspect", "profile", "export"])
def test_no_model(run: Run, kind: str, name: str, data: Path, tmp_path: Path) -> None:
    make, words = NO_MODELS[kind]
    path, out = tmp_path / "model.pt", tmp_path / "out"
    make(path)
    options = {
        "inspect": (),
        "export": ("--format", "tensorrt", "-o", out),
    }.get(name, ("--data", data, "-o", out))
    done = run(name, path, *options)
    assert done.code == Exit.INPUT and done.out == ""
    assert done.err.startswith(f"error: {path}") and words in done.err
    assert "Traceback" not in done.err and not out.exists()


def test_unreadable(run: Run, model: Path) -> None:
    model.chmod(0)
    if os.access(model, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in run("inspect", model).err


class OnCuda(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x + torch.zeros(8, device=torch.device("cuda")))


def test_cuda_only(run: Run, tmp_path: Path) -> None:
    """A device that is written into the graph: its operator and line."""
    path = saved(tmp_path / "m.pt", OnCuda())
    done = run("quantize", path, "--random", "2x8", "-o", tmp_path / "o.pt")
    assert done.code == Exit.INPUT
    assert "'zeros' (aten::zeros, " in done.err and "computes on cuda" in done.err
    assert "device=x.device" in done.err and len(done.err) < 600


def test_quantized_already(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "int8.pt", tmp_path / "again.pt"
    assert run("quantize", model, "--data", data, "-o", out).code == 0
    for name in ("quantize", "profile"):
        done = run(name, out, "--data", data, "-o", again)
        assert done.code == Exit.INPUT and "lowered already" in done.err


def test_messages_name_options(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """Advice is in words of the command; `run` looks for Python in all messages."""
    out, int8, ranges = tmp_path / "o", tmp_path / "int8.pt", tmp_path / "ranges.yaml"
    batches = tmp_path / "batches.pt"
    torch.save([[images(2)], [images(2)]], batches)
    assert run("quantize", model, "--data", data, "--target", "stock", "-o", int8).code == 0
    assert run("profile", model, "--data", data, "--target", "stock", "-o", ranges).code == 0
    other = saved(tmp_path / "other.pt", nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    commands: dict[tuple[object, ...], str] = {
        ("export", int8, "--format", "aimet", "-o", out): "--target reference",
        ("export", model, "--format", "aimet", "-o", out): "--target reference",
        ("compare", model, model, "--data", data): "`jit-passes quantize`",
        ("report", model, model, "--data", data, "-o", out): "`jit-passes quantize`",
        ("compare", other, int8, "--data", data): "made from this float model?",
        ("compare", int8, model, "--data", data): "the float model first",
        ("quantize", other, "--profile", ranges, "-o", out): "`jit-passes profile --target`",
        ("quantize", model, "--data", batches, "-o", out): "'images' is a list",
        ("quantize", int8, "--data", data, "-o", out): "start from the float model",
        ("inspect", int8, "--mode", "static"): "options change nothing in it",
    }
    for arguments, words in commands.items():
        done = run(*arguments)
        assert done.code == Exit.INPUT and words in done.err, (arguments, done.err)
    done = run("quantize", model, "--data", data, "--smooth", "0.5", "-o", out)
    assert done.code == 0 and "--smooth 0.5 changes nothing" in done.err


def test_saved_in_training_mode(run: Run, data: Path, tmp_path: Path) -> None:
    """The command takes the model in eval mode, and tells the user."""
    path = tmp_path / "m.pt"
    torch.jit.save(torch.jit.script(Net().train()), path)
    done = run("quantize", path, "--data", data, "-o", tmp_path / "o.pt")
    assert done.code == 0 and "training mode" in done.err


def test_operators_that_are_not_loaded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.command_line_test.twice(x)

    with torch.library._scoped_library("command_line_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        saved(path, Twice())
    done = run("inspect", path)
    assert done.code == Exit.INPUT
    assert "command_line_test::twice" in done.err and "--plugin" in done.err


def write_npz(path: Path, **arrays: Tensor) -> Path:
    np.savez(path, **{name: x.numpy() for name, x in arrays.items()})
    return path


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"imgs": images()}, ("no argument 'imgs'", "did you mean 'images'", "images: Tensor")),
        ({"factor": torch.ones(3)}, ("have no 'images'",)),
        ({"images": torch.zeros(4, 5, 8, 8)}, ("[4, 5, 8, 8]", "images: Tensor", "channels")),
        ({"arr_0": images(), "arr_1": images(), "arr_2": images()}, ("3 arguments",)),
        ({"images": images(), "factor": torch.ones(2)}, ("images 12", "factor 2")),
        ({"images": images() * torch.nan}, ("NaN",)),
    ],
    ids=["name", "missing", "shape", "too_many", "counts", "nan"],
)
def test_data_that_do_not_fit(
    run: Run, model: Path, arrays: dict[str, Tensor], words: tuple[str, ...], tmp_path: Path
) -> None:
    path = write_npz(tmp_path / "x.npz", **arrays)
    done = run("quantize", model, "--data", path, "-o", tmp_path / "o.pt")
    assert done.code == Exit.INPUT and not (tmp_path / "o.pt").exists()
    assert all(word in done.err for word in words), done.err
    assert done.err.startswith("error: ") and "Traceback" not in done.err


NO_NUMBERS = {
    "text": np.array(["a", "b"]),
    "bytes": np.array([b"a", b"b"]),
    "dates": np.array(["2024-01-01", "2024-01-02"], "datetime64[D]"),
    "spans": np.array([1, 2], "timedelta64[s]"),
    "records": np.zeros(2, [("a", "f4"), ("b", "i4")]),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_arrays_without_numbers(
    run: Run, model: Path, kind: str, suffix: str, tmp_path: Path
) -> None:
    """The message has the file and the name of the array."""
    path, array = tmp_path / f"x{suffix}", NO_NUMBERS[kind]
    if suffix == ".npz":
        np.savez(path, images=array)
    else:
        np.save(path, array)
    done = run("quantize", model, "--data", path, "-o", tmp_path / "o.pt")
    name = "images" if suffix == ".npz" else "x.npy"
    assert done.code == Exit.INPUT
    assert f"error: {path}: '{name}' holds " in done.err and "numbers or bool" in done.err


def test_objects_in_a_file_of_torch(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"images": "none"}, path)
    done = run("quantize", model, "--data", path, "-o", tmp_path / "o.pt")
    assert done.code == Exit.INPUT and f"{path}: 'images' is a str" in done.err


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files(run: Run, model: Path, data: Path, seed: int, tmp_path: Path) -> None:
    """Bytes that are others, anywhere: never a mistake of ours, and never a traceback."""
    generator = np.random.default_rng(seed)
    reference, ranges, out = (tmp_path / name for name in ("ref.pt", "ranges.yaml", "out"))
    how = ("--data", data)
    assert run("quantize", model, *how, "--target", "reference", "-o", reference).code == 0
    assert run("profile", model, *how, "-o", ranges).code == 0
    npz = write_npz(tmp_path / "x.npz", images=images())
    commands: dict[Path, tuple[object, ...]] = {
        model: ("inspect", model),
        reference: ("export", reference, "--format", "aimet", "-o", out),
        ranges: ("quantize", model, "--profile", ranges, "--target", "reference", "-o", out),
        npz: ("quantize", model, "--data", npz, "--target", "reference", "-o", out),
    }
    for path, command_ in commands.items():
        whole = path.read_bytes()
        damaged = bytearray(whole)
        for place in generator.integers(len(whole), size=int(generator.choice([1, 3, 30]))):
            damaged[place] = generator.integers(256)
        for content in (bytes(damaged), whole[: int(generator.integers(len(whole)))]):
            path.write_bytes(content)
            done = run(*command_)
            assert done.code in (Exit.DONE, Exit.INPUT), done.err
            assert "Traceback" not in done.err
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nrules:\n  - modul: head\n    keep_float: true\n", ("3:5", "'modul'")),
        ("version: 1\nrules:\n  - module: haed\n    keep_float: true\n", ("'head'",)),
        ("version: 1\nglobal: [\n", ("layers.yaml",)),
    ],
    ids=["key", "name", "yaml"],
)
def test_configuration_with_a_typo(
    run: Run, model: Path, data: Path, text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    config = tmp_path / "layers.yaml"
    config.write_text(text)
    for name in ("quantize", "inspect"):
        options = ("--data", data, "-o", tmp_path / "o.pt") if name == "quantize" else ()
        done = run(name, model, "--config", config, *options)
        assert done.code == Exit.INPUT and all(word in done.err for word in words), done.err
    missing = run("inspect", model, "--config", tmp_path / "none.yaml")
    assert missing.code == Exit.INPUT and "none.yaml cannot be read" in missing.err


def test_strict(run: Run, tmp_path: Path) -> None:
    """An operator that would stay in float is an error, and nothing is written."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(self.fc(x), x.double().float().transpose(1, 2))

    path, out = saved(tmp_path / "m.pt", Mixed()), tmp_path / "o.pt"
    options = ("--random", "2x4x8", "--target", "stock", "-o", out)
    assert run("quantize", path, *options).code == 0
    out.unlink()
    done = run("quantize", path, *options, "--strict")
    assert done.code == Exit.INPUT and "strict:" in done.err and not out.exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "static"),
        ("--smooth", "1.5"),
        ("--smooth", "much"),
        ("--data", "x.npy", "--random", "1x3x8x8"),
        ("--random", "1x3x8x8", "--profile", "p.yaml"),
        ("--random", "1x3x8x8", "--target", "x87"),
        ("--random", "1x3x8x8", "--target", "stock:engin=onednn"),
        ("--random", "1x3x8x8", "--method", "backward"),
        ("--random", "1x3x8x8", "--mean", "0"),
        ("--random", "1x3x8x8", "--batch-size", "0"),
        ("--random", "1x3x8x8", "--no-such-option"),
        ("--random", "3xfoo"),
    ],
    ids=" ".join,
)
def test_usage(run: Run, model: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    done = run("quantize", model, *options, "-o", tmp_path / "o.pt")
    assert done.code == Exit.USAGE and "--help" in done.err and "Traceback" not in done.err
    assert not (tmp_path / "o.pt").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("fixed_point:rounding=[", "the value of rounding is a number, a word, true, false "),
        ("fixed_point:steps=2026-02-30", "the value of steps is a number, a word, true"),
        ("fixed_point:rounding=floor", "double_round, not 'floor': 'floor' of a configuration is"),
        ("fixed_point:rounding=half_evn", "not 'half_evn': did you mean 'half_even' "),
        ("fixed_point:requantization=floor", "requantization is one of multiplier, shift, not "),
        ("fixed_point:accumulator_bits=7", "accumulator_bits is 16, 24, 32, 48, not 7"),
        ("fixedpoint", "there is none of that name: did you mean 'fixed_point'?"),
        ("fixedpoint:rounding=half_up", "there is none of that name: did you mean 'fixed_point'?"),
        ("nope", "there is none of that name: there are 'auto', 'fixed_point', 'inductor'"),
    ],
)
def test_targets_that_are_none(
    run: Run, model: Path, target: str, words: str, tmp_path: Path
) -> None:
    """A usage error says which target and why, and names what is near."""
    out = tmp_path / "o.pt"
    done = run("quantize", model, "--random", "1x3x8x8", "--target", target, "-o", out)
    assert done.code == Exit.USAGE and "mistake of jit_passes" not in done.err
    assert f"--target {target}: " in done.err and words in done.err and not out.exists()


def test_messages_say_what_is_missing(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """Usage errors of other commands, in words of their options."""
    metrics, out = tmp_path / "metrics.py", tmp_path / "out"
    metrics.write_text("def one(model):\n    return 1.0\n")
    both = "give --data or --random, or a --metric"
    commands: dict[tuple[object, ...], str] = {
        ("tune", model, "--budget", 40): both,
        ("sensitivity", model): both,
        ("tune", model, "--budget", 40, "--metric", f"{metrics}:none"): "no function 'none'",
        ("improve", model, "-o", out): "give --data or --random, on which steps are tried",
        ("compare", model, model): "give --data or --random, on which both models run",
        ("targets", "stokc"): "Error: stokc: there is none of that name: did you mean 'stock'?",
        ("export", model, "--to", "c", "--engine", "fixed_point", "--data", data, "-o", out): (
            "quantize with --target fixed_point first"
        ),
        ("export", model, "--to", "vectors", "--engine", "x86", "--data", data, "-o", out): (
            "quantize with --target fixed_point first"
        ),
        ("export", model, "--format", "tensorrt", "--data", tmp_path / "none.npz", "-o", out): (
            "leave out --data and --random"
        ),
    }
    for arguments, words in commands.items():
        done = run(*arguments)
        assert done.code == Exit.USAGE and words in done.err, (arguments, done.err)
    assert not out.exists()


def test_no_integers_for_an_engine(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """The error has the reason, and no warning repeats it."""
    config, out = tmp_path / "wide.yaml", tmp_path / "out"
    config.write_text("version: 1\nglobal:\n  input: {bits: 16}\n")
    given = ("--engine", "inductor", "--config", config, "--data", data, "-o", out)
    done = run("export", model, "--to", "pt2", *given)
    assert done.code == Exit.INPUT and not out.exists()
    assert done.err.startswith("error: nothing would be on integers in inductor: ")
    assert done.err.count("is to be ") == 1 and "warning" not in done.err
    config.write_text("version: 1\nrules:\n- {module: head, input: {bits: 16}}\n")
    done = run("export", model, "--to", "pt2", *given)
    assert done.code == Exit.DONE and "warning: the target cannot quantize" in done.err, done.err


def test_a_model_for_an_engine_is_not_quantized_again(
    run: Run, model: Path, data: Path, tmp_path: Path
) -> None:
    """Without --engine it is written; a lowered model is no better without."""
    made, out = tmp_path / "made.pt", tmp_path / "out.pt2"
    given = ("--to", "pt2", "--data", data, "-o", out)
    for target in ("inductor", "stock"):
        assert run("quantize", model, "--data", data, "--target", target, "-o", made).code == 0
        done = run("export", made, "--engine", "inductor", *given)
        assert done.code == Exit.INPUT and "start from the float model" in done.err
        assert ("or leave out --engine" in done.err) is (target == "inductor")
        done = run("export", made, *given)
        assert (done.code == 0) is (target == "inductor") is out.exists(), done.err
        out.unlink(missing_ok=True)


def test_no_command(run: Run) -> None:
    assert run().code == Exit.USAGE
    assert run("quantise").code == Exit.USAGE
    assert run("--version").out == f"jit_passes, version {jit_passes.__version__}\n"


@pytest.mark.parametrize("which", ["model", "data", "link"])
def test_inputs_are_not_overwritten(
    run: Run, model: Path, data: Path, which: str, tmp_path: Path
) -> None:
    before = model.read_bytes(), data.read_bytes()
    out = {"model": model, "data": data, "link": tmp_path / "link.pt"}[which]
    if which == "link":
        out.hardlink_to(model)
    done = run("quantize", model, "--data", data, "-o", out)
    assert done.code == Exit.INPUT and "never overwritten" in done.err
    assert (model.read_bytes(), data.read_bytes()) == before


def test_output_that_cannot_be(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """The error comes before the work begins: there are no messages about data here."""
    for out, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "o.pt", "there is no folder")):
        done = run("quantize", model, "--data", tmp_path / "none.npy", "-o", out)
        assert done.code == Exit.OUTPUT and words in done.err


@contextlib.contextmanager
def limit_of_files(size: int) -> Iterator[None]:
    """Let the system refuse to write beyond so many bytes of a file, as a full disk does."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.parametrize("name", ["quantize", "profile", "export", "report", "tune", "resume"])
def test_full_disk(
    name: str, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old file stays, and no part of a new one is left.

    Messages of the command are kept in memory, since files of pytest have the limit too.
    """
    folder = tmp_path / "out"
    folder.mkdir()
    out, reference = folder / "file", tmp_path / "reference.pt"
    out.write_text("" if name == "resume" else "old")
    reads: tuple[object, ...] = ("--data", data)
    if name in ("export", "report"):
        target = ("--target", "reference", "-o", reference)
        assert main([str(given) for given in ("quantize", model, *reads, *target)]) == 0
    budget = ("--budget", 99, "--float-only", "--target", "reference")
    arguments: dict[str, tuple[object, ...]] = {
        "export": ("export", reference, "--format", "nni", "-o", out),
        "report": ("report", model, reference, *reads, "-o", out),
        "tune": ("tune", model, *reads, *budget, "-o", out),
        "resume": ("tune", model, *reads, *budget, "--resume", out),
    }
    given = [str(argument) for argument in arguments.get(name, (name, model, *reads, "-o", out))]
    capsys.readouterr()
    with limit_of_files(150):
        code = main(given)
    said = capsys.readouterr().err
    assert code == Exit.OUTPUT, said
    assert f"error: {out} cannot be written: " in said and "Traceback" not in said
    assert out.read_text() in ("", "old") and [path.name for path in folder.iterdir()] == ["file"]


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("which", ["help", "quantize"])
def test_standard_output_that_is_full(which: str, model: Path, tmp_path: Path) -> None:
    """The error comes once, with the exit code of results that cannot be written.

    Python closes the standard output as it ends, so this takes processes.
    """
    out = tmp_path / "int8.pt"
    arguments: dict[str, tuple[object, ...]] = {
        "help": ("--help",),
        "quantize": ("quantize", model, "--random", "2x3x8x8", "--target", "stock", "-o", out),
    }
    with FULL.open("w") as full:
        done = subprocess.run(
            command(*arguments[which]), stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    assert done.returncode == Exit.OUTPUT
    last = done.stderr.splitlines()[-1]
    assert last == "error: the standard output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("passes",), ("inspect", "MODEL", "--json")], ids=str)
def test_results_for_a_standard_output_that_is_full(
    arguments: tuple[str, ...],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table and JSON, in this process."""
    full = os.open(FULL, os.O_WRONLY)
    # Unbuffered, so that closing it has nothing left to write.
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.FileIO(full, "w"), write_through=True))
    assert main([argument.replace("MODEL", str(model)) for argument in arguments]) == Exit.OUTPUT
    said = capsys.readouterr().err
    assert said == "error: the standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_standard_error_that_is_full(tmp_path: Path) -> None:
    """Nobody reads what it would say; the exit code is what it is."""
    with FULL.open("w") as full:
        done = subprocess.run(
            command("inspect", tmp_path / "none.pt"), stdout=subprocess.PIPE, stderr=full, cwd=ROOT
        )
    assert done.returncode == Exit.INPUT


@pytest.mark.parametrize("name", ["quantize", "profile", "export", "report", "tune", "resume"])
@pytest.mark.parametrize("kind", ["folder", "no_folder", "long"])
def test_outputs_that_cannot_be(
    run: Run, name: str, kind: str, model: Path, data: Path, tmp_path: Path
) -> None:
    """Each command checks its outputs before any work: the data are not even read."""
    out = {"folder": tmp_path, "no_folder": tmp_path / "no" / "o", "long": tmp_path / ("a" * 300)}
    how, budget = ("--data", tmp_path / "none.npy"), ("--budget", 9, "--float-only")
    arguments: dict[str, tuple[object, ...]] = {
        "export": ("export", model, "--format", "nni", "-o", out[kind]),
        "report": ("report", model, model, *how, "-o", out[kind]),
        "tune": ("tune", model, *how, *budget, "-o", out[kind]),
        "resume": ("tune", model, "--data", data, *budget, "--resume", out[kind]),
    }
    done = run(*arguments.get(name, (name, model, *how, "-o", out[kind])))
    assert done.code == Exit.OUTPUT, done.err
    assert str(out[kind]) in done.err and "Traceback" not in done.err


def interrupted(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command with some code ahead of it, as `python -m jit_passes` is called.

    The code is in a module that Python imports as it starts, and sends a signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(code)
        path = os.pathsep.join((folder, str(ROOT), os.environ.get("PYTHONPATH", "")))
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path}, check=False,
            # Background jobs of shells, and what they start, ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip


WHEN_IMPORTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{sent})
sys.meta_path.insert(0, Finder())
"""
AT_EXIT = """
import atexit, os, signal
atexit.register(lambda: os.kill(os.getpid(), signal.{sent}))
"""


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_signal_while_torch_is_imported(sent: str, model: Path) -> None:
    done = interrupted(WHEN_IMPORTED.format(sent=sent), "inspect", model)
    number = signal.Signals[sent].value
    assert done.returncode in (128 + number, -number) and done.stdout == ""
    assert done.stderr == ("interrupted: no result was written\n" if sent == "SIGINT" else "")


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_signal_while_python_ends(sent: str, model: Path, tmp_path: Path) -> None:
    """The result is there, and nothing says otherwise."""
    out = tmp_path / "int8.pt"
    quantize = ("quantize", model, "--random", "2x3x8x8", "--target", "stock", "-o", out)
    done = interrupted(AT_EXIT.format(sent=sent), *quantize)
    assert done.returncode == Exit.DONE and out.exists()
    assert "interrupted" not in done.stderr and "Traceback" not in done.stderr


def test_an_interruption_behind_the_result(
    run: Run, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says that the file was written, and only that of this command."""
    out, other = tmp_path / "int8.pt", tmp_path / "other.pt"
    quantize = ("quantize", model, "--data", data, "--target", "stock", "-o")
    assert run(*quantize, other).code == 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jit_passes.command_line.quantize.show", interrupt)
    done = run(*quantize, out)
    assert done.code == Exit.INTERRUPTED and out.exists()
    assert f"interrupted: {out} was written" in done.err and str(other) not in done.err


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
def test_interrupt(sent: signal.Signals, code: int, model: Path, tmp_path: Path) -> None:
    """In mid-calibration: a plugin says when it has begun."""
    (tmp_path / "out").mkdir()
    out, begun = tmp_path / "out" / "int8.pt", tmp_path / "begun"
    out.write_text("old")
    plugin = tmp_path / "tells.py"
    plugin.write_text(
        "import jit_passes.command_line.data as data\n"
        "check = data.check_arguments\n"
        "def tell(*arguments):\n"
        f"    open({str(begun)!r}, 'w').close()\n"
        "    check(*arguments)\n"
        "data.check_arguments = tell\n"
    )
    options = ("--random", "8x3x8x8", "--batches", 10**7, "--plugin", plugin, "-o", out)
    running = start_command(tmp_path, "quantize", model, *options)
    deadline = time.monotonic() + 60
    while not begun.exists() and running.process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert begun.exists()
    assert running.process.pid is not None
    os.kill(running.process.pid, sent)
    done = running.wait(timeout=60)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert out.read_text() == "old" and [p.name for p in out.parent.iterdir()] == ["int8.pt"]


def test_interrupted_and_resumed(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """Scores that were measured stay, the user is told where, and the same command goes on."""
    scores, metric, go = (tmp_path / name for name in ("scores.jsonl", "metrics.py", "go"))
    # The third score waits for the signal, however late that comes.
    metric.write_text(
        "import os, time\n"
        "def slow(model):\n"
        f"    scores, go = {str(scores)!r}, {str(go)!r}\n"
        "    known = len(open(scores).readlines()) if os.path.exists(scores) else 0\n"
        "    time.sleep(60 if known >= 3 and not os.path.exists(go) else 0)\n"
        "    return 1.0\n"
    )
    arguments = (
        "sensitivity", model, "--data", data, "--target", "reference", "--resume", scores,
        "--metric", f"{metric}:slow", "--json",
    )  # fmt: skip
    running = start_command(tmp_path, *arguments)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.process.is_alive():
        if scores.exists() and len(scores.read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGINT)
    stopped = running.wait(timeout=60)
    assert stopped.returncode == Exit.INTERRUPTED and stopped.stdout == ""
    assert "Traceback" not in stopped.stderr
    said = f"{scores} has the scores so far: the same command goes on from there"
    assert said in stopped.stderr
    measured = len(scores.read_text().splitlines()) - 1
    go.touch()
    done = run(*arguments)
    assert done.code == Exit.DONE, done.err
    assert len(scores.read_text().splitlines()) - 1 == measured + done.json["evaluations"]
    assert measured >= 2 and done.json["evaluations"] >= 1


def test_debug_shows_the_traceback(run: Run, tmp_path: Path) -> None:
    assert "Traceback" not in run("inspect", tmp_path / "none.pt").err
    done = run("inspect", tmp_path / "none.pt", "--debug")
    assert done.code == Exit.INPUT and "Traceback" in done.err and "error: " in done.err


@pytest.mark.parametrize("kind", [TypeError, RuntimeError])
def test_a_mistake_of_ours(
    kind: type[Exception], run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake has a code of its own, and its message says how to report it."""

    def fail(*arguments: object, **options: object) -> None:
        raise kind("planted")

    monkeypatch.setattr("jit_passes.command_line.inspect.run_inspect", fail)
    done = run("inspect", model)
    assert done.code == Exit.FAILED and "--debug" in done.err
    assert f"error: {kind.__name__}: planted\n" in done.err


def test_reader_that_has_seen_enough(model: Path) -> None:
    """`jit-passes passes | head -1` ends without a traceback."""
    line = " ".join(command("passes")) + " | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""
