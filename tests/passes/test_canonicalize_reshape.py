"""Reshapes by computed sizes, in terms of the axes that they join and split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes.stages.normalize import normalize


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c, h, w = x.size()
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous()
        return x.view(n, c, h, w)


class Gate(nn.Module):
    """Squeeze and excitation, as its authors write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(n, c)
        y = torch.sigmoid(self.fc(y)).view(n, c, 1, 1)
        return x * y


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return x.view(x.size(0), -1)


class Tokens(nn.Module):
    """Pixels in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, c = x.shape[0], x.shape[1]
        return x.reshape(n, c, -1).transpose(1, 2)


class Sizes(nn.Module):
    """Sizes behind the last axis, of another value, and of a number that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = y.reshape(y.size(0), y.size(1), -1, 2)
        return z.reshape(y.size(0), 2, 3, y.size(-2), y.size(-1)).flatten(0, 1)


class Pyramid(nn.Module):
    """A detector's head: boxes at several levels in a row, with the batch size of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.mixed = nn.Conv2d(16, 8, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 6, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        large = self.stem(x)
        small = self.down(large)
        up = F.interpolate(small, scale_factor=2.0, mode="nearest")
        large = self.mixed(torch.cat([up, large], 1))
        first, second = large.chunk(2, 1)
        small = self.down(torch.cat([second, first], 1))
        levels = [self.heads[0](large), self.heads[1](small)]
        return torch.cat([level.view(levels[0].shape[0], 6, -1) for level in levels], 2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "shuffle": Shuffle, "gate": Gate, "head": Head, "tokens": Tokens, "sizes": Sizes,
    "pyramid": Pyramid,
}  # fmt: skip
LEFT = {"sizes": {"aten::reshape", "aten::size"}}


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model_stays_the_same(name: str, traced: bool) -> None:
    """At any sizes; and nothing asks for them any more."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    x = torch.randn(2, 3, 8, 10)
    script = torch.jit.trace(model, x) if traced else torch.jit.script(model)
    module = normalize(script._c).module
    found = {node.kind for node in jit_passes.GraphView.of(module).nodes}
    assert found & {"aten::reshape", "aten::view", "aten::size"} == LEFT.get(name, set())
    for size in ((2, 3, 8, 10), (1, 3, 12, 8), (5, 3, 4, 4)):
        x = torch.randn(size)
        assert torch.equal(module.forward(x), model(x))


class Heads(nn.Module):
    """Attention whose number of heads is open, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, 8]."""
        q, k, v = [f(x).view(x.size(0), x.size(1), -1, 4).transpose(1, 2) for f in self.qkv]
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(y.reshape(x.size(0), x.size(1), -1))


class Split(nn.Module):
    """A linear layer whose input may have any number of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, ..., 4]."""
        return self.fc(x).reshape(x.size(0), x.size(1), -1, 4)


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_open_number_of_heads(traced: bool) -> None:
    """The model stays the same, and is one region."""
    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(2, 5, 8)
    script = torch.jit.trace(model, x) if traced else torch.jit.script(model)
    module = normalize(script._c).module
    found = {node.kind for node in jit_passes.GraphView.of(module).nodes}
    assert not found & {"aten::reshape", "aten::view", "aten::size"}
    with torch.no_grad():
        for size in ((2, 5, 8), (1, 1, 8), (3, 7, 8)):
            x = torch.randn(size)
            assert torch.equal(module.forward(x), model(x))
    planned = jit_passes.quantize_script(
        script, [torch.randn(8, 5, 8)], target="x86", mode="static"
    )
    regions = [node for node in jit_passes.GraphView.of(planned).nodes if "region" in node.name]
    assert len(regions) <= 1 and "aten::size" not in str(planned.graph)


def test_open_size_of_any_rank() -> None:
    """Axes between those that are named and the features are joined with them."""
    model = Split().eval()
    module = normalize(torch.jit.script(model)._c).module
    assert "aten::flatten" in {node.kind for node in jit_passes.GraphView.of(module).nodes}
    for size in ((2, 5, 8), (2, 5, 3, 8), (2, 1, 1, 2, 8)):
        x = torch.randn(size)
        assert torch.equal(module.forward(x), model(x))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 8))
    with pytest.raises(RuntimeError):
        module.forward(torch.randn(2, 8))


