"""Programs of `torch.export` as ScriptModules: results, names, structures, and the way back."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import jit_passes
from jit_passes import JitPassesError, from_exported_program, to_exported_program
from jit_passes.command_line import main
from tests.advice import decomposes
from tests.compare import call, clone, leaves
from tests.engines import Network, data, quantized
from tests.export.loops import LOOPS
from tests.models import BASIC, Case

BATCH = ({0: Dim("batch", min=2, max=64)},)


def program_of(model: nn.Module, *args: Any, **options: Any) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return export(model.eval(), args, **options)


def saved(model: torch.jit.ScriptModule) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(model, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def equal(found: Any, expected: Any) -> bool:
    pairs = zip(leaves(found), leaves(expected), strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


def check_close(found: Any, expected: Any) -> None:
    for (_, a), (_, b) in zip(leaves(found), leaves(expected), strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        else:
            assert a == b


@pytest.mark.parametrize("case", BASIC[::9], ids=lambda case: case.name)
def test_there_and_back(case: Case) -> None:
    """A scripted model, its program, the model of that, and the program of this one."""
    model, args = case.build(case.frontends[0]), case.arguments(2, 1)
    program = to_exported_program(model, clone(args), method=case.method)
    back = from_exported_program(program)
    first = from_exported_program(program)
    with torch.no_grad():
        for each in (back, first):  # of which each has a state of its own
            fresh = case.build(case.frontends[0])
            check_close(call(each, clone(args)), call(fresh, clone(args), case.method))
        again = to_exported_program(back, clone(args)).module()
        check_close(call(again, clone(args)), call(first, clone(args)))


def test_names_lines_and_quantization_are_those_of_the_model() -> None:
    """The quantized model is that of torch.jit.script to the bit, for any batch."""
    batches, network = data(4, 3, 16, 16), Network().eval()
    model = from_exported_program(export(network, (batches[0],), dynamic_shapes=BATCH))
    assert torch.equal(model(batches[1][:3]), network(batches[1][:3]))
    assert dict(model.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert model.head.weight.data_ptr() == network.head.weight.data_ptr()
    options: Any = {"target": "reference", "mode": "static", "progress": False}
    ours, theirs = (
        jit_passes.quantize_script(each, batches, **options)
        for each in (model, torch.jit.script(network))
    )
    assert torch.equal(ours(batches[2]), theirs(batches[2]))
    rows = [(row.name, row.kind, row.dtype, row.bits) for row in jit_passes.coverage(ours)]
    assert rows == [(r.name, r.kind, r.dtype, r.bits) for r in jit_passes.coverage(theirs)]
    sources = {row.source.rpartition(":")[0] for row in jit_passes.coverage(ours)}
    assert len(sources) == 1 and sources.pop().endswith("tests/engines.py")
    keep = {"version": 1, "rules": [{"module": "block.*", "keep_float": True}]}
    kept = jit_passes.quantize_script(model, batches, config=keep, **options)
    found = {row.name for row in jit_passes.coverage(kept) if row.dtype == "float"}
    assert found == {"block.a.0:conv2d", "block.b:conv2d"}


class Nested(nn.Module):
    """Nested arguments and results, a number, a branch by the data, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(
        self,
        x: Tensor,
        pair: tuple[Tensor, list[Tensor]],
        *,
        by_name: dict[str, Tensor],
        times: int,
    ) -> dict[str, tuple[Tensor, list[Tensor]]]:
        self.calls.add_(1)
        y = torch.cond(x.sum() > 0, self.left, self.right, (x,))
        total = pair[0] + pair[1][0] * by_name["b"] - by_name["a"]
        with torch.no_grad():
            y = y * math.ceil(x.size(0) / 2)
        return {"y": (y * times, [total.view(x.size(0) * 2, -1), self.calls * 1])}


def test_structures_branches_and_state() -> None:
    x = torch.randn(3, 4)

    def arguments(x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x, (x, [x])), {"by_name": {"a": x, "b": 2 * x}, "times": 3}

    size = {0: Dim("rows", min=2, max=9)}
    shapes = {"x": size, "pair": (size, [size]), "by_name": {"a": size, "b": size}, "times": None}
    args, kwargs = arguments(x)
    program = export(Nested().eval(), args, kwargs, dynamic_shapes=shapes, strict=False)
    model = saved(from_exported_program(program))
    expected = program.module()
    for given in (x.abs(), -torch.rand(5, 4)):
        args, kwargs = arguments(given)
        assert equal(model(*args, **kwargs), expected(*args, **kwargs))
    assert float(model.calls) == 2
    with pytest.raises(Exception, match="times is a constant"):
        model(*args, by_name=kwargs["by_name"], times=4)


