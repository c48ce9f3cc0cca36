"""Two processes that train one model agree on all that is quantized."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from jit_passes.training.parameters import quantization_parameters
from jit_passes.training.prepare import prepare_qat
from tests.folders import ROOT
from tests.processes import start_script
from tests.qat_nets import METHODS, Net, Plain, batch, batches, compiled, seeded, state_of

pytestmark = pytest.mark.xdist_group("ranks")  # all read one fixture, which starts processes

SHAPE = (8, 3, 8, 8)
STEPS = 4

ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def work(rank: int, world: int, folder: Path) -> None:
    """Train each method with this process' half of each batch, and save the outcome."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    results: dict[str, Any] = {}
    for method in METHODS:
        for make in (Plain, Net):
            model = prepare_qat(compiled(seeded(make), batch(*SHAPE)), fake_quantizer=method)
            parallel = DistributedDataParallel(model.train())
            assert len(quantization_parameters(parallel)) == len(quantization_parameters(model))
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
            states = []
            for x in batches(STEPS, *SHAPE):
                optimizer.zero_grad()
                parallel(x.chunk(world)[rank]).square().mean().backward()
                states.append(state_of(model))  # before the step, after the first batch
                optimizer.step()
            states.append(state_of(model))
            results[f"{make.__name__}.{method}"] = states
    # A rank without data takes part.
    model = prepare_qat(compiled(seeded(Plain), batch(*SHAPE))).train()
    model(batch(*SHAPE) if rank == 0 else torch.zeros(0, 3, 8, 8))
    results["empty"] = [state_of(model)]
    results["sharded optimizer"] = sharded(rank, world)
    torch.save(results, folder / f"rank{rank}.pt")
    (folder / f"rank{rank}.txt").write_text(refusal_of_fully_shard())
    dist.destroy_process_group()


def sharded(rank: int, world: int) -> list[dict[str, Any]]:
    """Train with an optimizer whose state is whole on each rank, then with one that is shared."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    states = []
    for zero in (False, True):
        model = prepare_qat(compiled(seeded(Plain), batch(*SHAPE)))
        parallel = DistributedDataParallel(model.train())
        options = {"lr": 0.01, "momentum": 0.9}
        optimizer: torch.optim.Optimizer = (
            ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, **options)
            if zero
            else torch.optim.SGD(parallel.parameters(), **options)
        )
        for x in batches(STEPS, *SHAPE):
            optimizer.zero_grad()
            parallel(x.chunk(world)[rank]).square().mean().backward()
            optimizer.step()
        states.append(state_of(model))
    return states


def refusal_of_fully_shard() -> str:
    """PyTorch's error about a ScriptModule, and about one within a module, line by line."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    said = []
    for wrap in (lambda model: model, torch.nn.Sequential):
        model = wrap(prepare_qat(compiled(seeded(Plain), batch(*SHAPE))).train())
        try:
            fully_shard(model, mesh=mesh)
        except RuntimeError as error:
            said.append(str(error))
    return "\n".join(said)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcomes of both processes."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        start_script(__file__, str(rank), "2", folder, cwd=folder, environment=ENVIRONMENT)
        for rank in range(2)
    ]
    for done in [process.wait(120) for process in processes]:
        assert done.returncode == 0, done.stderr[-3000:]
    found = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    for rank, outcome in enumerate(found):
        outcome["refusal"] = (folder / f"rank{rank}.txt").read_text()
    return found


@pytest.mark.parametrize("net", ["Plain", "Net"])
@pytest.mark.parametrize("method", METHODS)
def test_ranks_stay_equal(ranks: list[dict[str, Any]], method: str, net: str) -> None:
    """After the first batch and after each step: weights, scales, ranges."""
    one, other = (rank[f"{net}.{method}"] for rank in ranks)
    assert len(one) == STEPS + 1
    assert not torch.equal(one[0]["fc.weight"], one[-1]["fc.weight"])
    for step, (first, second) in enumerate(zip(one, other, strict=True)):
        for name, value in first.items():
            if "running_" in name:
                continue  # each rank's own, until the next forward broadcasts those of rank 0
            assert torch.equal(value, second[name]), (step, name)


@pytest.mark.parametrize("method", METHODS)
def test_first_batch_is_that_of_all(ranks: list[dict[str, Any]], method: str) -> None:
    """The start is what one process makes of the whole batch; exactly, but for sums."""
    model = prepare_qat(compiled(seeded(Plain), batch(*SHAPE)), fake_quantizer=method).train()
    model(batches(1, *SHAPE)[0])
    found = ranks[0][f"Plain.{method}"][0]
    alone = state_of(model)
    assert list(alone) == list(found)
    for name, value in alone.items():
        assert torch.allclose(value, found[name], rtol=1e-5, atol=1e-7), name


def test_a_rank_without_data(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["empty"][0] for rank in ranks)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert one["conv.input_scale"].isfinite().all()


def test_a_shared_optimizer(ranks: list[dict[str, Any]]) -> None:
    """The training is that of DistributedDataParallel with a whole optimizer, to the bit."""
    for rank in ranks:
        whole, shared = rank["sharded optimizer"]
        for name, value in whole.items():
            assert "running_" in name or torch.equal(value, shared[name]), name


def test_fully_shard_is_refused(ranks: list[dict[str, Any]]) -> None:
    """By PyTorch: docs/qat.md says so, and has to change once it is not."""
    for rank in ranks:
        said = rank["refusal"].splitlines()
        assert len(said) == 2
        assert all(line.endswith("is not supported on ScriptModules") for line in said)


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