class Biased(nn.Module):
    """Attention with a number for each pair of tokens, which tells how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.randn(1, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, 5, 8]."""
        n, t, c = x.size()
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.softmax(q @ k.transpose(2, 3) + self.bias, -1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, c))


@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_features_of_a_reader(traced: bool) -> None:
    """The size in front of them follows, though the graph has a number for it and a size."""
    torch.manual_seed(0)
    model, x = Biased().eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        script = torch.jit.trace(model, x) if traced else torch.jit.script(model)
    module = normalize(script._c).module
    found = {node.kind for node in jit_passes.GraphView.of(module).nodes}
    assert not found & {"aten::reshape", "aten::view", "aten::size"}
    with torch.no_grad():
        for size in (2, 1, 7):
            x = torch.randn(size, 5, 8)
            assert torch.equal(module.forward(x), model(x))


class Ranks(nn.Module):
    """A reader of two axes, in a branch that three axes do not take."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 12), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return [2, N] or [N, T, 5]."""
        x = self.fc(x)
        return x.permute(1, 0) if x.dim() == 2 else self.out(x.reshape([x.size(0), -1, 6]))


def test_readers_in_branches() -> None:
    """Readers in branches say nothing of the rank that others see."""
    model = Ranks().eval()
    module = normalize(torch.jit.script(model)._c).module
    for size in ((3, 8), (2, 7, 8), (2, 12, 8)):
        x = torch.randn(size)
        assert torch.equal(module.forward(x), model(x))


def test_sizes_after_a_write() -> None:
    """A value that changes its shape in place has other sizes before and after."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            n, c = x.size(0), x.size(2)
            x.transpose_(1, 2)
            return x.reshape(n, c, -1)

    model = Written().eval()
    module = normalize(torch.jit.script(model)._c).module
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(module.forward(x), model(x))


class Rows(nn.Module):
    """Splits the rows that a layer gives by sizes of a convolution's result."""

    def __init__(self, behind: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.fc, self.behind = nn.Conv2d(2, 4, 2), nn.Linear(5, 4), behind

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        rows = self.fc(y.reshape(-1, y.size(-1)))
        return rows.reshape([y.size(0), y.size(1), *self.behind])


class OpenRows(nn.Module):
    """Splits features behind a convolution, with an open size in front of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(2, 1, 1), nn.BatchNorm1d(4)
        self.fc = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.fc(y).reshape(y.size(0), -1, 2, 5).transpose(1, 2)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (Rows((4,)), [(2, 4, 6), (3, 2, 2, 6)]),
        (Rows((-1, 4)), [(2, 4, 6), (3, 2, 4, 6)]),
        (OpenRows(), [(2, 4, 10)]),
    ],
    ids=["rows", "rows of four sizes", "open"],
)
def test_convolutions_without_a_batch_axis(model: nn.Module, sizes: list[tuple[int, ...]]) -> None:
    """A size in front is that of the channels, or that of the batch: no step takes it for one."""
    scripted = torch.jit.script(model.eval())
    module = normalize(scripted._c).module
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size)
            torch.testing.assert_close(module.forward(x), model(x), rtol=0, atol=1e-5)


class Attended(nn.Module):
    """Attention that gives its result the sizes of its operand."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        q = self.fc(x).reshape(x.size(0), x.size(1), 5, 1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2)
        return self.out(y.reshape(x.shape))


def test_one_run_names_all_axes() -> None:
    """One reshape tells the rank that another one needs."""
    model = Attended().eval()
    found = torch.jit.script(model)
    for step in ("freeze", "simplify", "canonicalize_reshape"):
        found = jit_passes.run_pass(step, found)
    assert "reshape" not in jit_passes.format_graph(found)
    x = torch.randn(2, 6, 5)
    assert torch.equal(found(x), model(x))
