"""The module of every node is the one that named_modules names, in whatever containers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.overrides
from torch import Tensor, nn

import jit_passes
from jit_passes.export import encodings_of, to_aimet, to_nni
from jit_passes.stages.normalize import normalized_graph
from tests.advice import traced_branches

X = torch.linspace(-1, 1, 32).reshape(2, 4, 4)


def linears(count: int) -> list[nn.Linear]:
    """Returns layers of one type, which scripting gives one class."""
    return [nn.Linear(4, 4) for _ in range(count)]


class Lists(nn.Module):
    """Two lists, so that `enc.0` and `dec.0` both end in 0."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.ModuleList(linears(2))
        self.dec = nn.ModuleList(linears(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.enc:
            x = torch.relu(layer(x))
        for layer in self.dec:
            x = torch.tanh(layer(x))
        return x


class Dicts(nn.Module):
    """A dict by key, one in its order, and lists in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key = nn.ModuleDict({"a": linears(1)[0], "b": linears(1)[0]})
        self.deep = nn.ModuleDict({"left": Lists(), "right": Lists()})

    def forward(self, x: Tensor) -> Tensor:
        x = self.by_key["b"](x) + self.by_key["a"](x)
        for branch in self.deep.values():
            x = branch(x)
        return x


class Nested(nn.Module):
    """Lists in lists, and sequentials in them: called, indexed, gone through, with others."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.ModuleList([nn.ModuleList(linears(2)), nn.ModuleList(linears(2))])
        self.parts = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(5)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for row in self.grid:
            for layer in row:
                x = layer(x)
        x = self.parts[0](x)
        x = self.parts[1][2](self.parts[1][0](x))
        for layer in self.parts[2]:
            x = layer(x)
        for left, right in zip(self.parts[3], self.parts[4]):  # noqa: B905
            x = left(x) + right(x)
        return x


def scaled(layer_output: Tensor) -> Tensor:
    """A free function that modules call."""
    return torch.sigmoid(layer_output) * 0.5


class Helper(nn.Module):
    """Calls functions, and methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linears(2))

    def first(self, x: Tensor) -> Tensor:
        return scaled(self.layers[0](x))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.first(x))


class Helpers(nn.Module):
    """Several of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Helper(), Helper()])

    def again(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.again(x)) + self.blocks[0](x)


class Branch(nn.Module):
    """Its layers stand in a branch and in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linears(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > -1000.0:  # noqa: SIM108
            x = torch.relu(self.layers[0](x))
        else:
            x = self.layers[1](x)
        for _ in range(int(x.size(0))):
            x = self.layers[2](x)
        return x


class Branches(nn.Module):
    """Branches of modules in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Branch(), Branch()])

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[1](self.inner[0](x))


class Shared(nn.Module):
    """Modules with several names, of which named_modules gives the first."""

    def __init__(self, prepare: Callable[[Any], Any] = lambda module: module) -> None:
        super().__init__()
        self.first = nn.ModuleList([prepare(linears(1)[0]), prepare(Helper())])
        self.second = nn.ModuleList([*linears(1), self.first[0], self.first[1]])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.second:
            x = layer(x)
        return x


class Fork(nn.Module):
    """Layers that run in a branch of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Helper(), Helper()])

    def forward(self, x: Tensor) -> Tensor:
        left = torch.jit.fork(self.blocks[0], x)
        right = self.blocks[1](x)
        return torch.jit.wait(left) + right


class Forks(nn.Module):
    """Two of them, one called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.forks = nn.ModuleList([Fork(), Fork()])

    def forward(self, x: Tensor) -> Tensor:
        return self.forks[0](self.forks[1](self.forks[0](x)))


class Attention(nn.Module):
    """Attention as transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleDict({key: nn.Linear(4, 4) for key in ("q", "k", "v")})
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projections["q"](x), self.projections["k"](x), self.projections["v"](x)
        return self.out(torch.matmul(torch.softmax(torch.matmul(q, k.transpose(1, 2)), -1), v))


class EncoderLayer(nn.Module):
    """A layer of a transformer's encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.mlp(x))


