"""Masks and positions that a model makes of sizes of its layers' results: made in front of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes.passes.subject import wrap
from jit_passes.stages.normalize import normalize
from tests.compare import sqnr
from tests.plans import plans_in
from tests.processor import needs_vnni

SIZES = ((2, 3, 32, 28), (1, 3, 57, 43), (3, 3, 30, 31), (1, 3, 9, 16))


class Net(nn.Module):
    """A stem, as image transformers have it; what follows makes a mask of sizes."""

    def __init__(self, follow: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.LayerNorm(8)
        self.linear, self.down = nn.Linear(8, 8), nn.Conv2d(8, 8, 3, 2, dilation=2, padding=2)
        self.follow = follow

    def forward(self, x: Tensor) -> Tensor:
        return self.follow(self, self.norm(self.stem(x).permute(0, 2, 3, 1)))


def padded(y: Tensor) -> Tensor:
    right, below = (7 - y.shape[2] % 7) % 7, (7 - y.shape[1] % 7) % 7
    return F.pad(y, (0, 0, 0, right, 0, below))


def rows(net: Net, y: Tensor) -> Tensor:
    return net.linear(y) + torch.arange(y.shape[1]).reshape(-1, 1, 1) / 8


def windows(net: Net, y: Tensor) -> Tensor:
    """A mask for windows of 7, written in parts, as that of Swin."""
    z = padded(y)
    mask = z.new_zeros((z.shape[1], z.shape[2]))
    mask[:-3, -3:] = 1.0
    mask[-3:] = 2.0
    return (net.linear(z) + mask.unsqueeze(-1))[:, : y.shape[1], : y.shape[2]]


def cut(net: Net, y: Tensor) -> Tensor:
    """A residual sum of what was padded and cut, and every second of its rows."""
    z = y + net.linear(padded(y))[:, : y.shape[1], : y.shape[2]]
    parts = torch.cat([z[:, 0::2], z[:, 1::2]], 1)
    return net.linear(parts) * torch.ones(parts.shape[1], parts.shape[2], 1)


def pooled(net: Net, y: Tensor) -> Tensor:
    z = net.down(F.max_pool2d(y.permute(0, 3, 1, 2), 3, 2, 1))
    return z + torch.linspace(-1, 1, 8).reshape(8, 1, 1).expand(8, z.shape[2], z.shape[3])


def flat(net: Net, y: Tensor) -> Tensor:
    """Positions of tokens, of which there are as many as pixels."""
    z = net.linear(y.flatten(1, 2))
    return z + torch.arange(z.shape[1]).unsqueeze(-1) / 64


FOLLOW = [rows, windows, cut, pooled, flat]
followed = pytest.mark.parametrize("follow", FOLLOW, ids=lambda f: f.__name__)


def traced(follow: Callable[[Net, Tensor], Tensor]) -> tuple[nn.Module, torch.jit.ScriptModule]:
    torch.manual_seed(0)
    model = Net(follow).eval()
    with torch.no_grad():
        return model, torch.jit.trace(model, torch.randn(*SIZES[0]))  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore")  # the tracer's, of sizes
@followed
def test_same_numbers(follow: Callable[[Net, Tensor], Tensor]) -> None:
    """The bits of the model in all sizes; what is made of sizes reads no layer's result."""
    _, script = traced(follow)
    normal = wrap(normalize(script._c, "forward", ()).module)
    for sizes in SIZES:
        x = torch.randn(*sizes)
        with torch.no_grad():
            assert torch.equal(normal(x), script(x))
    graph = normal.graph
    makers = [node for node in graph.nodes() if follows_from_sizes(node)]
    assert makers
    for maker in makers:
        assert asked_of(maker) <= {"x"}, maker


def follows_from_sizes(node: torch._C.Node) -> bool:
    return node.kind() in ("aten::arange", "aten::new_zeros", "aten::ones", "aten::expand")


def asked_of(node: torch._C.Node) -> set[str]:
    """The tensors whose sizes the numbers of an operator are made of."""
    found: set[str] = set()
    seen: set[str] = set()
    pending = [node]
    while pending:
        for value in pending.pop().inputs():
            maker = value.node()
            if maker.kind() == "aten::size":
                found.add(next(maker.inputs()).debugName().partition(".")[0])
            elif value.debugName() not in seen and maker.kind() != "prim::Constant":
                seen.add(value.debugName())
                pending.append(maker)
    return found


@needs_vnni
@pytest.mark.filterwarnings("ignore")
@followed
def test_one_plan(follow: Callable[[Net, Tensor], Tensor]) -> None:
    _, script = traced(follow)
    data = [torch.randn(*sizes) for sizes in SIZES]
    quantized = jit_passes.quantize_script(script, data, target="x86", progress=False)
    assert len(plans_in(quantized)) == 1
    with torch.no_grad():
        for sizes in (*SIZES, (2, 3, 41, 22)):
            x = torch.randn(*sizes)
            assert sqnr(script(x), quantized(x)) > 20


def test_many_layers() -> None:
    """Numbers that follow from one another have many paths: each is looked at once."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, 2, 1)
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(24)])

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x).permute(0, 2, 3, 1)
            for layer in self.layers:
                h, w = y.shape[1], y.shape[2]
                y = y + layer(padded(y))[:, :h, :w] + y.new_zeros((h, w, 1))
            return y

    x = torch.randn(1, 3, 20, 18)
    with torch.no_grad():
        script = torch.jit.trace(Deep().eval(), x, check_trace=False)
    quantized = jit_passes.quantize_script(script, [x], target="x86", progress=False)
    assert len(plans_in(quantized)) == 1
    assert quantized(torch.randn(1, 3, 33, 21)).shape == (1, 17, 11, 8)
