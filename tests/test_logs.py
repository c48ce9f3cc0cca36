"""Logs, and the contents that a report of an error is asked for."""

from __future__ import annotations

import logging

import pytest
import torch

import jit_passes
from jit_passes.report.versions import versions
from tests.folders import ROOT
from tests.processes import run_code

PROGRAM = """
import warnings
for kind in (DeprecationWarning, FutureWarning):
    warnings.simplefilter("ignore", kind)
import torch, jit_passes
model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval())
jit_passes.quantize_script(model, [torch.ones(2, 4)], target="reference")
"""


def run(**variables: str) -> str:
    """Return a program's output on stderr."""
    environment = {"PYTHONPATH": str(ROOT), "JIT_PASSES_LOG": ""}
    done = run_code(PROGRAM, cwd=ROOT, environment=environment | variables)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_silent_by_default() -> None:
    assert "jit_passes" not in run()


def test_levels() -> None:
    """Info has the stages in order, debug also their passes."""
    info = [line.split(" ", 2)[2] for line in run(JIT_PASSES_LOG="info").splitlines()]
    order = [line.split()[0] for line in info if "took" in line]
    assert order == ["prepare", "calibrate", "convert", "lower", "quantize_script"]
    assert info[:2] == ["quantize_script begins", "prepare begins"]
    debug = run(JIT_PASSES_LOG="debug")
    assert "pass insert_observers of observe: " in debug and "convert took" in debug
    assert "JIT_PASSES_LOG is one of debug, info, warning" in run(JIT_PASSES_LOG="verbose")


def test_programs_set_it_up(caplog: pytest.LogCaptureFixture) -> None:
    """As any logger; failures say so."""
    caplog.set_level(logging.INFO, "jit_passes")
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval())
    prepared = jit_passes.prepare(model, target="reference")
    with pytest.raises(jit_passes.JitPassesError):
        jit_passes.calibrate(prepared, [])
    assert [record.getMessage().split(" after")[0] for record in caplog.records][::3] == [
        "prepare begins",
        "calibrate failed",
    ]


def test_versions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each thing; no path of this machine."""
    monkeypatch.setenv("JIT_PASSES_DUMP", "graphs")
    jit_passes.show_versions()
    lines = capsys.readouterr().out.splitlines()
    assert f"torch: {torch.__version__}" in lines and "JIT_PASSES_DUMP: graphs" in lines
    assert len(lines) == len(versions()) and str(ROOT) not in "".join(lines)
