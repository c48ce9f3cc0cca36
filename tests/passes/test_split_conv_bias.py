"""The passes split_conv_bias and merge_conv_bias, on modules as people have them.

A correlation computes what a convolution without bias does, to the bit. With one, the bias is added
at the end, where PyTorch's kernels begin with it, so results differ by roundings. The tolerance,
relative to the largest value, is 1e-6 in float32, eight roundings, and 1e-13 in float64.
"""

import copy
import io
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import _C
from jit_passes.graph.view import GraphView
from jit_passes.passes.subject import wrap
from tests.advice import even_kernels
from tests.compare import assert_close as assert_close_leaves
from tests.compare import assert_same, call
from tests.models import BASIC, Case
from tests.seeds import in_turns

pytestmark = even_kernels

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
DIALECT = {"jit_passes::correlation", "jit_passes::add_bias"}


def kinds(script: Any) -> list[str]:
    """Operators of forward, nested blocks included."""
    return [node.kind for node in GraphView.of(script._c, "forward").nodes]


def convolutions(script: Any) -> Counter[str]:
    """Convolutions and the dialect's operators."""
    return Counter(kind for kind in kinds(script) if "conv" in kind or kind in DIALECT)


def inlined(script: torch.jit.ScriptModule, method: str = "forward") -> torch.jit.ScriptModule:
    """A module without calls that shares its parameters with the original."""
    module = _C.clone(script._c)  # PyTorch scripts equal modules once: others have this graph too
    torch._C._jit_pass_inline(module._get_method(method).graph)
    return wrap(_C.clone(module, method))


