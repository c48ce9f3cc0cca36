"""The garbage collector waits for a stage, and goes on behind it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes.collector import paused
from jit_passes.quantizer import BackendQuantizer
from jit_passes.targets import Stock


class Watching(BackendQuantizer):
    """Notes whether the collector runs while it annotates."""

    def annotate(self, graph: Any) -> Any:
        self.collects = gc.isenabled()
        return super().annotate(graph)


@pytest.mark.parametrize("enabled", [True, False])
def test_stages(enabled: bool) -> None:
    """A caller who has none of it gets it back as it was, also behind an error."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
    quantizer = Watching(Stock())
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        prepared = jit_passes.prepare(model, quantizer=quantizer)
        assert not quantizer.collects and gc.isenabled() == enabled
        with pytest.raises(jit_passes.JitPassesError):
            jit_passes.convert(prepared)  # no data
        with pytest.raises(jit_passes.JitPassesError):
            jit_passes.prepare(prepared)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_several_threads() -> None:
    """The collector runs again once the last thread is done, in whichever order they end."""
    assert gc.isenabled()
    gates = [threading.Event() for _ in range(3)]
    entered = threading.Barrier(4)

    def wait(gate: threading.Event) -> None:
        with paused():
            entered.wait()
            gate.wait()

    threads = [threading.Thread(target=wait, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    entered.wait()
    assert not gc.isenabled()
    for gate, thread in zip(gates, threads, strict=True):
        gate.set()
        thread.join()
    assert gc.isenabled()
