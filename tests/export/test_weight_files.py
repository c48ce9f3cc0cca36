"""Models with scales for groups of weights in files, in exports, and in training."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.export import Encodings, encodings_of, to_aimet, to_nni
from tests.compare import sqnr
from tests.qat_nets import makes_scales_positive
from tests.specification.test_weight_groups import Block, alone, reference_of


def test_saved_and_loaded() -> None:
    """A prepared model and a reference model come back the same."""
    scripted = torch.jit.script(Block().eval())
    config = alone(bits=4, group_size=24)
    prepared = jit_passes.prepare(scripted, target="reference", config=config)
    x = torch.randn(3, 48)
    found = []
    for model in (prepared, jit_passes.convert(prepared)):
        buffer = io.BytesIO()
        torch.jit.save(model, buffer)
        buffer.seek(0)
        found.append(torch.jit.load(buffer))
    again = jit_passes.convert(found[0])
    assert torch.equal(again(x), found[1](x))
    assert torch.equal(jit_passes.lower(again)(x), found[1](x))


def test_encodings_of_groups(tmp_path: Any) -> None:
    """Our own form has the scales of groups; those of other engines refuse them by name."""
    found = encodings_of(reference_of(Block(), alone(bits=4, group_size=24)))
    encoding = found["up.weight"]
    assert (encoding.bits, encoding.ch_axis, encoding.group_size) == (4, 0, 24)
    assert len(encoding.scale) == 96 * 2
    assert "192 along 0 in groups of 24" in str(found)
    found.save(tmp_path / "encodings.json")
    assert Encodings.load(tmp_path / "encodings.json") == found
    for other in (to_aimet, to_nni):
        with pytest.raises(JitPassesError, match="has a scale for each group of 24 inputs"):
            other(found)


def test_training_without_groups() -> None:
    """Fake quantization has a scale for each channel, and says so."""
    model = torch.jit.script(Block().train())
    config = alone(bits=4, group_size=24)
    with pytest.raises(JitPassesError, match=r"'up.weight.*groups of 24, which do not train"):
        jit_passes.prepare_qat(model, target="reference", config=config)


@makes_scales_positive
@pytest.mark.parametrize("target", ["reference", "stock"])
def test_training_of_weights_alone(target: str) -> None:
    """Fake quantization per channel, of a table too, computes what the converted model does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    ids = torch.arange(40)
    trained = jit_passes.prepare_qat(
        torch.jit.script(model.train()), target=target, mode="weight_only"
    )
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    before = trained(ids).detach()
    for _ in range(3):
        loss = (trained(ids) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained.eval()
    reference = jit_passes.convert(trained)
    assert torch.equal(trained(ids), reference(ids))
    assert not torch.allclose(before, reference(ids), atol=1e-4)
    assert {row.bits for row in jit_passes.coverage(reference)} == {"w8 only"}
    assert sqnr(reference(ids), jit_passes.lower(reference)(ids)) > 45
