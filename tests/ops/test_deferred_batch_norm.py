"""Operators that stand for a batch norm which will be folded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import prepare_qat

OPS = torch.ops.jit_passes
EPS = 1e-3


def statistics(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Bias, gamma, beta, running mean and variance of 5 channels."""
    torch.manual_seed(0)
    bias, gamma, beta, mean = torch.randn(4, 5, dtype=dtype)
    return bias, gamma, beta, mean, torch.rand(5, dtype=dtype) + 0.1


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_folding_is_the_batch_norm(affine: bool, with_bias: bool) -> None:
    """A convolution with the folded weight and bias, against PyTorch's two operators in double."""
    bias, gamma, beta, mean, var = statistics()
    given = bias if with_bias else None
    scale, shift = (gamma, beta) if affine else (None, None)
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3)
    factor = OPS.fold_factor(scale, var, EPS)
    folded, none = OPS.deferred_weight(weight, factor, 0, True)
    assert none is None
    added = OPS.fold_bias(given, scale, shift, mean, var, EPS)
    used = OPS.deferred_bias(given, added, folded, True)
    found = F.conv2d(x.double(), folded.double(), used.double())
    normed = F.conv2d(x.double(), weight.double(), None if given is None else given.double())
    doubles = [None if t is None else t.double() for t in (mean, var, scale, shift)]
    expected = F.batch_norm(normed, *doubles, eps=EPS)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    passed = OPS.deferred_batch_norm(
        found, scale, shift, mean, var, False, 0.1, EPS, True, added, None, True
    )
    assert torch.equal(passed, found) and passed.data_ptr() != found.data_ptr()


def test_not_folded() -> None:
    """The weight itself and what to divide by, 1 instead of 0; the batch norm, its beta moved."""
    bias, gamma, beta, mean, var = statistics()
    gamma[0], gamma[1] = 0, 1e-30
    weight = torch.randn(5, 3, 3, 3)
    factor = OPS.fold_factor(gamma, var, EPS)
    same, fold = OPS.deferred_weight(weight, factor, 0, False)
    assert same.data_ptr() == weight.data_ptr()
    assert torch.equal(fold, torch.cat((torch.ones(2), factor[2:])))
    assert OPS.deferred_bias(None, beta, weight, False) is None
    assert torch.equal(OPS.deferred_bias(bias, beta, weight, False), bias)
    x, shift, rounded = torch.randn(4, 5, 6), torch.randn(5), torch.randn(5)
    for change in (None, shift):
        ours, theirs = (mean.clone(), var.clone()), (mean.clone(), var.clone())
        found = OPS.deferred_batch_norm(
            x, gamma, beta, *ours, True, 0.1, EPS, True, rounded, change, False
        )
        moved = beta if change is None else beta + (rounded - shift)
        assert torch.equal(found, F.batch_norm(x, *theirs, gamma, moved, True, 0.1, EPS))
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_gradients() -> None:
    """Against differences, in double."""
    bias, gamma, beta, mean, var = (t.requires_grad_(i < 3)
                                    for i, t in enumerate(statistics(torch.float64)))  # fmt: skip

    def shift(bias: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return OPS.fold_bias(bias, gamma, beta, mean, var, EPS)

    assert torch.autograd.gradcheck(shift, (bias, gamma, beta))
    weight = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    factor = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, f: OPS.deferred_weight(w, f, 0, True)[0],
                                    (weight, factor))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    """A convolution reads a bias of its weight's type."""
    weight = torch.randn(5, 3, dtype=dtype)
    assert OPS.deferred_bias(None, torch.randn(5), weight, True).dtype == dtype
    assert OPS.deferred_weight(weight, torch.randn(5), 0, True)[0].dtype == dtype


class Bare(nn.Module):
    """A batch norm without gamma and beta, behind a convolution with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("method", ["lsq", "tqt", "moving_average"])
def test_without_gamma_and_beta(method: str) -> None:
    """The bias is rounded all the same, and the converted model is equal."""
    torch.manual_seed(0)
    qat = prepare_qat(
        torch.jit.script(Bare().train()), fake_quantizer=method, bits=3, target="reference"
    )
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        qat(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    reference = jit_passes.convert(qat)
    report = jit_passes.parity(qat, reference, [torch.randn(4, 3, 8, 8)])
    assert report.equal, report
    assert sum(row.kind == "parameter" for row in report.rows) == 2
