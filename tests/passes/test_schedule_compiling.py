"""Results of script and trace while passes are scheduled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.jit import script as script_imported_before
from torch.jit import trace as trace_imported_before
from torch.jit import trace_module as trace_module_imported_before

from jit_passes import JitPassesWarning, scheduled
from tests.passes.scheduling import F, Net, X, fresh, nothing, relu_to_gelu, swap
from tests.passes.scheduling import nothing_is_left as nothing_is_left


def test_scripted_module() -> None:
    """Python object, parameters, buffers and state stay; all methods were processed."""
    net = Net().train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with scheduled(relu_to_gelu) as handle:
        scripted = torch.jit.script(net)
    assert type(scripted) is torch.jit.RecursiveScriptModule
    assert handle.changed == handle.runs == 2
    assert scripted.training
    assert list(scripted.state_dict()) == list(state)
    for (name, ours), (other, theirs) in zip(
        scripted.named_parameters(), net.named_parameters(), strict=True
    ):
        assert name == other and ours is theirs
    for (name, ours), (other, theirs) in zip(
        scripted.named_buffers(), net.named_buffers(), strict=True
    ):
        assert name == other and ours.data_ptr() == theirs.data_ptr()
    assert torch.equal(scripted.encode(X), F.gelu(X))
    assert scripted.describe() == "a net"
    x = torch.randn(8, 5)
    expected = F.gelu(F.batch_norm(net.linear(x), None, None, training=True)) * 2.0
    torch.testing.assert_close(scripted(x), expected)  # the default of `scale`
    assert int(net.norm.num_batches_tracked) == 1  # the same buffers
    scripted.eval()
    torch.testing.assert_close(scripted(x, 3.0), F.gelu(net.eval().norm(net.linear(x))) * 3.0)
    assert torch.equal(torch.jit.script(Net()).encode(X), torch.relu(X))


def test_saved_module(tmp_path: object) -> None:
    """A file of a processed module loads, and holds what the pass made."""
    with scheduled(relu_to_gelu):
        scripted = torch.jit.script(Net().eval())
    torch.jit.save(scripted, f"{tmp_path}/net.pt")
    x = torch.randn(3, 5)
    loaded = torch.jit.load(f"{tmp_path}/net.pt")
    assert torch.equal(loaded(x), scripted(x))
    assert torch.equal(loaded.encode(X), F.gelu(X))


def test_module_in_a_module() -> None:
    """Only the whole is processed, once; a finished part goes into a later whole."""
    with scheduled(nothing) as handle:
        torch.jit.script(nn.Sequential(Net(), nn.ReLU()))
    assert handle.runs == 1  # Sequential has one method; encode was compiled for its part
    with scheduled(swap("relu", "sigmoid")):
        part = torch.jit.script(nn.Sequential(nn.ReLU()))
    whole = torch.jit.script(nn.Sequential(part, nn.ReLU()))
    assert torch.equal(whole(X), torch.relu(torch.sigmoid(X)))


def test_unchanged_module_is_as_pytorch_made_it() -> None:
    """With its submodules' methods, which a processed module has inlined."""
    with scheduled(nothing) as handle:
        scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    assert handle.runs == 1 and handle.changed == 0
    assert "CallMethod" in str(scripted.graph)
    assert torch.equal(scripted[0](X), torch.relu(X))


def test_functions() -> None:
    """A new function with the same name, arguments and defaults; PyTorch's own stays."""
    function = fresh("torch.relu(x) * k", "x: Tensor, k: float = 2.0")
    plain = torch.jit.script(function)
    with scheduled(relu_to_gelu):
        processed = torch.jit.script(function)
    assert isinstance(processed, torch.jit.ScriptFunction)
    assert str(processed.schema) == str(plain.schema)
    assert (processed.name, processed.qualified_name) == (plain.name, plain.qualified_name)
    assert torch.equal(processed(X), F.gelu(X) * 2.0)
    assert torch.equal(processed(X, k=3.0), F.gelu(X) * 3.0)
    assert torch.equal(plain(X), torch.relu(X) * 2.0)
    assert torch.equal(torch.jit.script(function)(X), torch.relu(X) * 2.0)


def test_function_that_calls_functions() -> None:
    """The callee is part of the caller, and processed with it alone."""
    inner = fresh()
    outer = fresh("inner(x) + inner(2 * x)", inner=inner)
    with scheduled(relu_to_gelu) as handle:
        processed = torch.jit.script(outer)
    assert handle.runs == 1
    assert torch.equal(processed(X), F.gelu(X) + F.gelu(2 * X))
    assert torch.equal(torch.jit.script(inner)(X), torch.relu(X))
    assert torch.equal(torch.jit.script(outer)(X), torch.relu(X) + torch.relu(2 * X))


def test_compiled_objects_come_back() -> None:
    """Unchanged, and nothing runs on them."""
    function, module = torch.jit.script(fresh()), torch.jit.script(nn.ReLU())
    with scheduled(relu_to_gelu) as handle:
        assert torch.jit.script(function) is function
        assert torch.jit.script(module) is module
        with pytest.warns(UserWarning, match="already a ScriptModule"):
            assert torch.jit.trace(module, X) is module
    assert handle.runs == 0


def test_traces() -> None:
    """Of functions, modules and several methods; PyTorch's check of the trace is none of ours."""

    class Plain(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

        def encode(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    net, x = Plain(5, 5), torch.randn(3, 5)
    with scheduled(relu_to_gelu) as handle:
        function = torch.jit.trace(lambda x: torch.relu(x) + 1, X)
        assert handle.runs == 1
        module = torch.jit.trace(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), x)
        assert handle.runs == 2
        several = torch.jit.trace_module(mod=net, inputs={"forward": x, "encode": x})
        assert handle.runs == 4
    assert isinstance(function, torch.jit.ScriptFunction)
    assert torch.equal(function(X), F.gelu(X) + 1)
    assert isinstance(module, torch.jit.TopLevelTracedModule)
    assert "aten::gelu" in str(module.graph) and "aten::relu" not in str(module.graph)
    torch.testing.assert_close(several(x), F.gelu(F.linear(x, net.weight, net.bias)))
    assert torch.equal(several.encode(x), F.gelu(x))
    assert next(several.parameters()) is next(net.parameters())


def test_names_that_were_imported_before() -> None:
    """script and trace are replaced inside; for trace_module there is a warning."""
    with scheduled(relu_to_gelu) as handle:
        assert torch.equal(script_imported_before(fresh())(X), F.gelu(X))
        assert torch.equal(trace_imported_before(torch.relu, X)(X), F.gelu(X))
        assert handle.runs == 2
        with pytest.warns(JitPassesWarning, match=r"call torch\.jit\.trace_module"):
            traced = trace_module_imported_before(nn.ReLU(), {"forward": X})
    assert torch.equal(traced(X), torch.relu(X))


def test_names_of_the_caller_are_found() -> None:
    """A class is compiled with the names around the call: one frame more must not hide them."""

    @torch.jit.script
    def triple(x: Tensor) -> Tensor:
        return x * 3

    with scheduled(nothing):

        @torch.jit.script
        class Scale:
            def __init__(self, x: Tensor) -> None:
                self.x = triple(x)

        @torch.jit.script
        def use(x: Tensor) -> Tensor:
            return Scale(x).x

    assert torch.equal(use(X), X * 3)
