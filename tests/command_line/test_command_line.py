"""The commands do what the functions of the same names do, and their files hold what they say."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jit_passes
import jit_passes.command_line
from jit_passes.command_line.main import cli, main
from jit_passes.errors import without_folders
from jit_passes.targets import Stock
from tests.command_line.running import (  # noqa: F401  fixtures
    ROOT,
    Run,
    command,
    images,
    model_fixture,
    run_fixture,
    run_process,
)
from tests.processor import bits_here


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "calib.npz"
    np.savez(path, images=images().numpy())
    return path


def same(one: torch.jit.ScriptModule, other: torch.jit.ScriptModule) -> bool:
    x = images()
    assert one(x).abs().sum() > 0
    return torch.equal(one(x), other(x))


def test_command_and_package_are_installed(tmp_path: Path) -> None:
    """Beside the interpreter, and outside of the project's folder."""
    path = Path(sys.executable).with_name("jit-passes")
    elsewhere = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options: dict[str, Any] = {"cwd": tmp_path, "env": elsewhere, "capture_output": True}
    told = subprocess.run([path, "--version"], **options, text=True)
    assert told.returncode == 0 and jit_passes.__version__ in told.stdout
    where = "import importlib.util; print(importlib.util.find_spec('jit_passes').origin)"
    found = subprocess.run([sys.executable, "-c", where], **options, text=True, check=True)
    assert Path(found.stdout.strip()) == Path(jit_passes.__file__)


@pytest.mark.parametrize("target", ["stock", "reference", "x86", "stock:reduce_range=true"])
def test_quantize(run: Run, model: Path, data: Path, target: str, tmp_path: Path) -> None:
    """The file computes what quantize_script makes, to the bit, and stdout is its coverage."""
    out = tmp_path / "int8.pt"
    done = run("quantize", model, "--data", data, "--target", target, "--batch-size", 5, "-o", out)
    assert done.code == 0, done.err
    name, _, options = target.partition(":")
    backend = Stock(reduce_range=True) if options else name
    expected = jit_passes.quantize_script(
        torch.jit.load(model), list(images().split(5)), target=backend
    )
    found = torch.jit.load(out)
    assert same(found, expected)
    lines = done.out.splitlines()
    assert "\n".join(lines[:-2]) == str(jit_passes.coverage(found))
    assert lines[-2].startswith(f"{out}: ") and str(model) in lines[-2]
    cost, _, closer = lines[-1].partition("; value by value: ")
    float_model, first = torch.jit.load(model), images()[:5]
    measured = jit_passes.compare(float_model, found, [first]).sqnr
    assert cost == f"SQNR of the output on the first batch: {measured:.1f} dB"
    assert closer == f"jit-passes compare {model} {out} --data {data}"
    assert run(*closer.split()[1:]).code == 0
    made = jit_passes.provenance(found)
    assert made is not None and made["batches"] == 3 and made["target"]["name"] == name


def test_mode(run: Run, model: Path, tmp_path: Path) -> None:
    """Inputs that are quantized as the model runs need no data."""
    output = tmp_path / "int8.pt"
    done = run("quantize", model, "--mode", "dynamic", "--target", "stock", "-o", output, "--json")
    assert done.code == 0, done.err
    rows = {row["name"]: row for row in done.json["operators"]}
    assert (rows["head:linear"]["mode"], rows["conv:conv2d"]["dtype"]) == ("dynamic", "float")
    inspected = run("inspect", model, "--mode", "dynamic", "--target", "stock")
    assert inspected.out.splitlines()[-1].split()[-2:] == [bits_here("w8a8"), "dynamic"]
    assert run("quantize", model, "--mode", "dynamo", "-o", output).code == 2


def test_without_data(run: Run, model: Path, tmp_path: Path) -> None:
    """Operators that need none are quantized, and a warning says which stay in float."""
    output = tmp_path / "int8.pt"
    done = run("quantize", model, "--target", "stock", "--smooth", "none", "-o", output, "--json")
    assert done.code == 0 and "1 operator stays in float without data" in done.err
    rows = {row["name"]: row for row in done.json["operators"]}
    assert rows["head:linear"]["mode"] == "dynamic" and rows["head:linear"]["why"] == "no data"
    assert "give batches or a profile" in rows["conv:conv2d"]["reason"]
    assert done.json["made"]["mode"] == "auto"


