"""Lists that the model fills as it runs: what is left of them, and that no result changes.

Results are those of the module in Python, to the bit: the pass computes nothing.
"""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.view import GraphView
from jit_passes.passes.subject import wrap
from jit_passes.stages.normalize import normalize, normalize_training

WRITES = {f"aten::{name}" for name in ("append", "extend", "insert", "pop", "_set_item", "clear",
                                       "reverse", "add_", "Delete")}  # fmt: skip
X = torch.arange(6.0).reshape(2, 3) - 2.5

# Bodies of forward(self, x: Tensor, n: int), with T = list[Tensor] and cat = torch.cat.
RESOLVED = {
    "append": "l = [x]; l.append(x + 1); l.append(x + 2); return cat(l)",
    "read in between": "l = [x]; a = cat(l); l.append(a + 1); return a, cat(l)",
    "dense": "l = [x]\nfor i in range(4):\n  l.append(cat(l).tanh())\nreturn cat(l)",
    "from nothing": "l: T = []; l.append(x); l.append(x * n); return torch.stack(l)",
    "another name": "a = [x]; b = a; b.append(x + 1); a.append(x + 2); return cat(a) + cat(b)",
    "copy": "a = [x]; b = a.copy(); b.append(x + 1); a.append(x + 2); return cat(a), cat(b)",
    "list()": "a = [x]; b = list(a); a.append(x + 1); return cat(a), cat(b)",
    "sum": "a = [x]; b = a + [x + 1]; a.append(x + 2); return cat(a), cat(b)",
    "plus nothing": "a = [x, x + n]; b: T = []; return cat(a + b), cat(b + a)",
    "plus itself": "a = [x]; a.append(x + 1); b = a + a; b.append(x); return cat(a), cat(b)",
    "+=": "a = [x]; b = a; a += [x + 1]; return cat(a), cat(b)",
    "extend": "a = [x]; b = [x + 1]; a.extend(b); b.append(x); a.extend(b); return cat(a)",
    "in a list": "a = [x]; a.append(x); b = [a]; a.append(x + 1); b[0].append(x + 2); c = b[0]; "
    "return cat(a), cat(c), len(a)",
    "extend by itself": "a = [x, x + 1]; a.extend(a); return cat(a)",
    "insert": "a = [x, x + 1]; a.insert(1, x + 2); a.insert(-1, x + 3); a.insert(-9, x + 4); "
    "a.insert(99, x + 5); return cat(a)",
    "pop": "a = [x, x + 1, x + 2]; b = a.pop(); c = a.pop(0); return b - c, cat(a)",
    "set": "a = [x, x]; a[0] = x + 1; a[-1] = a[0] * 2; return cat(a)",
    "del": "a = [x, x + 1, x + 2]; del a[1]; return cat(a)",
    "clear": "a = [x, x + 1]; b = cat(a); a.clear(); a.append(b); return cat(a)",
    "reverse": "a = [x, x + 1]; a.append(x + 2); a.reverse(); return cat(a)",
    "elements": "a = [x]; a.append(x + 1); return a[0], a[-1], a[1] + a[-2]",
    "slices": "a = [x, x + 1]; a.append(x + 2); a.append(x + 3); "
    "return cat(a[1:]), cat(a[:-1]), cat(a[::2]), cat(a[-99:3]), len(a[3:1])",
    "unpack": "a = [x]; a.append(x + 1); b, c = a; return b * c",
    "lengths": "a = [x]; a.append(x)\nif len(a) > 1:\n  a.append(x + 1)\nreturn cat(a), len(a)",
    "over its elements": "a = [x]; a.append(x + 1); y = x\nfor e in a:\n  y = y * 2 + e\nreturn y",
    "numbers": "a = [2]; a.append(3); return x.reshape(a)",
    "comprehension": "a = [x + i for i in range(3)]; a.append(x); return cat([e * 2 for e in a])",
    "returned": "a = [x]; a.append(x + 1); y = cat(a); a.append(y); return a",
    "read in a branch": "a = [x]; a.append(x + 1); y = x\nif n > 1:\n  y = cat(a) + a[1][0, 0]\n"
    "a.append(x); return y.sum(), cat(a)",
    "read in a loop": "a = [x]; a.append(x + 1); y = x.sum()\nfor i in range(n):\n"
    "  y = y * 2 + cat(a).sum()\na.append(x); return y, cat(a)",
    "inside a branch": "y = x\nif n > 1:\n  a = [x]; a.append(x + 1); y = cat(a)\nreturn y",
    "inside a loop": "y = x.sum()\nfor i in range(n):\n  a = [x]; a.append(x * y); "
    "y = cat(a).sum()\nreturn y",
    "appended to a list": "a = [x]; a.append(x); b = [[x]]; b.append(a); a.append(x + 1); "
    "return cat(b[1]), cat(a)",
    "written elements": "a = [x.clone()]; a[0].add_(1); a.append(x); a[0].mul_(2); "
    "return cat(a), a[0]",
}  # fmt: skip
LEFT = {
    "in a branch": "a = [x]\nif n > 1:\n  a.append(x + 1)\na.append(x + 2); return cat(a)",
    "in a loop": "a = [x]\nfor i in range(n):\n  a.append(x + i)\n"
    "b = cat(a); a.append(b); return cat(a)",
    "popped in a loop": "a = [x, x + 1, x + 2]; a.append(x + 3)\nfor i in range(n):\n"
    "  x = x + a.pop()\na.append(x); return cat(a)",
    "in a tuple": "a = [x]; a.append(x + 1); t = (a, x); a.append(x + 2); t[0].append(x + 3); "
    "return cat(a), cat(t[0]), t",
    "in a dictionary": "a = [x]; a.append(x); d = {'a': a}; a.append(x + 1); return cat(d['a'])",
    "chosen": "a = [x]; a.append(x + 1); b = [x + 2]; c = a\nif n > 1:\n  c = b\nc.append(x + 3); "
    "return cat(a), cat(b), cat(c)",
    "computed place": "a = [x, x + 1, x]; a[n - 1] = x + 2; a.append(x); return cat(a)",
    "sorted": "a = [3, 1]; a.append(2); a.sort(); a.append(n); return a",
    "of unknown elements": "b = list(torch.chunk(x, 3, 1)); b.append(x); c = [x]; c.extend(b); "
    "c.append(x); return cat(c, 1)",
}  # fmt: skip
ERRORS = {
    "index": "a = [x]; a.append(x); return a[5]",
    "pop": "a = [x]; a.clear(); y = a.pop(); return cat([y])",
    "set": "a = [x]; a.append(x); a[-3] = x; return cat(a)",
    "unpack": "a = [x]; a.append(x); b, c, d = a; return b",
}


