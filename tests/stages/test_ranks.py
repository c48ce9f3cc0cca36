"""`calibrate` and `profile` on ranks of torch.distributed, against one pass in this process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import jit_passes
from jit_passes import Profile
from tests.folders import ROOT
from tests.profile.profiles import saved
from tests.stages.ten_models import OWN, TEN, batches_of, configurations, script_of

pytestmark = pytest.mark.xdist_group("ranks")  # all read one fixture, which starts processes

SECONDS = 20  # the time limit of the process group
PARTS = {2: (0, 5, 7), 4: (0, 3, 3, 4, 7)}  # where the data of each rank begin; one has none
MERGED, IN_TURN = "plain.entropy", "plain.moving_average"


def prepared_of(file: Path) -> torch.jit.ScriptModule:
    return torch.jit.load(file)


def script_from(folder: Path, name: str) -> torch.jit.ScriptModule:
    return torch.jit.load(folder / f"{name}.pt")


def own_batches(name: str, rank: int, world: int) -> list[Any]:
    ends = PARTS[world]
    return batches_of(name)[ends[rank] : ends[rank + 1]]


def digest_of(module: torch.jit.ScriptModule) -> str:
    return hashlib.sha256(saved(module)).hexdigest()


def int8_of(prepared: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    return jit_passes.lower(jit_passes.convert(prepared))


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def broken() -> Iterator[Any]:
    yield batches_of("plain")[0]
    raise KeyError("file 3")


def fatal() -> Iterator[Any]:
    yield batches_of("plain")[0]
    os.kill(os.getpid(), signal.SIGKILL)


def work(rank: int, world: int, folder: Path) -> None:
    """Calibrate all models of the folder with this rank's data; then fail in all ways."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = f"file://{folder / f'store{world}'}"
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store, timeout=limit, rank=rank, world_size=world)
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.*.pt")):
        batches = own_batches(file.stem.split(".")[0], rank, world)
        found[file.stem] = digest_of(jit_passes.calibrate(prepared_of(file), batches))
    for name in TEN:
        made = jit_passes.profile(script_from(folder, name), own_batches(name, rank, world))
        made.save(folder / f"{name}.{world}.{rank}.yaml")
    for name in (MERGED, IN_TURN):
        prepared, batches = prepared_of(folder / f"{name}.pt"), own_batches("plain", rank, world)
        jit_passes.calibrate(prepared, batches)
        found[f"{name} twice"] = digest_of(jit_passes.calibrate(prepared, batches))
        found[f"{name} int8"] = digest_of(int8_of(prepared))
        for case, data in (
            ("bad", [*batches, (torch.zeros(1, 5, 6, 6),)] if rank == 1 else batches),
            ("broken", broken() if rank == 1 else batches),
            ("empty", []),
        ):
            before = digest_of(prepared)
            found[f"{name} {case}"] = error_of(partial(jit_passes.calibrate, prepared, data))
            assert digest_of(prepared) == before
    other = "dense.min_max" if rank == 1 else MERGED
    prepared = prepared_of(folder / f"{other}.pt")
    found["other"] = error_of(partial(jit_passes.calibrate, prepared, batches))
    wrong = [(torch.zeros(1, 5, 6, 6),)] if rank == 1 else batches
    found["bad profile"] = error_of(
        partial(jit_passes.profile, script_from(folder, "plain"), wrong)
    )
    unfit = script_from(folder, "plain").train(rank == 1)
    found["unfit profile"] = error_of(partial(jit_passes.profile, unfit, batches))
    unprepared = unfit if rank == 1 else prepared_of(folder / f"{MERGED}.pt")
    found["unfit model"] = error_of(partial(jit_passes.calibrate, unprepared, batches))
    found["no profile"] = error_of(lambda: jit_passes.profile(script_from(folder, "plain"), []))
    name = MERGED if world == 2 else IN_TURN
    prepared = prepared_of(folder / f"{name}.pt")
    begin = time.monotonic()
    data = fatal() if rank == 1 else batches
    found["dead"] = error_of(partial(jit_passes.calibrate, prepared, data))
    found["seconds"] = time.monotonic() - begin
    (folder / f"{world}.{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # the process group cannot be left in order any more


def fork(folder: Path) -> None:
    """Start all ranks of 2 and of 4, and wait; this process has started no thread."""
    for world in PARTS:
        ranks = []
        for rank in range(world):
            if not (pid := os.fork()):
                work(rank, world, folder)
            ranks.append(pid)
        for rank, pid in enumerate(ranks):
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == (-signal.SIGKILL if rank == 1 else 0), (world, rank, status)


Ranks = dict[tuple[int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared models, and what ranks have made of them."""
    found = tmp_path_factory.mktemp("ranks")
    for number, name in enumerate(TEN):
        script = script_of(name)
        torch.jit.save(script, found / f"{name}.pt")
        for method, config in configurations(number).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = jit_passes.prepare(script, config=config, target="reference")
            torch.jit.save(made, found / f"{name}.{method}.pt")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, str(found)], env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Ranks:
    """The outcome of each rank that lives, by world size and rank."""
    return {
        (world, rank): json.loads((folder / f"{world}.{rank}.json").read_text())
        for world in PARTS
        for rank in range(world)
        if rank != 1
    }


def test_all_methods_come() -> None:
    assert {m for number in range(len(TEN)) for m in configurations(number)} == set(OWN)


@pytest.mark.parametrize("name", TEN)
def test_calibrate(name: str, folder: Path, ranks: Ranks) -> None:
    """The file of the calibrated model is that of one pass, in all kinds of methods."""
    files = sorted(folder.glob(f"{name}.*.pt"))
    assert len(files) == 3
    for file in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = digest_of(jit_passes.calibrate(prepared_of(file), batches_of(name)))
        assert {found[file.stem] for found in ranks.values()} == {one}, file.stem


@pytest.mark.parametrize("name", TEN)
def test_profile(name: str, folder: Path, tmp_path: Path) -> None:
    """The file of ranks, and of eight shards in another order, is that of one pass."""
    script, batches = script_from(folder, name), batches_of(name)
    one = tmp_path / "one.yaml"
    jit_passes.profile(script, batches).save(one)
    wanted = one.read_bytes()
    ends = (0, 2, 3, 4, 4, 5, 5, 6, 7)
    parts = [
        jit_passes.profile(script, batches[begin:end], shard=(k, 8))
        for k, (begin, end) in enumerate(pairwise(ends), 1)
    ]
    Profile.merge(parts[3], parts[:3], parts[:3:-1]).save(one)
    assert one.read_bytes() == wanted
    made = sorted(folder.glob(f"{name}.[24].*.yaml"))
    assert len(made) == 6
    for file in made:  # the first line has the name of the file
        assert file.read_bytes().partition(b"\n")[2] == wanted.partition(b"\n")[2], file.name


@pytest.mark.parametrize("name", [MERGED, IN_TURN])
def test_more_data_and_int8(name: str, folder: Path, ranks: Ranks) -> None:
    """A second call goes on from the first one, and the int8 model is that of one process."""
    for world in PARTS:
        prepared = prepared_of(folder / f"{name}.pt")
        for _ in range(2):
            jit_passes.calibrate(prepared, batches_of("plain"))
        found = [outcome for (size, _), outcome in ranks.items() if size == world]
        assert {outcome[f"{name} twice"] for outcome in found} == {digest_of(prepared)}
        assert {outcome[f"{name} int8"] for outcome in found} == {digest_of(int8_of(prepared))}


@pytest.mark.parametrize("name", [MERGED, IN_TURN])
def test_errors_on_all(name: str, ranks: Ranks) -> None:
    """Errors name the rank, and are raised on all."""
    for case, wanted in (
        ("bad", "JitPassesError: rank 1: calibration batch"),
        ("broken", "JitPassesError: rank 1: KeyError: "),
        ("empty", "JitPassesError: the calibration data of all ranks are empty"),
    ):
        for world in PARTS:
            told = {o[f"{name} {case}"] for (size, _), o in ranks.items() if size == world}
            assert len(told) == 1 and told.pop().startswith(wanted), (case, told)


def test_other_models_and_no_data(ranks: Ranks) -> None:
    for found in ranks.values():
        assert "the ranks have prepared models with other operators" in found["other"]
        assert "the data of all ranks are empty" in found["no profile"]
        assert found["bad profile"].startswith("JitPassesError: rank 1: calibration batch 0")


def test_models_that_are_unfit_on_one_rank(ranks: Ranks) -> None:
    """The mistake is found before there are data, and told to all."""
    for found in ranks.values():
        assert found["unfit profile"].startswith("JitPassesError: rank 1: ")
        assert "training mode" in found["unfit profile"]
        assert found["unfit model"].startswith("JitPassesError: rank 1: ")


def test_a_rank_that_dies(ranks: Ranks) -> None:
    """All others raise an error within the limit of the group, while it calibrates."""
    for found in ranks.values():
        assert "waits for others in vain: a rank has ended" in found["dead"]
        assert found["seconds"] < SECONDS + 10


if __name__ == "__main__":
    fork(Path(sys.argv[1]))