class Counts(nn.Module):
    """Buffers that change, one of them by a part of it, which may be a buffer too."""

    def __init__(self, shares: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(3), persistent=False)
        self.register_buffer("first", self.last[:1] if shares else None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.last[1:].copy_(x[1:])
        (self.last[:1] if self.first is None else self.first).add_(2)
        return x * self.weight * self.calls + self.last


@decomposes
@pytest.mark.parametrize(("decomposed", "shares"), [(False, False), (False, True), (True, False)])
def test_the_state_of_a_model_is_its_own(decomposed: bool, shares: bool) -> None:
    """Calls of the model and of the program count apart; they have parameters in common.

    PyTorch decomposes no program with buffers that share memory.
    """
    network, x = Counts(shares).eval(), torch.tensor([1.0, 2.0, 3.0])
    program = export(network, (x,), strict=False)
    program = program.run_decompositions({}) if decomposed else program
    first, second = from_exported_program(program), from_exported_program(program)
    expected = x + torch.tensor([2.0, 2.0, 3.0])
    assert torch.equal(first(x), expected)
    assert torch.equal(first(x), 2 * x + torch.tensor([4.0, 2.0, 3.0]))
    assert torch.equal(second(x), expected)
    state = {**program.state_dict, **program.constants}
    assert not any(state[name].any() for name in ("calls", "last"))
    assert not network.calls.any()
    assert first.weight.data_ptr() == program.state_dict["weight"].data_ptr()


def test_buffers_that_stay_are_shared() -> None:
    """A large table is not copied."""
    program = export(nn.BatchNorm1d(4).eval(), (torch.randn(2, 4),))
    model = from_exported_program(program)
    assert model.running_mean.data_ptr() == program.state_dict["running_mean"].data_ptr()


@decomposes
def test_decomposed_programs_have_layers() -> None:
    """Convolutions and batch norms are themselves again, so that they are folded and quantized."""
    batches = data(2, 3, 8, 8)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2)
    )
    program = program_of(network, batches[0]).run_decompositions()
    model = from_exported_program(program)
    assert torch.equal(model(batches[0]), network(batches[0]))
    found = jit_passes.quantize_script(model, batches, target="reference", mode="static")
    rows = [(row.name, row.dtype) for row in jit_passes.coverage(found)]
    assert rows == [("0:conv2d", "int8"), ("3:conv_transpose2d", "int8")]


def test_quantized_programs_compute_the_same() -> None:
    batches = data(4, 3, 16, 16)
    reference = quantized(Network(), batches, "inductor")
    program = to_exported_program(reference, batches[0])
    model = from_exported_program(program)
    assert torch.equal(model(batches[1]), program.module()(batches[1]))
    assert any("quantized_decomposed" in str(node) for node in model.inlined_graph.nodes())


class Numbered(nn.Module):
    def forward(self, x: Tensor) -> dict[int, Tensor]:
        return {0: x, 1: x + 1}


class Rounds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops import while_loop

        return while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))[0]


def test_loops_come_back() -> None:
    model = from_exported_program(program_of(Rounds(), torch.ones(2)))
    for x in (torch.ones(2), torch.tensor([0.0, 6.5]), torch.tensor([5.0, 5.0])):
        assert torch.equal(model(x), Rounds()(x))


@pytest.mark.parametrize("name", ["newton", "fill"])
def test_loops_go_and_come_back(name: str) -> None:
    network, inputs, shapes = LOOPS[name]
    scripted = torch.jit.script(network().eval())
    model = from_exported_program(to_exported_program(scripted, inputs[0], shapes))
    for x in inputs:
        torch.testing.assert_close(model(x), scripted(x))


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.scan import scan

        return scan(lambda total, row: (total + row, total.clone()), torch.zeros(3), x)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 2), "ExportedProgram is needed, not a Linear"),
        (lambda: program_of(Sums(), torch.ones(2, 3)), "scan, which has no form"),
        (lambda: program_of(Numbered(), torch.ones(2)), "dict with keys that are no text"),
    ],
    ids=["module", "scan", "dict"],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        from_exported_program(make())


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.any"
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with path.open("wb") as file:
        torch.export.save(program_of(network, torch.randn(2, 8)), file)
    assert main(["inspect", str(path), "--target", "reference"]) == 0
    assert "0:linear" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-300])
    assert main(["inspect", str(path)]) != 0
