"""Passes that need a module with numbers, attributes or calls: what golden files cannot say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, Pipeline
from jit_passes.graph.view import GraphView
from jit_passes.passes.subject import wrap
from jit_passes.quantizer import resolve
from jit_passes.stages.normalize import NORMALIZE, normalize
from jit_passes.stages.prepare import plan_observations

X = torch.randn(2, 6, 9, 9, generator=torch.Generator().manual_seed(0))


def script(module: nn.Module) -> torch.jit.ScriptModule:
    """Script it in eval mode."""
    return torch.jit.script(module.eval())


def kinds(module: Any, method: str = "forward") -> list[str]:
    """Operators of a C++ module's method, nested blocks included."""
    return [node.kind for node in GraphView.of(module, method).nodes]


def with_statistics(module: nn.Module) -> nn.Module:
    """Give batch norms something to do."""
    torch.manual_seed(1)
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.3, 3)
            if norm.affine:
                norm.weight.data.normal_()
                norm.bias.data.normal_()
    return module


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(6, 8, 3),
    "no_bias": lambda: nn.Conv2d(6, 8, 3, bias=False),
    "groups": lambda: nn.Conv2d(6, 8, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(6, 8, 3),
    "transposed_groups": lambda: nn.ConvTranspose2d(6, 8, 3, stride=2, groups=2, bias=False),
}