def reloaded(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module from a file."""
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


def run_pass(name: str, script: torch.jit.ScriptModule, **options: Any) -> torch.jit.ScriptModule:
    """Run a pass that changes something, and nothing when it runs again."""
    script = wrap(_C.clone(script._c, "forward"))
    module, changed, _ = _C.run_pass(name, script._c, "forward", options)
    assert changed
    _C.lint(module, "forward")
    torch._C._jit_pass_lint(module._get_method("forward").graph)
    text = str(module._get_method("forward").graph)
    assert not _C.run_pass(name, module, "forward", options)[1]
    assert str(module._get_method("forward").graph) == text
    return wrap(module)


def split(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Split its convolutions, all of them."""
    result = run_pass("split_conv_bias", script)
    assert set(convolutions(result)) <= DIALECT and "jit_passes::correlation" in kinds(result)
    return result


def merge(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Merge its correlations, all of them."""
    result = run_pass("merge_conv_bias", script)
    assert not DIALECT & set(kinds(result))
    return result


def assert_close(found: Iterable[Tensor], expected: Iterable[Tensor], exact: bool = False) -> None:
    """To the bit, or to the tolerance of the dtype, relative to the largest value."""
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype and left.shape == right.shape
        assert right.abs().max() > 0
        if exact:
            assert torch.equal(left, right)
        else:
            error = (left - right).abs().max() / right.abs().max()
            assert error <= TOLERANCE[right.dtype], error


def outputs_and_gradients(script: Any, *inputs: Any) -> list[Tensor]:
    """Return its result, and the gradients of all inputs and parameters."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs if isinstance(x, Tensor)]
    arguments = iter(leaves)
    given = [next(arguments) if isinstance(x, Tensor) else x for x in inputs]
    y = script(*given)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    leaves += [parameter for parameter in script.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
    return [y, *(gradient for gradient in found if gradient is not None)]


FORMS: dict[str, Callable[[nn.Module, tuple[Any, ...]], torch.jit.ScriptModule]] = {
    "script": lambda module, _: inlined(torch.jit.script(module)),
    "trace": lambda module, inputs: inlined(torch.jit.trace(module, inputs)),
    "loaded": lambda module, _: inlined(reloaded(torch.jit.script(module))),
    "loaded_trace": lambda module, inputs: inlined(reloaded(torch.jit.trace(module, inputs))),
    "frozen": lambda module, _: torch.jit.freeze(torch.jit.script(module.eval())),
    "frozen_trace": lambda module, inputs: torch.jit.freeze(
        torch.jit.trace(module.eval(), inputs), optimize_numerics=False
    ),
    "freeze": lambda module, inputs: wrap(
        _C.run_pass("freeze", torch.jit.trace(module.eval(), inputs)._c, "forward", {})[0]
    ),
}

MODULES: dict[str, tuple[Callable[[bool], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda bias: nn.Conv1d(4, 6, 3, stride=2, padding=1, bias=bias), (2, 4, 9)),
    "conv2d": (lambda bias: nn.Conv2d(4, 6, (3, 2), padding=(1, 0), bias=bias), (2, 4, 6, 5)),
    "conv3d": (lambda bias: nn.Conv3d(2, 3, 2, dilation=(1, 2, 1), bias=bias), (1, 2, 4, 5, 4)),
    "groups": (lambda bias: nn.Conv2d(4, 6, 3, groups=2, bias=bias), (2, 4, 6, 5)),
    "same": (lambda bias: nn.Conv2d(4, 6, (2, 3), padding="same", bias=bias), (2, 4, 6, 5)),
    "same1d": (lambda bias: nn.Conv1d(4, 6, 4, padding="same", bias=bias), (2, 4, 6)),
    "valid": (lambda bias: nn.Conv3d(2, 3, 2, padding="valid", bias=bias), (1, 2, 4, 4, 4)),
    "unbatched": (lambda bias: nn.Conv2d(4, 6, 3, bias=bias), (4, 6, 5)),
    "transposed1d": (lambda bias: nn.ConvTranspose1d(4, 6, 3, stride=2, bias=bias), (2, 4, 5)),
    "transposed2d": (
        lambda bias: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, bias=bias),
        (2, 4, 5, 4),
    ),
    "transposed3d": (lambda bias: nn.ConvTranspose3d(2, 3, 2, bias=bias), (1, 2, 3, 3, 3)),
    "circular": (
        lambda bias: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", bias=bias),
        (2, 4, 6, 5),
    ),
}


def example(name: str, bias: bool, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """A module with an input."""
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return make(bias).to(dtype), torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("convolution", "how"),
    in_turns(
        [(name, bias) for bias in (True, False) for name in MODULES],
        [*((form, torch.float32) for form in FORMS), ("script", torch.float64)],
        few=4,
    ),
    ids=lambda part: "-".join(map(str, part)),
)
def test_every_convolution(convolution: tuple[str, bool], how: tuple[str, torch.dtype]) -> None:
    """Outputs and gradients stay, through both passes and a file; keys of the state stay too."""
    (name, bias), (form, dtype) = convolution, how
    module, x = example(name, bias, dtype)
    script = FORMS[form](module, (x,))
    expected = outputs_and_gradients(script, x)
    parts = split(script)
    assert convolutions(parts) == {
        "jit_passes::correlation": 1,
        **({"jit_passes::add_bias": 1} if bias else {}),
    }
    assert kinds(parts).count("prim::If") <= kinds(script).count("prim::If")
    assert parts.state_dict().keys() == script.state_dict().keys()
    whole = merge(reloaded(parts))
    for result in (parts, reloaded(parts), merge(parts), whole):
        assert_close(outputs_and_gradients(result, x), expected, exact=not bias)
    for merged in (merge(parts), whole):
        if "trace" not in form and form != "freeze":
            assert convolutions(merged) == convolutions(script)
        # The _convolution of a trace comes back by the name that scripts have.
        assert set(convolutions(merged)) <= {
            f"aten::conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)
        }
        assert_close([merged(x)], [script(x)], exact=True)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("form", FORMS)
def test_linears(form: str, bias: bool) -> None:
    """Linears are split where the option says so, and come back."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5)
    script = FORMS[form](nn.Linear(5, 4, bias=bias), (x,))
    assert not _C.run_pass("split_conv_bias", _C.clone(script._c, "forward"), "forward", {})[1]
    parts = run_pass("split_conv_bias", script, linears=True)
    assert "aten::linear" not in kinds(parts)
    assert convolutions(parts) == {
        "jit_passes::correlation": 1,
        **({"jit_passes::add_bias": 1} if bias else {}),
    }
    expected = outputs_and_gradients(script, x)
    whole = merge(reloaded(parts))
    for result in (parts, reloaded(parts), whole):
        assert_close(outputs_and_gradients(result, x), expected, exact=not bias)
    assert kinds(whole).count("aten::linear") == 1
    assert_close([whole(x)], [script(x)], exact=True)


def test_linear_of_unknown_weight() -> None:
    """A weight of one axis gives no channels, so one whose axes are not known stays."""

    class Given(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return F.linear(x, weight)

    script = inlined(torch.jit.script(Given()))
    assert not _C.run_pass("split_conv_bias", script._c, "forward", {"linears": True})[1]


class Net(nn.Module):
    """A convolution called twice, one in a branch, one in a loop, one with weights at hand."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.shared = nn.Conv2d(3, 3, 3, padding=1, bias=bias)
        self.branch = nn.Conv2d(3, 3, 1, bias=bias)
        self.loop = nn.Conv2d(3, 3, 3, padding="same", bias=bias)
        self.kernel = nn.Parameter(torch.randn(3, 3, 2, 2))
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, flag: bool, rounds: int) -> Tensor:
        x = torch.relu_(self.shared(x))
        if flag:
            x = self.branch(x) + x
        for _ in range(rounds):
            x = torch.tanh(self.loop(x))
        x = F.conv2d(x, self.kernel * 2, self.shift)
        return F.conv_transpose2d(self.shared(x), self.kernel, None, stride=2)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["script", "loaded", "frozen"])
def test_blocks(form: str, bias: bool) -> None:
    """Nested blocks, shared modules and computed weights; and back again."""
    torch.manual_seed(0)
    script = FORMS[form](Net(bias).double(), ())
    parts = split(script)
    whole = merge(parts)
    assert convolutions(parts)["jit_passes::correlation"] == 6
    assert convolutions(whole) == convolutions(script)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    for flag, rounds in ((True, 2), (False, 0)):
        expected = outputs_and_gradients(script, x, flag, rounds)
        for result in (parts, reloaded(parts), whole):
            assert_close(outputs_and_gradients(result, x, flag, rounds), expected)
        assert torch.equal(whole(x, flag, rounds), script(x, flag, rounds))


class Maybe(nn.Module):
    """A bias that the caller may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x: Tensor, bias: Tensor | None, mode: bool) -> Tensor:
        if mode:
            return F.conv2d(x, self.weight, bias, padding="same")
        return F.conv2d(x, self.weight, bias, stride=2)


def test_optional_bias() -> None:
    """One branch adds it where it is there, and goes again."""
    torch.manual_seed(0)
    script = inlined(torch.jit.script(Maybe().double()))
    parts = split(script)
    assert convolutions(parts) == {"jit_passes::correlation": 2, "jit_passes::add_bias": 2}
    assert kinds(parts).count("aten::__is__") == 2
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    for whole in (merge(parts), merge(reloaded(parts))):
        assert convolutions(whole) == convolutions(script)
        assert "aten::__is__" not in kinds(whole)
        for bias in (None, torch.randn(4, dtype=torch.float64)):
            for mode in (True, False):
                expected = outputs_and_gradients(script, x, bias, mode)
                for result in (parts, reloaded(parts), whole):
                    found = outputs_and_gradients(result, x, bias, mode)
                    assert_close(found, expected, exact=bias is None)


class Assigns(nn.Module):
    """The bias of the next call may be another one, or none."""

    bias: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.bias = torch.randn(4)

    def forward(self, x: Tensor, keep: bool) -> Tensor:
        y = F.conv2d(x, self.weight, self.bias)
        if not keep:
            self.bias = None
        return y


def test_assigned_attribute() -> None:
    """Its value now says nothing about the next call, so there is a branch."""
    torch.manual_seed(0)
    module = Assigns()
    script = inlined(torch.jit.script(module))
    parts = split(inlined(torch.jit.script(copy.deepcopy(module))))
    assert "aten::__is__" in kinds(parts)
    x = torch.randn(1, 3, 4, 4)
    for keep in (True, False, True):
        assert_close([parts(x, keep)], [script(x, keep)])
    assert torch.equal(parts(x, True), F.conv2d(x, module.weight))


def test_attribute_that_loses_its_tensor() -> None:
    """An error, and not a result without bias."""
    script = inlined(torch.jit.script(nn.Conv2d(3, 4, 3)))
    parts = split(script)
    assert "aten::_unwrap_optional" in kinds(parts)
    assert "aten::_unwrap_optional" not in kinds(merge(parts))
    parts._c.setattr("bias", None)
    with pytest.raises(RuntimeError, match="Unwrapping null optional"):
        parts(torch.randn(1, 3, 4, 4))


class Norms(nn.Module):
    """Batch norm between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.ConvTranspose2d(4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def test_training() -> None:
    """Three steps: the same parameters and running statistics, and a loss that falls."""
    torch.manual_seed(0)
    module, x = Norms().double().train(), torch.randn(8, 3, 6, 6, dtype=torch.float64)
    whole, parts = (inlined(torch.jit.script(copy.deepcopy(module))) for _ in range(2))
    parts = split(parts)
    losses = []
    for model in (whole, parts):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            loss = model(x).square().mean()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[0] > losses[2] and losses[3:] == pytest.approx(losses[:3], rel=1e-12)
    for name, expected in whole.state_dict().items():
        # The bias in front of a batch norm has a gradient of zero, up to rounding.
        torch.testing.assert_close(parts.state_dict()[name], expected, rtol=1e-12, atol=1e-13)
    assert parts.state_dict()["norm.num_batches_tracked"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["conv2d", "same", "transposed2d"])
def test_autocast(name: str, form: str, dtype: torch.dtype) -> None:
    """The dtype of autocast, and values as near as two roundings in it: 2 * eps of the largest."""
    module, x = example(name, True, torch.float32)
    script = FORMS[form](module, (x,))
    parts = split(script)
    exact = script(x)
    for model in (parts, reloaded(parts), merge(parts)):
        for _ in range(3):  # the executor specializes after some runs
            with torch.autocast("cpu", dtype=dtype), torch.no_grad():
                expected, found = script(x), model(x)
            # On the CPU PyTorch does not autocast what traces have for padding in words.
            casts = "aten::_convolution_mode" not in kinds(script)
            assert expected.dtype == (dtype if casts else torch.float32)
            assert found.dtype == dtype and not torch.equal(found.float(), exact)
            error = (found.float() - expected.float()).abs().max() / exact.abs().max()
            assert error <= 2 * torch.finfo(dtype).eps


class AutocastInside(nn.Module):
    """Autocast that TorchScript itself carries out."""

    def __init__(self) -> None:
        super().__init__()
        # TorchScript casts no bias that may be None, and then the convolution refuses it.
        self.inside, self.outside = nn.Conv2d(3, 3, 3, bias=False), nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.inside(x)
        return self.outside(y.float())


def test_autocast_of_scripts_stays() -> None:
    """Autocast casts for PyTorch's operators only, so a convolution within it is left as it is."""
    module = AutocastInside()
    inline = inlined(torch.jit.script(module))
    parts = run_pass("split_conv_bias", inline)
    assert convolutions(parts) == {
        "aten::conv2d": 1,
        "jit_passes::correlation": 1,
        "jit_passes::add_bias": 1,
    }
    x = torch.randn(1, 3, 7, 7)
    assert_close([parts(x)], [inline(x)])
    assert not torch.equal(inline(x), module.outside(module.inside(x)))


class Flat(nn.Module):
    """torch.convolution, whose lists may hold one number for all axes."""

    known: Final[bool]

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.known = known
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = self.weight if self.known else weight
        return torch.convolution(x, kernel, bias, [1], [1], [1], False, [0], 1)


@pytest.mark.parametrize("known", [True, False])
def test_number_of_axes(known: bool) -> None:
    """The weight tells it where lists do not; where no weight is known, nothing changes."""
    torch.manual_seed(0)
    script = inlined(torch.jit.script(Flat(known)))
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    copied = wrap(_C.clone(script._c, "forward"))
    module, changed, _ = _C.run_pass("split_conv_bias", copied._c, "forward", {})
    assert changed == known and (convolutions(wrap(module)) == convolutions(script)) != known
    assert_close([wrap(module)(x, weight, bias)], [script(x, weight, bias)], exact=not known)
    if known:
        whole = merge(wrap(module))
        assert convolutions(whole) == {"aten::conv2d": 1}
        assert_close([whole(x, weight, bias)], [script(x, weight, bias)])


class Functional(nn.Module):
    """Weights that are arguments, lists of one number, and a list that is an argument."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, stride: list[int]) -> Tensor:
        y = F.conv2d(x, weight, bias, [1], [1])
        y = F.conv2d(y, weight, None, [1], [1])
        y = F.conv2d(y, weight, bias, stride)
        return F.conv1d(y.flatten(2), weight[:, :, 0], None, [2])


def test_functional() -> None:
    """Lists are written out, so that they tell the number of axes when they are merged."""
    torch.manual_seed(0)
    script = inlined(torch.jit.script(Functional()))
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(3, 3, 3, 3), torch.randn(3)
    parts = split(script)
    for whole in (merge(parts), merge(reloaded(parts))):
        assert convolutions(whole) == convolutions(script)
        for stride in ([2, 1], [2]):
            expected = script(x, weight, bias, stride)
            assert_close([parts(x, weight, bias, stride)], [expected])
            assert torch.equal(whole(x, weight, bias, stride), expected)


class Writes(nn.Module):
    """Tensors that are written to between a correlation and its bias."""

    written: Final[str]

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, bias = x.clone(), bias.clone()
        y = torch.ops.jit_passes.correlation(x, weight, [1], [0], [1], False, [0], 1)
        if "input" in self.written:
            x.add_(1)
        if "bias" in self.written:
            bias.mul_(2)
        if "result" in self.written:
            y.mul_(2)
        return torch.ops.jit_passes.add_bias(y, bias, 2) + x.mean()


@pytest.mark.parametrize(
    ("written", "merged"),
    [
        ("", True),
        ("input", True),
        ("bias", True),
        ("input and bias", False),
        ("result", False),
    ],
)
def test_merge_and_writes(written: str, merged: bool) -> None:
    """A convolution stands where all operands are what they were; else the addition stays."""
    torch.manual_seed(0)
    script = inlined(torch.jit.script(Writes(written)))
    whole = run_pass("merge_conv_bias", script)
    additions = {} if merged else {"jit_passes::add_bias": 1}
    assert convolutions(whole) == {"aten::conv2d": 1, **additions}
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    assert_close([whole(x, weight, bias)], [script(x, weight, bias)])


class Chain(nn.Module):
    """The result of the first is written to between the second and its bias."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = torch.ops.jit_passes.correlation(x, weight, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y = torch.ops.jit_passes.add_bias(y, bias, 2)
        z = torch.ops.jit_passes.correlation(y, weight, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y.relu_()
        return torch.ops.jit_passes.add_bias(z, bias, 2) + y


def test_merge_behind_what_was_merged() -> None:
    """A new value counts as written where the one it replaces did."""
    torch.manual_seed(0)
    script = inlined(torch.jit.script(Chain()))
    whole = merge(script)
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(3, 3, 3, 3), torch.randn(3)
    assert_close([whole(x, weight, bias)], [script(x, weight, bias)])


# Splitting rounds once more in the dtype of the result.
FLOORS = {"half_weights": 60.0, "bfloat16_weights": 45.0}


@pytest.mark.parametrize(
    ("case", "frontend"),
    [
        pytest.param(case, frontend, id=f"{case.name}-{frontend}")
        for case in BASIC
        for frontend in case.frontends
    ],
)
def test_every_model(case: Case, frontend: str) -> None:
    """The table of odd models: split, they stay within 110 dB; merged, they are equal to the bit.

    Errors of 1e-6 of the largest value are 120 dB of it, and layers behind may add some. Scripts
    keep their parameters, unless a call is left in a task of its own; traces are frozen.
    """
    method = case.method
    script = case.shared(frontend)
    if frontend == "script" and case.name != "forked":
        model = inlined(script, method)._c
    else:
        model, _, _ = _C.run_pass("freeze", _C.clone(script._c), method, {})
    has_some = any("conv" in node.kind for node in GraphView.of(model, method).nodes)
    parts, changed, _ = _C.run_pass("split_conv_bias", _C.clone(model, method), method, {})
    found = [node.kind for node in GraphView.of(parts, method).nodes]
    assert changed == has_some == ("jit_passes::correlation" in found)
    assert not any("conv" in kind for kind in found)
    if not has_some:
        return
    _C.lint(parts, method)
    assert not _C.run_pass("split_conv_bias", parts, method, {})[1]
    whole, changed, _ = _C.run_pass("merge_conv_bias", _C.clone(parts, method), method, {})
    _C.lint(whole, method)
    assert changed and not DIALECT & {node.kind for node in GraphView.of(whole, method).nodes}
    results = []
    for module in (wrap(model), wrap(parts), reloaded(wrap(parts)), wrap(whole)):
        given = case.arguments(3, seed=100)
        with torch.no_grad():
            results.append(call(wrap(_C.deepcopy(module._c)), given, method))
    assert_close_leaves(results[0], results[1], FLOORS.get(case.name, 110.0), case.name)
    assert_same(results[1], results[2], case.name)
    assert_same(results[0], results[3], case.name)


def test_names_and_lines() -> None:
    """New nodes belong to the module and line of the convolution."""
    script = inlined(torch.jit.script(Net()))
    parts = split(script)
    for node in GraphView.of(parts._c, "forward").nodes:
        if node.kind in DIALECT:
            assert node.source, node.kind
    modules = [n.module for n in GraphView.of(parts._c, "forward").nodes if n.kind in DIALECT]
    assert {"shared", "branch", "loop"} <= set(modules)
    named = [_C.names_by_kind(module._c, "forward") for module in (script, merge(parts))]
    before, after = ({n for names in kinds.values() for n in names} for kinds in named)
    assert {n for n in before if "conv2d" in n} == {n for n in after if "conv2d" in n}


def test_pipeline() -> None:
    """Both run in a pipeline, which checks what they require."""
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
    x = torch.randn(1, 3, 6, 6)
    pipeline = jit_passes.Pipeline("both", ("freeze", "split_conv_bias", "merge_conv_bias"))
    result = pipeline.run(script._c)
    assert [record.changed for record in result.records] == [True, True, True]
    assert torch.equal(wrap(result.module)(x), script(x))
    with pytest.raises(jit_passes.PassError, match="'inlined'"):
        jit_passes.Pipeline("alone", ("split_conv_bias",)).run(script._c)