class Encoder(nn.Module):
    """`encoder.layer.0`, as BERT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([EncoderLayer(), EncoderLayer()])})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder["layer"]:
            x = layer(x)
        return x


MODELS = (Lists, Dicts, Nested, Helpers, Branches, Forks, Encoder)
# Each is one node, inlined, frozen and in canonical form, by the functions that Python sees.
KINDS = {
    "linear": "linear", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "gelu": "gelu",
    "layer_norm": "layer_norm", "matmul": "matmul", "softmax": "softmax",
}  # fmt: skip


class Calls(torch.overrides.TorchFunctionMode):
    """Notes which module calls which function in eager mode, by hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.stack: list[str] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self.stack.append(name))
            module.register_forward_hook(lambda *_: self.stack.pop() and None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes the outermost function: GELU's is one, whatever it calls."""
        kind = getattr(func, "__name__", "")
        if kind in KINDS:
            self.found.append((self.stack[-1] if self.stack else "", KINDS[kind]))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def expected(make: type[nn.Module]) -> set[tuple[str, str]]:
    """Returns what eager mode calls, by module."""
    torch.manual_seed(0)
    model = make().eval()
    with Calls(model) as calls:
        model(X)
    assert calls.found
    return set(calls.found)


def found(nodes: Any) -> set[tuple[str, str]]:
    """Returns the same of a graph."""
    kinds = {f"aten::{kind}": kind for kind in KINDS.values()}
    return {(node.module, kinds[node.kind]) for node in nodes if node.kind in kinds}


def frontends(make: type[nn.Module], tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Gives the model scripted, traced, and each of them from a file."""
    torch.manual_seed(0)
    model = make().eval()
    for name, module in (
        ("scripted", torch.jit.script(model)),
        ("traced", torch.jit.trace(model, X)),
    ):
        yield name, module
        module.save(str(tmp_path / f"{name}.pt"))
        yield f"{name}, loaded", torch.jit.load(str(tmp_path / f"{name}.pt"))


def nodes_of_passes(module: Any) -> list[Any]:
    """Returns what a pass in Python sees, inlined and not frozen."""
    seen: list[Any] = []

    @jit_passes.register_pass("look", summary="Look at all nodes.")
    def look(graph: jit_passes.GraphEditor) -> None:
        seen.extend(SimpleNamespace(module=n.module, kind=n.kind) for n in graph.nodes)

    try:
        jit_passes.run_pass("look", module)
    finally:
        jit_passes.passes.remove("look")
    return seen


@traced_branches
@pytest.mark.parametrize("make", MODELS)
def test_modules_of_nodes(make: type[nn.Module], tmp_path: Path) -> None:
    """After freezing and after inlining, from every frontend."""
    wanted = expected(make)
    for name, module in frontends(make, tmp_path):
        eager = wanted
        if not name.startswith("traced") and make is Branches:  # the other branch is there too
            eager = wanted | {(f"inner.{i}.layers.1", "linear") for i in range(2)}
        assert found(normalized_graph(module).nodes) == eager, name
        if make is not Forks:  # what is not waited for at once may stay a graph of its own
            assert found(nodes_of_passes(module)) == eager, name


def test_shared_modules(tmp_path: Path) -> None:
    """A module with several names has the first one."""
    wanted = expected(Shared)
    assert {module for module, _ in wanted} >= {"first.0", "first.1", "first.1.layers.0"}
    module = torch.jit.script(Shared(torch.jit.script).eval())
    assert found(normalized_graph(module).nodes) == wanted
    assert found(nodes_of_passes(module)) == wanted
    module.save(str(tmp_path / "shared.pt"))
    assert found(normalized_graph(torch.jit.load(str(tmp_path / "shared.pt"))).nodes) == wanted


@pytest.mark.parametrize("frontend", [torch.jit.script, lambda m: torch.jit.trace(m, X)])
def test_shared_modules_of_which_torch_makes_several(frontend: Callable[[Any], Any]) -> None:
    """Scripting and tracing make a module for each name of a shared eager one: those are named."""
    module = frontend(Shared().eval())
    modules = {name for name, _ in found(normalized_graph(module).nodes)}
    assert modules <= {name for name, _ in module.named_modules()}
    assert {re.sub(r"second\.([12])", lambda m: f"first.{int(m[1]) - 1}", n) for n in modules} == {
        name for name, _ in expected(Shared)
    }


@pytest.fixture
def lists() -> torch.jit.ScriptModule:
    """Two lists of layers, scripted."""
    torch.manual_seed(0)
    return torch.jit.script(Lists().eval())


LAYERS = ["enc.0", "enc.1", "dec.0", "dec.1"]


def test_configuration_of_one_layer(lists: torch.jit.ScriptModule) -> None:
    """A rule for `enc.0` is about that one, not about `dec.0`."""
    config = {"version": 1, "rules": [{"module": "enc.0", "keep_float": True}]}
    quantized = jit_passes.quantize_script(lists, [X], config=config, progress=False)
    rows = {row.name: row.dtype for row in jit_passes.coverage(quantized)}
    assert rows == {f"{n}:linear": "float" if n == "enc.0" else "int8" for n in LAYERS}


def test_names_of_what_is_trained(lists: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Scales belong to the module in the list, and names survive a file in the middle."""
    trained = jit_passes.prepare_qat(lists, target="reference")
    assert {f"{name}.weight_scale" for name in LAYERS} <= trained.state_dict().keys()
    trained.train()(X)
    trained.save(str(tmp_path / "qat.pt"))
    for model in (trained, torch.jit.load(str(tmp_path / "qat.pt"))):
        reference = jit_passes.convert(model.eval())
        assert [row.name for row in jit_passes.coverage(reference)] == [
            f"{name}:linear" for name in LAYERS
        ]
        layers = [layer.name for layer in encodings_of(reference).layers]
        assert layers == LAYERS


def test_export_to_engines_that_think_in_modules(lists: torch.jit.ScriptModule) -> None:
    """NNI's and AIMET's tables are by module."""
    prepared = jit_passes.prepare(lists, target="reference")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [X], progress=False))
    encodings = encodings_of(reference)
    assert set(LAYERS) <= to_nni(encodings).keys()
    parameters = {entry["name"] for entry in to_aimet(encodings)["param_encodings"]}
    assert {f"{name}.weight" for name in LAYERS} <= parameters