class Factor(nn.Module):
    """A layer with a factor for each channel, along that axis of what permutations make of it."""

    def __init__(self, layer: nn.Module, axis: int, permutations: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.layer, self.permutations = layer, [list(p) for p in permutations]
        self.factor = nn.Parameter(torch.randn(8).reshape(8, *[1] * (-axis - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for permutation in self.permutations:
            x = x.permute(permutation)
        return self.factor * x


@pytest.mark.parametrize(
    ("make", "axis", "permutations"),
    [
        (lambda: nn.Linear(12, 8), -1, []),
        (lambda: nn.Linear(12, 8, bias=False), -3, [(0, 3, 1, 2)]),
        (lambda: nn.Linear(12, 8), -2, [(0, 3, 1, 2), (0, 2, -3, -1), (3, 2, 1, 0), (0, 2, 1, 3)]),
        (lambda: nn.Conv2d(6, 8, 3, groups=2), -3, []),
        (lambda: nn.Conv2d(6, 8, 3), -1, [(0, 2, 3, 1)]),
    ],
)
def test_fold_scale(
    make: Callable[[], nn.Module], axis: int, permutations: Sequence[Sequence[int]]
) -> None:
    """No factor is left, and the numbers are the same to float32 rounding."""
    model = Factor(make(), axis, permutations).eval()
    x = torch.randn(2, 6, 7, 12)
    float_model = torch.jit.trace(model, x)
    unfolded = tuple(name for name in NORMALIZE.steps if name != "fold_scale")
    module = Pipeline("unfolded", unfolded).run(float_model._c).module
    assert "aten::mul" in kinds(module)
    module, changed, _ = _C.run_pass("fold_scale", module, "forward", {})
    assert changed and "aten::mul" not in kinds(module)
    with torch.no_grad():
        torch.testing.assert_close(wrap(module)(x), float_model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_fold_batch_norm(name: str, affine: bool, how: str) -> None:
    """No batch norm is left, and the numbers are the same to float32 rounding.

    Scripted modules check the rank in between, which is no other use of the numbers.
    """
    convolution = CONVOLUTIONS[name]()
    norm = nn.BatchNorm2d(8, affine=affine)
    model = with_statistics(nn.Sequential(convolution, norm)).eval()
    float_model = torch.jit.trace(model, X) if how == "trace" else torch.jit.script(model)
    unfolded = tuple(name for name in NORMALIZE.steps if name != "fold_batch_norm")
    module = Pipeline("unfolded", unfolded).run(float_model._c).module
    assert "aten::batch_norm" in kinds(module)
    module, changed, _ = _C.run_pass("fold_batch_norm", module, "forward", {})
    assert changed and "aten::batch_norm" not in kinds(module)
    assert not _C.run_pass("fold_batch_norm", module, "forward", {})[1]
    with torch.no_grad():
        torch.testing.assert_close(wrap(module)(X), float_model(X), rtol=1e-4, atol=1e-5)


class ChecksRank(nn.Module):
    """The check of batch norms, and something else."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.conv, self.rank = nn.Conv2d(6, 4, 3), rank

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if y.dim() != self.rank:
            raise ValueError("another rank was expected")
        return torch.relu(y)


@pytest.mark.parametrize(("rank", "stays"), [(4, 0), (3, 1)])
def test_remove_rank_checks(rank: int, stays: int) -> None:
    """A check that asks a convolution's result for a batch axis goes; a check for none stays."""
    float_model = script(ChecksRank(rank))
    module = Pipeline("before", ("freeze", "propagate_constants")).run(float_model._c).module
    assert kinds(module).count("prim::If") == 1
    module, changed, _ = _C.run_pass("simplify", module, "forward", {})
    assert changed == (not stays) and kinds(module).count("prim::If") == stays
    assert not _C.run_pass("simplify", module, "forward", {})[1]
    if rank == 4:
        assert torch.equal(wrap(module)(X), float_model(X))


class Masked(nn.Module):
    """An optional argument."""

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: int | None = None) -> Tensor:
        if mask is not None:
            x = x * mask
        return x if bias is None else x + bias


class CallsMasked(nn.Module):
    """With and without it, and with one that only running tells."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        return self.inner(x, x, 3) + self.inner(x, y) + self.inner(x)


def test_checks_for_none() -> None:
    """Only the check of the unknown one stays."""
    float_model = script(CallsMasked())
    result = normalize(float_model._c)
    found = kinds(result.module)
    assert found.count("prim::If") == found.count("aten::__isnot__") == 1
    assert found.count("prim::unchecked_cast") == 1 and "aten::__is__" not in found
    for y in (None, 2 * X):
        assert torch.equal(wrap(result.module)(X, y), float_model(X, y))
    assert not _C.run_pass("propagate_constants", result.module, "forward", {})[1]


class Twice(nn.Module):
    """The convolution's result is used beside the batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class OverTime(nn.Module):
    """Batch norm over axis 1 of [N, 6, 6], which is not the linear layer's axis."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(9, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x[:, :, 0]))


@pytest.mark.parametrize("kind", [Twice, OverTime])
def test_batch_norm_that_must_stay(kind: type[nn.Module]) -> None:
    """The numbers are the same because nothing was folded."""
    float_model = script(with_statistics(kind()))
    module, _, _ = _C.run_pass("freeze", float_model._c, "forward", {})
    module, changed, _ = _C.run_pass("fold_batch_norm", module, "forward", {})
    assert not changed and "aten::batch_norm" in kinds(module)
    assert torch.equal(wrap(module)(X), float_model(X))


class Attributes(nn.Module):
    """A buffer that is counted up, one that nothing reads, and an exported method."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("unused", torch.ones(1000))
        self.conv = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.conv(x) * self.count

    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return x + self.unused.sum()


def test_freeze_and_remove_unused_attributes() -> None:
    """State that is assigned stays, in a copy; the rest goes, and so does the other method."""
    float_model = script(Attributes())
    result = normalize(float_model._c)
    module = wrap(result.module)
    assert [name for name, _ in module.named_buffers()] == ["count"]
    assert not module._c._has_method("other")
    module(X)
    module(X)
    assert (module.count.item(), float_model.count.item()) == (2, 0)
    assert not _C.run_pass("remove_unused_attributes", result.module, "forward", {})[1]


class Branch(nn.Module):
    """Equal numbers inside and outside of a branch."""

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        x = x.transpose(2, 3)
        return x.transpose(2, 3) if flag else x


def test_pool_and_propagate_constants() -> None:
    """One constant for each number, and arithmetic on constants done."""
    module, _, _ = _C.run_pass("freeze", script(Branch())._c, "forward", {})
    _C.run_pass("pool_constants", module, "forward", {})
    numbers = [
        node.output().toIValue()
        for node in module._get_method("forward").graph.findAllNodes("prim::Constant")
    ]
    assert sorted(n for n in numbers if isinstance(n, int)) == [2, 3]


class LateBias(nn.Module):
    """The input is written to between a product and its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, self.weight)
        x.add_(5)
        return y + self.bias


def test_linear_reads_its_input_where_the_product_did() -> None:
    """Not later, when somebody has written to it."""
    float_model = script(LateBias())
    module = wrap(normalize(float_model._c).module)
    with torch.no_grad():
        assert torch.equal(module(torch.ones(2, 4)), float_model(torch.ones(2, 4)))


class ClampsIntegers(nn.Module):
    """Clipping of integers, by float bounds and by relu6."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.clamp(min=0.0), torch.clamp_min(x, 0.0), nn.functional.relu6(x)


def test_clamp_keeps_the_dtype() -> None:
    """A float bound makes integers float; relu6 leaves them integers."""
    float_model = script(ClampsIntegers())
    x = torch.tensor([-3, 2, 9])
    for found, wanted in zip(
        wrap(normalize(float_model._c).module)(x), float_model(x), strict=True
    ):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_insert_observers_and_convert() -> None:
    """One observer for each plan, the numbers unchanged; afterwards no trace of them."""
    float_model = script(nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)))
    module = normalize(float_model._c).module
    target = jit_passes.targets.Stock()
    graph = GraphView.of(module, "forward")
    plan = plan_observations(resolve(graph, target.quantizer().annotate(graph)))
    observed, changed, _ = _C.run_pass("insert_observers", module, "forward", plan)
    found = _C.places(observed, "forward")
    assert changed and len(found) == len(plan["places"]) > 3
    nothing: dict[str, Any] = {"places": (), "states": ()}
    assert not _C.run_pass("insert_observers", observed, "forward", nothing)[1]
    with torch.no_grad():
        torch.testing.assert_close(wrap(observed)(X), float_model(X))
    options: dict[str, Any] = {"parameters": {}}
    plain, changed, _ = _C.run_pass("insert_quantize_dequantize", observed, "forward", options)
    assert changed and not any(kind.startswith("jit_passes::") for kind in kinds(plain))
    assert _C.check_invariant("no_observers", plain, "forward") is None
    with torch.no_grad():
        torch.testing.assert_close(wrap(plain)(X), float_model(X))


@pytest.mark.parametrize("engine", ["x86", "onednn", "fbgemm"])
def test_fold_prepack(engine: str) -> None:
    """One attribute for each weight, no prepack at run time, and the engine as it was before."""
    before = torch.backends.quantized.engine
    model = script(nn.Sequential(nn.Conv2d(6, 8, 3), nn.Conv2d(8, 4, 1)))
    target = jit_passes.targets.Stock(engine=engine)
    lowered = jit_passes.quantize_script(model, [X], target=target, progress=False)
    names = kinds(lowered._c)
    assert not any(kind.endswith("_prepack") for kind in names)
    assert names.count("prim::GetAttr") == names.count("quantized::conv2d") == 2
    assert torch.backends.quantized.engine == before


def test_lower_a_reference_from_a_file(tmp_path: Path) -> None:
    """Files write lists of numbers out again, which prepacking must see through."""
    model = script(nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)))
    prepared = jit_passes.calibrate(jit_passes.prepare(model), [X], progress=False)
    reference = jit_passes.convert(prepared)
    torch.jit.save(reference, str(tmp_path / "reference.pt"))
    loaded = torch.jit.load(str(tmp_path / "reference.pt"))
    with torch.no_grad():
        assert torch.equal(jit_passes.lower(loaded)(X), jit_passes.lower(reference)(X))
