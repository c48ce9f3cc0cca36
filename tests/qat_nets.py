"""Small networks that train, and what tests of training do with them."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn

from jit_passes.training.prepare import prepare_qat

Model = torch.jit.ScriptModule

makes_scales_positive = pytest.mark.filterwarnings(
    "ignore:a step of the optimizer took:UserWarning"
)
"""For tests about something else, which train a few steps at a rate that scales do not bear."""

METHODS = ("lsq", "lsq_plus", "tqt", "moving_average")
# How a module gets to prepare_qat.
ORIGINS = (
    "scripted",
    "scripted_in_eval",
    "traced_in_training",
    "traced_in_eval",
    "scripted_and_loaded",
    "traced_and_loaded",
)


class Net(nn.Module):
    """Two convolutions with batch norms, a residual sum, dropout and a linear."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(self.dropout(y.mean((2, 3))))


class Plain(nn.Module):
    """A convolution and a linear, without batch norms."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=bias)
        self.fc = nn.Linear(6, 4, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Twice(nn.Module):
    """One convolution called twice, its weight tied to another's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.tied = nn.Conv2d(4, 4, 3, padding=1)
        self.tied.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(torch.relu(self.conv(torch.relu(self.conv(x)))))


class Shared(nn.Module):
    """One submodule under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.right = self.left

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(torch.relu(x))


def batch(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seeded(make: type[nn.Module] | nn.Module, seed: int = 1) -> nn.Module:
    """A module whose numbers are random, those of its batch norms too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make() if isinstance(make, type) else copy.deepcopy(make)
        for norm in module.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None:
                norm.running_mean.uniform_(-0.5, 0.5)
                norm.running_var.uniform_(0.5, 2)
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.affine:
                norm.weight.data.uniform_(0.5, 1.5)
                norm.bias.data.uniform_(-0.5, 0.5)
        return module


def reloaded(model: Model) -> Model:
    """The module, saved and loaded."""
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    return torch.jit.load(file)


def compiled(eager: nn.Module, x: Tensor, origin: str = "scripted") -> Model:
    """The module as prepare_qat gets it; in training mode, but where it says otherwise."""
    eager = copy.deepcopy(eager).train("eval" not in origin)
    if origin.startswith("traced"):
        state = copy.deepcopy(eager.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # of branches by sizes
            model = torch.jit.trace(eager, x, check_trace=False)
        model.load_state_dict(state)  # tracing runs it
    else:
        model = torch.jit.script(eager)
    return reloaded(model) if origin.endswith("loaded") else model


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of its state."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def sgd(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    """An optimizer of all its parameters."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(
    model: nn.Module, data: Iterable[Tensor], optimizer: torch.optim.Optimizer | None = None
) -> list[float]:
    """Minimize the mean square of what it returns; the losses."""
    optimizer = optimizer or sgd(model)
    losses = []
    for x in data:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(count: int, *shape: int, seed: int = 0) -> list[Tensor]:
    """Different batches."""
    return [batch(*shape, seed=seed + i) for i in range(count)]


def trained(
    make: type[nn.Module] | nn.Module, *shape: int, steps: int = 2, **options: object
) -> Model:
    """A prepared model, in eval mode, after a few steps."""
    model = prepare_qat(compiled(seeded(make), batch(*shape)), **options)  # type: ignore[arg-type]
    train(model.train(), batches(steps, *shape))
    return model.eval()


def parameter_of(model: nn.Module, name: str) -> nn.Parameter:
    """A parameter by its name."""
    return dict(model.named_parameters())[name]


def steps_apart(expected: Tensor, found: Tensor) -> float:
    """The largest difference, in steps of the grid that the expected values are on."""
    gaps = expected.detach().flatten().unique().diff()
    gaps = gaps[gaps > 1e-4 * expected.detach().abs().max()]
    step = gaps.min() if gaps.numel() else expected.detach().abs().max()
    return float((expected - found).detach().abs().max() / step)


def nodes_of(model: Model, kind: str, method: str = "forward") -> list[torch._C.Node]:
    """The nodes of a kind, those within blocks too."""
    return list(model._c._get_method(method).graph.findAllNodes(kind, recurse=True))


def quantizations(model: Model, method: str = "forward") -> Iterator[torch._C.Node]:
    """The fake quantizations in its graph."""
    for kind in ("train_lsq", "train_lsq_plus", "train_tqt", "fake_quantize_moving_average"):
        yield from nodes_of(model, f"jit_passes::{kind}", method)