def test_profile_stands_for_data(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """Both ways give the same model, and the profile's digest is in it."""
    out, other, ranges = (tmp_path / name for name in ("a.pt", "b.pt", "ranges.yaml"))
    made = run("profile", model, "--data", data, "-o", ranges, "--json")
    assert made.code == 0, made.err
    assert run("quantize", model, "--data", data, "-o", out).code == 0
    assert run("quantize", model, "--profile", ranges, "-o", other).code == 0
    assert same(torch.jit.load(out), torch.jit.load(other))
    digest = jit_passes.Profile.load(ranges).digest
    assert made.json["digest"] == digest and made.json["values"]["images"][0] < -2
    named = run("profile", model, "--data", data, "--target", "stock", "-o", ranges, "--json")
    assert named.code == 0 and named.json["graph"] == made.json["graph"]
    provenance = run("inspect", other, "--json").json["made"]
    assert provenance["profile"] == digest and "batches" not in provenance


def test_inspect_float(run: Run, model: Path) -> None:
    done = run("inspect", model, "--target", "stock", "--paths")
    prediction = jit_passes.inspect(torch.jit.load(model), target="stock")
    assert done.code == 0 and done.out.rstrip() == str(prediction)
    rows = run("inspect", model, "--target", "stock", "--json").json["operators"]
    assert [row["name"] for row in rows] == [row.name for row in prediction]


def test_inspect_says_what_made_a_file(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """Versions, target, configuration and data; no folder of this machine, unless asked for."""
    out, config = tmp_path / "int8.pt", tmp_path / "layers.yaml"
    config.write_text("version: 1\nrules:\n  - module: head\n    keep_float: true\n")
    done = run(
        "quantize", model, "--data", data, "--config", config, "--target", "stock", "-o", out
    )
    assert done.code == 0, done.err
    shown = run("inspect", out)
    assert shown.code == 0
    assert shown.out == without_folders(f"{jit_passes.inspect(torch.jit.load(out))}\n")
    for words in (
        *("stage: lowered", "target: stock (engine=", "method: forward", "batches: 1"),
        *(f"jit_passes: {jit_passes.__version__}", f"torch: {torch.__version__}"),
        *("configuration:\n  version: 1\n", "module: head", f"1 {bits_here('w8a8')}, 1 in float"),
    ):
        assert words in shown.out, shown.out
    assert str(tmp_path) not in shown.out and os.sep + "tmp" not in shown.out
    report = run("inspect", out, "--json")
    assert str(tmp_path) not in report.out
    assert report.json["made"]["configuration"].startswith("version: 1\nrules:\n")
    assert report.json["needs_package"] is False
    head = report.json["operators"][1]
    assert head["name"] == "head:linear" and head["dtype"] == "float"
    assert "layers.yaml:3" in head["reason"]


def test_provenance_survives(model: Path, tmp_path: Path) -> None:
    """Every stage adds to it, and saving keeps it; the same input gives the same bytes."""
    loaded = torch.jit.load(model)
    assert jit_passes.provenance(loaded) is None
    prepared = jit_passes.prepare(loaded, target="reference")
    assert "batches" not in (jit_passes.provenance(prepared) or {})
    jit_passes.calibrate(prepared, [images()] * 2)
    jit_passes.calibrate(prepared, [images()])
    lowered = jit_passes.lower(jit_passes.convert(prepared))
    made = jit_passes.provenance(lowered)
    assert made is not None and made["batches"] == 3 and made["stage"] == "lowered"
    files = [tmp_path / name for name in ("int8.pt", "other/int8.pt")]
    files[1].parent.mkdir()
    for file in files:
        torch.jit.save(lowered, file)
    assert jit_passes.provenance(torch.jit.load(files[0])) == made
    assert files[0].read_bytes() == files[1].read_bytes()


def test_random_data_are_noted(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.pt"
    arguments = ("quantize", model, "--random", "images=2x3x8x8", "--batches", 3, "-o", out)
    done = run(*arguments)
    assert done.code == 0 and "made up" in done.err
    made = run("inspect", out, "--json").json["made"]
    assert made["data"] == "random images=2x3x8x8" and made["batches"] == 3
    before = out.read_bytes()
    assert run(*arguments).code == 0 and out.read_bytes() == before


def test_export(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    reference, cache, expected = (tmp_path / name for name in ("r.pt", "a.cache", "b.cache"))
    target = ("--target", "reference")
    assert run("quantize", model, "--data", data, *target, "-o", reference).code == 0
    done = run("export", reference, "--format", "tensorrt", "-o", cache, "--json")
    assert done.code == 0, done.err
    with pytest.warns(jit_passes.JitPassesWarning, match="neither zero points") as told:
        jit_passes.export_calibration(torch.jit.load(reference), expected, format="tensorrt")
    assert done.err in [f"warning: {warning.message}\n" for warning in told]
    assert cache.read_text() == expected.read_text()
    held = len(cache.read_text().splitlines()) - 1
    assert (done.json["activation"], done.json["parameter"]) == (held, 0)
    text = run("export", reference, "--format", "tensorrt", "-o", cache).out
    assert text.startswith(f"{cache}: {held} activations; not in it: 4 parameters, since TensorRT")
    text = run("export", reference, "--format", "aimet", "-o", cache).out
    assert text == f"{cache}: {held} activations and 4 parameters\n"
    assert run("export", reference, "--format", "aimet", "--version", "1", "-o", cache).code == 2


def test_export_of_a_program(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """With any number of samples, by the first batch."""
    written = tmp_path / "model.pt2"
    done = run("export", model, "--to", "pt2", "--data", data, "-o", written)
    assert (done.code, done.out) == (0, f"{written}: the model, for torch.export.load\n")
    x = images(7)
    program = torch.export.load(written)
    torch.testing.assert_close(program.module()(x), torch.jit.load(model)(x))
    assert run("export", model, "--to", "pt2", "-o", written).code == 2
    assert run("export", model, "--to", "pt2", "--version", "1", "-o", written).code == 2


def test_export_of_a_package(
    run: Run, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the caller come ahead of the compiler; a missing compiler is an error, too."""
    written = tmp_path / "package.pt2"
    how = ("export", model, "--to", "aoti", "--data", data, "-o", written)
    done = run(*how, "--engine", "onnxruntime")
    assert (done.code, "--engine onnxruntime reads files of --to onnx" in done.err) == (2, True)
    assert run(*how, "--version", "1").code == 2
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "no_compiler")))
    done = run(*how)
    assert done.code != 0 and "needs a C++ compiler" in done.err
    assert not written.exists()


def test_listings(run: Run) -> None:
    done = run("passes")
    assert [line.split()[0] for line in done.out.splitlines()] == list(jit_passes.passes)
    one = run("passes", "insert_observers", "--json").json
    assert [entry["name"] for entry in one] == ["insert_observers"]
    assert run("passes", "insert_observer").code == 2
    assert {"x86", "stock", "reference"} <= {row["name"] for row in run("targets", "--json").json}
    assert run("targets", "reference").out.rstrip() == str(jit_passes.targets.Reference())


def test_plugin(run: Run, model: Path, tmp_path: Path) -> None:
    """A module by name, found from the working folder, or a file; both bring targets."""
    arguments = ("inspect", model, "--target", "mill", "--plugin")
    # A process that does not know the target until the second call.
    both = (
        "import sys; from jit_passes.command_line import main; "
        "assert main(sys.argv[1:-2]) == 2; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", both, *map(str, arguments), "tests.third_party.mill"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = run_process(*arguments, ROOT / "tests" / "third_party" / "mill.py")
    assert (again.code, again.out) == (0, done.stdout) and again.err == ""
    bad = run("inspect", model, "--plugin", "no_such_module")
    assert bad.code == 3 and "no_such_module" in bad.err


def test_results_and_messages_are_apart(model: Path, data: Path, tmp_path: Path) -> None:
    """Stdout is JSON and nothing else, in a process of its own."""
    arguments = ("quantize", model, "--data", data, "-o", tmp_path / "o.pt", "--json")
    done = run_process(*arguments)
    assert done.code == 0
    result = json.loads(done.out)
    coverage = jit_passes.coverage(torch.jit.load(tmp_path / "o.pt"))
    assert [row["name"] for row in result["operators"]] == [row.name for row in coverage]
    assert result["operators"][0] == dataclasses.asdict(coverage[0])
    assert result["bytes"] == (tmp_path / "o.pt").stat().st_size


def test_output_keeps_modes_and_links(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """A new file has the modes of any other; a link stays one; nothing else is left behind."""
    real, link = tmp_path / "folder" / "real.pt", tmp_path / "link.pt"
    real.parent.mkdir()
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        assert run("quantize", model, "--data", data, "-o", link).code == 0
        assert stat.S_IMODE(real.stat().st_mode) == 0o640
        real.chmod(0o604)
        assert run("quantize", model, "--data", data, "-o", link).code == 0
    finally:
        os.umask(before)
    assert link.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o604
    assert [path.name for path in real.parent.iterdir()] == ["real.pt"]


def test_devices_are_written_to(run: Run, model: Path, data: Path) -> None:
    """Not replaced by a file."""
    done = run("quantize", model, "--data", data, "-o", "/dev/null")
    assert done.code == 0, done.err
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_teaches(run: Run, name: str) -> None:
    """Every command has examples, and every option a sentence."""
    done = run(name, "--help")
    assert done.code == 0 and f"jit-passes {name}" in done.out.partition("Examples:")[2]
    for option in cli.commands[name].params:
        assert option.param_type_name == "argument" or option.help.endswith("."), option


def test_shell_completion(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The shell asks for commands and targets by variables of its environment."""

    def variables(words: str, position: int) -> dict[str, str]:
        return {
            "_JIT_PASSES_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        }

    done = run_process(env={**os.environ, **variables("jit-passes ins", 1)})
    assert [line.partition(",")[2] for line in done.out.splitlines()] == ["inspect"]
    for name, value in variables("jit-passes inspect --target s", 3).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        main([])
    found = capfd.readouterr().out.splitlines()
    names = [line.partition(",")[2] for line in found]  # tests register others
    assert "stock" in names and all(name.startswith("s") for name in names)


def test_compare(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    """The table of jit_passes.compare; scripts go by the exit code."""
    out = tmp_path / "int8.pt"
    assert run("quantize", model, "--data", data, "--target", "stock", "-o", out).code == 0
    found = jit_passes.compare(torch.jit.load(model), torch.jit.load(out), [images()])
    done = run("compare", model, out, "--data", data)
    assert done.code == 0 and done.out.rstrip() == without_folders(str(found))
    result = run("compare", model, out, "--data", data, "--min-sqnr", 10, "--json")
    assert result.code == 0 and result.json["sqnr"] == pytest.approx(found.sqnr)
    assert [row["name"] for row in result.json["values"]] == [row.name for row in found.rows]
    low = run("compare", model, out, "--data", data, "--min-sqnr", 90)
    assert low.code == 5 and "below 90" in low.err and low.out == done.out
    assert run("compare", model, model, "--data", data).code == 3
    assert run("compare", model, out).code == 2


def test_dynamic_needs_no_data(run: Run, model: Path, tmp_path: Path) -> None:
    """As in Python; provenance has the mode, and compare what it can see."""
    out = tmp_path / "int8.pt"
    done = run("quantize", model, "--mode", "dynamic", "--target", "reference", "-o", out)
    assert done.code == 0, done.err
    expected = jit_passes.quantize_script(torch.jit.load(model), mode="dynamic", target="reference")
    assert same(torch.jit.load(out), expected)
    assert run("inspect", out, "--json").json["made"]["mode"] == "dynamic"
    prediction = jit_passes.inspect(torch.jit.load(model), target="reference", mode="dynamic")
    shown = run("inspect", model, "--mode", "dynamic", "--target", "reference", "--paths")
    assert shown.out.rstrip() == str(prediction)
    found = run("compare", model, out, "--random", "4x3x8x8", "--json").json
    assert [row["name"] for row in found["values"]] == ["conv:conv2d", "head:linear", "output"]
    assert all(20 < row["sqnr"] < 80 for row in found["values"])
    assert run("quantize", model, "--mode", "dynamique", "-o", out).code == 2


def test_entry_point() -> None:
    """Installing the package installs the command, and the library that it is built on."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["scripts"].items()
    entry = importlib.metadata.EntryPoint(name, value, "console_scripts")
    assert name == "jit-passes" and entry.load() is jit_passes.command_line.run
    assert any(text.startswith("click") for text in project["dependencies"])