def module_of(body: str) -> nn.Module:
    """Return a module with that body of forward, in a file that the compiler can read."""
    lines = ["class Model(nn.Module):", " def forward(self, x: Tensor, n: int):"]
    lines += [f"  {line}" for line in body.replace(": T =", ": list[Tensor] =").split("\n")]
    source = "\n".join(lines)
    name = f"<lists {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {
        "nn": nn,
        "torch": torch,
        "cat": torch.cat,
        "Tensor": Tensor,
        "__name__": __name__,
    }
    exec(compile(source, name, "exec"), space)
    model: nn.Module = space["Model"]()
    return model.eval()


def kinds(module: Any) -> set[str]:
    return {node.kind for node in GraphView.of(module, "forward").nodes}


def flat(value: Any) -> list[Any]:
    return (
        [leaf for item in value for leaf in flat(item)]
        if isinstance(value, list | tuple)
        else [value]
    )


def assert_same_results(module: Any, model: nn.Module) -> None:
    for n in (1, 2, 3):
        found, expected = (flat(f(X.clone(), n)) for f in (module, model))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


@pytest.mark.parametrize("how", [normalize, normalize_training])
@pytest.mark.parametrize("name", RESOLVED)
def test_resolved(name: str, how: Any) -> None:
    """Nothing is left that writes to a list."""
    model = module_of(RESOLVED[name])
    scripted = torch.jit.script(model)
    module = how(scripted._c).module if how is normalize else how(scripted)
    assert not kinds(module) & WRITES - ({"aten::add_"} if name == "written elements" else set())
    assert_same_results(wrap(module), model)


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    """Others can have the list, or where it is written to depends on the run."""
    model = module_of(LEFT[name])
    module = normalize(torch.jit.script(model)._c).module
    assert kinds(module) & {*WRITES, "aten::sort"}
    assert_same_results(wrap(module), model)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_stay(name: str) -> None:
    model = module_of(ERRORS[name])
    module = wrap(normalize(torch.jit.script(model)._c).module)
    with pytest.raises(Exception, match=r"out of range|from empty list|Expected 3 elements"):
        module(X, 1)