def test_names_of_a_prepared_model_from_a_file(
    lists: torch.jit.ScriptModule, tmp_path: Path
) -> None:
    """Calibrated after loading, its values are called as they were."""
    jit_passes.prepare(lists).save(str(tmp_path / "prepared.pt"))
    prepared = torch.jit.load(str(tmp_path / "prepared.pt"))
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [X], progress=False))
    assert [row.name for row in jit_passes.coverage(reference)] == [f"{n}:linear" for n in LAYERS]


def test_profile_of_lists(lists: torch.jit.ScriptModule) -> None:
    """Values of a profile have the names of configurations."""
    profile = jit_passes.profile(lists, [X], progress=False)
    assert {f"{name}:linear" for name in LAYERS} <= profile.values.keys()


def test_rule_for_some_modules(lists: torch.jit.ScriptModule) -> None:
    """`modules` of a rule are globs of these names."""

    def pattern(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def replacement(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.matmul(x, weight.t()) + bias

    rule = jit_passes.RewriteRule("by_matmul", pattern, replacement, modules="enc.*")
    result = rule.apply(lists, verify=X)
    made = found(nodes_of_passes(result.module))
    assert {module for module, kind in made if kind == "linear"} == {"dec.0", "dec.1"}
    assert {module for module, kind in made if kind == "matmul"} == {"enc.0", "enc.1"}


def test_error_inside_a_list_shows_the_calls(lists: torch.jit.ScriptModule) -> None:
    """The interpreter names the functions that inlining went through."""
    prepared = jit_passes.prepare_qat(lists).train()
    with pytest.raises(RuntimeError, match=r"test_module_paths\.py.*in forward"):
        prepared(torch.zeros(2, 7))
