"""The files of docs/many_machines.md, run as they stand, give the profile of one pass."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes.command_line.pools import pool_of
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures
from tests.folders import ROOT

PAGE = (ROOT / "docs" / "many_machines.md").read_text()
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LOADING = """
import torch

def load_batches(k, n):
    batches = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    return [batch * (i + 1) for i, batch in enumerate(batches)][k - 1 :: n]
"""
PACKAGES = {"torchrun": "torch", "Dask": "distributed", "Ray": "ray", "Spark": "pyspark"}


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, the module that loads data, and the profile of one pass in the folder `one`."""
    (tmp_path / "loading.py").write_text(LOADING)
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).eval())
    model.save(tmp_path / "model.pt")
    loading: dict[str, object] = {}
    exec(LOADING, loading)
    (tmp_path / "one").mkdir()
    jit_passes.profile(model, loading["load_batches"](1, 1)).save(tmp_path / "one" / "all.yaml")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    paths = [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]
    known = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    python = {"PYSPARK_PYTHON": sys.executable, "RAY_DEDUP_LOGS": "0"}
    return {**os.environ, **known, **python}


@pytest.mark.parametrize("engine", PACKAGES)
def test_recipe(engine: str, folder: Path) -> None:
    if importlib.util.find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"{engine} is not installed: pip install {PACKAGES[engine]}")
    found = re.search(f"### {engine}\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (folder / "ranges.py").write_text(found[1])
    done = subprocess.run(
        [sys.executable, *(TORCHRUN if engine == "torchrun" else ()), "ranges.py"], cwd=folder,
        env=environment(folder), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "all.yaml").read_bytes() == (folder / "one" / "all.yaml").read_bytes()


def test_a_cluster_of_dask(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dask` gives the numbers of one process."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", environment(folder)["PYTHONPATH"])
    words = ("sensitivity", folder / "model.pt", "--random", "4x5", "--json", "--no-progress",
             "--target", "reference")  # fmt: skip
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        one, two = run(*words), run(*words, "--dask", cluster.scheduler_address)
    assert one.code == two.code == 0, two.err
    assert two.json == one.json


def test_no_dask(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("sensitivity", folder / "model.pt", "--random", "4x5", "--dask", "tcp://127.0.0.1:9")
    told = run(*words, "--workers", "2")
    assert told.code == 2 and "--workers or --dask, not both" in told.err
    monkeypatch.setitem(sys.modules, "distributed", None)
    told = run(*words)
    assert told.code == 3 and "--dask needs the package distributed: pip install" in told.err


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("jit_passes.command_line.pools.SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "nowhere"):
        with (
            pytest.raises(jit_passes.JitPassesError, match="no scheduler of Dask answers there"),
            pool_of(1, address),
        ):
            pass