def test_identity_of_lists_stays() -> None:
    """A copy is another object than its original, which `is` can tell."""
    body = (
        "a = [x]\nb = a\nc = list(a)\na.append(x + 1)\nreturn a is b, a is c, b is c, torch.cat(a)"
    )
    model = module_of(body)
    assert_same_results(wrap(normalize(torch.jit.script(model)._c).module), model)


class Layer(nn.Module):
    """Of a DenseNet, with the branch for checkpoints that torchvision's has."""

    def __init__(self, channels: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)

    def bottleneck(self, features: list[Tensor]) -> Tensor:
        return self.conv(torch.relu(self.norm(torch.cat(features, 1))))

    def forward(self, x: list[Tensor]) -> Tensor:
        if self.checkpointed and any(f.requires_grad for f in x) and not torch.jit.is_scripting():
            return self.bottleneck([f.detach() for f in x])
        return self.bottleneck(x)


class Net(nn.Module):
    """A stem, a dense block and a classifier; `listed` as a traced model cannot be told from."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.layers = nn.ModuleDict({f"l{i}": Layer(8 + 4 * i, checkpointed) for i in range(4)})
        self.norm = nn.BatchNorm2d(24)
        self.last = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for _, layer in self.layers.items():
            features.append(layer(features))
        y = torch.relu(self.norm(torch.cat(features, 1)))
        return self.last(torch.flatten(nn.functional.adaptive_avg_pool2d(y, (1, 1)), 1))


@pytest.fixture(params=[False, True], ids=["", "checkpointed"])
def net(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    net = Net(request.param)
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_var.uniform_(0.5, 2), norm.running_mean.normal_()
            norm.weight.data.normal_(), norm.bias.data.normal_()
    return net.eval()


def operators(module: Any) -> list[str]:
    """In order, without constants, which tracing orders otherwise."""
    return [
        node.kind for node in GraphView.of(module, "forward").nodes if node.kind[:6] != "prim::"
    ]


@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
def test_dense_net_scripted_is_traced(net: nn.Module, target: str) -> None:
    """The scripted model has the graph of the traced one, quantized places and numbers included."""
    batches = [torch.randn(2, 3, 21, 21) for _ in range(3)]
    both = []
    with torch.no_grad():  # a trace takes the branch for checkpoints otherwise
        traced_net = torch.jit.trace(net, batches[0], check_trace=False)
    for model in (torch.jit.script(net), traced_net):
        prepared = jit_passes.prepare(model, target=target)
        jit_passes.calibrate(prepared, batches)
        both.append((prepared, jit_passes.convert(prepared)))
    scripted, traced = both
    for a, b in zip(scripted, traced, strict=True):
        assert operators(a._c) == operators(b._c)
        assert torch.equal(a(batches[0]), b(batches[0]))
    assert not jit_passes.coverage(scripted[1]).float
    codes = [node for node in operators(scripted[1]._c) if node == "jit_passes::quantize"]
    assert len(codes) >= 4 * 3  # not convolutions alone: concatenations and batch norms


def test_dense_net_training(net: nn.Module) -> None:
    """Models that train, and models with slots, come through the same door."""
    x = torch.randn(2, 3, 21, 21)
    for model in (torch.jit.script(net), torch.jit.trace(net, x, check_trace=False)):
        qat = jit_passes.prepare_qat(model, target="x86")
        assert not kinds(qat._c) & WRITES - {"aten::add_"}  # it counts batches


class Aggregated(nn.Module):
    """A node of a deep layer aggregation, whose children are none by default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.root = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor, children: list[Tensor] | None = None) -> Tensor:
        children = [] if children is None else children
        y = torch.relu(self.first(x))
        features = [torch.relu(self.second(y)), y] + children  # noqa: RUF005  TorchScript has no *
        return self.root(torch.cat(features, 1)) + features[0]


class Tree(nn.Module):
    """Calls it without children."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Aggregated()

    def forward(self, x: Tensor) -> Tensor:
        return self.node(x)


@pytest.mark.parametrize("target", ["x86", "stock", "reference"])
def test_no_children(target: str) -> None:
    """A sum of lists is no sum of tensors, and gone where it is known."""
    model = Tree().eval()
    x = torch.randn(2, 3, 9, 9)
    quantized = jit_passes.quantize_script(
        torch.jit.script(model), [x, -x], target=target, progress=False
    )
    assert len(jit_passes.coverage(quantized).int8) == 3
    assert target != "x86" or "aten::cat" not in operators(quantized._c)
    with torch.no_grad():
        noise = (quantized(x) - model(x)).square().sum()
        assert 10 * (model(x).square().sum() / noise).log10() > 25
