"""Freezing one method of many, its schema, its attributes' types, and its hooks."""

from typing import Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError, prepare
from tests.compare import Args, assert_same
from tests.models.freezing.attributes import TensorCounter
from tests.models.freezing.calls import add_input, double_input
from tests.models.freezing.case import Case, vectors
from tests.models.freezing.containers import Point
from tests.passes.freezing import assert_same_state, build, freeze, graphs, reload, run, state


class Methods(nn.Module):
    """Three methods with state, two of which call each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.counter, self.calls = nn.Linear(4, 4), TensorCounter(), 0
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x, 3.0) + self.offset

    @torch.jit.export
    def encode(self, x: Tensor, scale: float = 2.0) -> Tensor:
        self.calls += 1
        return self.counter(self.linear(x)) * scale

    @torch.jit.export
    def shift(self) -> None:
        self.offset.add_(1)


@pytest.mark.parametrize(
    ("method", "stays", "calls"),
    [
        ("forward", ["calls", "counter.total"], vectors()),
        ("encode", ["calls", "counter.total"], [*vectors(), {"x": torch.ones(1, 4), "scale": 0.5}]),
        ("shift", ["offset"], [(), ()]),
    ],
)
def test_one_method(method: str, stays: list[str], calls: list[Args]) -> None:
    """Others go, with what only they change; what is called is inlined."""
    model, module = build(Case(Methods), "script")
    before, text = state(module, model), graphs(module)
    frozen = freeze(module, method)
    assert frozen._c._method_names() == [method]
    assert sorted(state(frozen, model)) == stays
    loaded = reload(frozen)
    expected = run(model, calls, method)
    assert_same(expected, run(frozen, calls, method), "frozen")
    assert_same(expected, run(loaded, calls, method), "loaded")
    assert_same_state(model, state(frozen, model), "state")
    assert_same_state(model, state(loaded, model), "loaded state")
    assert_same(before, state(module, model), "the caller's")
    assert graphs(module) == text


def test_unknown_method() -> None:
    """An error that names it."""
    with pytest.raises(RuntimeError, match="nonsense"):
        freeze(build(Case(Methods), "script")[1], "nonsense")


class Features(NamedTuple):
    """A result with names."""

    sums: Tensor
    count: int
    extra: Optional[Tensor]  # noqa: UP045


class Signature(nn.Module):
    """Arguments and results of all kinds."""

    nothing: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.nothing = nn.Linear(4, 4), None

    def forward(
        self,
        x: Tensor,
        scale: float = 2.0,
        shift: Optional[Tensor] = None,  # noqa: UP045
        sizes: Tuple[int, int] = (1, 2),  # noqa: UP006
        more: Optional[List[Tensor]] = None,  # noqa: UP006, UP045
        key: str = "y",
    ) -> Tuple[Features, Dict[str, Tensor], Optional[Tensor]]:  # noqa: UP006, UP045
        y = self.linear(x) * scale + sizes[1]
        if shift is not None:
            y = y + shift
        if more is not None:
            y = y + more[0]
        return Features(y.sum(0), sizes[0], shift), {key: y}, self.nothing


class KeywordOnly(nn.Module):
    """Two arguments that have no place."""

    def forward(self, x: Tensor, *, key: str, scale: int) -> Dict[str, Tensor]:  # noqa: UP006
        return {key: x * scale}


SIGNATURES: dict[type[nn.Module], list[Args]] = {
    Signature: [
        (torch.ones(2, 4),),
        (torch.ones(3, 4), 0.5, torch.ones(4)),
        {"x": torch.ones(1, 4), "key": "z", "sizes": (5, 6)},
        {"shift": torch.ones(4), "x": torch.ones(2, 4), "more": [torch.ones(4)]},
    ],
    KeywordOnly: [{"x": torch.ones(2), "key": "y", "scale": 3}],
}


@pytest.mark.parametrize("frontend", ["script", "load"])
@pytest.mark.parametrize("make", SIGNATURES)
def test_schema(make: type[nn.Module], frontend: str) -> None:
    """Names, types, defaults, keyword-only arguments and results are those of the method."""
    model, module = build(Case(make), frontend)
    frozen, calls = freeze(module), SIGNATURES[make]
    for caller, found in ((module, frozen), (reload(module), reload(frozen))):
        old, new = caller.forward.schema, found.forward.schema
        for one, other in ((old.arguments[1:], new.arguments[1:]), (old.returns, new.returns)):
            assert [argument.name for argument in one] == [argument.name for argument in other]
            for left, right in zip(one, other, strict=True):
                assert left.type.annotation_str == right.type.annotation_str
                assert left.has_default_value() == right.has_default_value()
                assert left.default_value == right.default_value
                assert left.kwarg_only == right.kwarg_only
        assert new.name == "forward" and new.arguments[0].type.str() == found._c._type().str()
        assert_same(run(model, calls), run(found, calls), "results")
        with pytest.raises(RuntimeError, match="missing value for argument 'x'"):
            found(key="y", scale=1)


class ReturnsPoint(nn.Module):
    """Returns an attribute whose type has names."""

    point: Point

    def __init__(self) -> None:
        super().__init__()
        self.point = Point(torch.ones(4), 0.25)

    def forward(self, x: Tensor) -> Point:
        return self.point


def test_named_tuple_attribute() -> None:
    """A constant that keeps its names."""
    frozen = freeze(torch.jit.script(ReturnsPoint().eval()))
    expected = ReturnsPoint()(torch.ones(1))
    assert_same(expected, frozen(torch.ones(1)), "frozen")
    assert_same(expected, reload(frozen)(torch.ones(1)), "loaded")


def test_named_tuple_attribute_of_a_loaded_module() -> None:
    """A loaded model returns a plain tuple, and a frozen one the same, after a file too."""
    module = reload(torch.jit.script(ReturnsPoint().eval()))
    frozen, expected = freeze(module), module(torch.ones(1))
    assert_same(expected, frozen(torch.ones(1)), "frozen")
    assert_same(expected, reload(frozen)(torch.ones(1)), "loaded")


class Numbered(nn.ParameterList):
    """Parameters of the first module, named by numbers."""

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self:
            x = x + parameter
        return x


def test_attribute_named_by_a_number() -> None:
    """A constant like others."""
    module = torch.jit.script(Numbered([torch.ones(4), torch.full((4,), 2.0)]).eval())
    frozen = freeze(module)
    assert not frozen.state_dict()
    assert_same(run(module, vectors()), run(frozen, vectors()), "frozen")


def hooked() -> nn.Module:
    """A model that has hooks itself."""
    model = TensorCounter()
    model.register_forward_pre_hook(double_input)
    model.register_forward_hook(add_input)
    return model


def test_hooks_of_the_model() -> None:
    """Hooks of the model are no part of its method: refused, rather than lost."""
    with pytest.raises(JitPassesError, match="forward hooks of its own"):
        prepare(torch.jit.script(hooked().eval()))
