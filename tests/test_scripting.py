"""Scripting that does less gives what PyTorch's gives: `tests/scripting.py` is for all tests."""

import pytest
import torch
from torch import Tensor, nn


class Base(nn.Module):
    """Methods with marks, which a class further down inherits."""

    @torch.jit.export
    def doubled(self, x: Tensor) -> Tensor:
        return 2 * x

    @torch.jit.ignore
    def in_python(self, x: Tensor) -> Tensor:
        return x + len("python")

    @torch.jit.unused
    def left_out(self, x: Tensor) -> Tensor:
        return x + len({*"python"})


class Marked(Base):
    """Each kind of name that scripting does something about."""

    __jit_ignored_attributes__ = ("anything",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])
        self.anything = object()

    @property
    def factor(self) -> int:
        return 3

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.in_python(x) * self.factor


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_marks_are_seen(again: bool) -> None:
    """Methods may be exported, ignored or unused; properties and ignored attributes count too."""
    x = torch.ones(1, 2)
    for _ in range(1 + again):
        model = Marked().eval()
        script = torch.jit.script(model)
    assert torch.equal(script(x), model(x))
    assert set(script._c._method_names()) >= {"forward", "doubled"}
    assert torch.equal(script.doubled(x), 2 * x)
    assert torch.equal(script.in_python(x), x + 6)
    assert torch.equal(script.left_out(x), x + 6)
    assert script.anything is model.anything
    assert len(script.layers) == 2


class Overloaded(nn.Module):
    """A method with two signatures, which stands in this file alone."""

    @torch.jit._overload_method
    def either(self, x: Tensor) -> Tensor: ...

    @torch.jit._overload_method
    def either(self, x: int) -> Tensor: ...  # noqa: F811

    def either(self, x):  # noqa: F811
        if isinstance(x, int):
            x = torch.full((2,), x)
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.either(x) + self.either(2)


def test_overloaded_methods() -> None:
    for _ in range(2):
        assert torch.jit.script(Overloaded())(torch.ones(2)).tolist() == [5.0, 5.0]
