"""One row of the table of models, and how its float module is made."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.compare import Args

FLOOR = 25.0
"""Default floor in dB.

Eight bits over the range of normally distributed values give about 40 dB for one rounding; three
or four roundings in a row and a few clipped outliers cost some 8 dB. A wrong scale, a padding that
misses the zero point or a lost bias all end below 20 dB.
"""


@dataclass(frozen=True)
class Case:
    """One model and what quantizing it must give.

    Attributes:
        name: the test's id.
        make: constructor of the float module.
        inputs: arguments for a batch size; drawn anew for every call, from torch's generator.
        floor: lowest SQNR in dB; `None`: nothing is quantized and outputs are exactly equal.
        int8: how many int8 rows coverage has at least.
        trace: whether torch.jit.trace can record the model.
        script: whether torch.jit.script can compile the model.
        method: the method to quantize.
        warning: a word of the JitPassesWarning that the scripted model gives; `None`: silence.
        others: arguments that take a branch or a shape which calibration never saw.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Args]
    floor: float | None = FLOOR
    int8: int = 1
    trace: bool = True
    script: bool = True
    method: str = "forward"
    warning: str | None = None
    others: Callable[[int], Args] | None = None

    @property
    def frontends(self) -> list[str]:
        """The ways to get a ScriptModule of this model."""
        return ["script"] * self.script + ["trace"] * self.trace

    def arguments(self, batch: int, seed: int, *, others: bool = False) -> Args:
        """Draws one set of arguments."""
        torch.manual_seed(seed)
        draw = self.others if others else self.inputs
        assert draw is not None, f"{self.name} has no other inputs"
        return draw(batch)

    @functools.cache  # noqa: B019  the tables live as long as the process
    def shared(self, frontend: str) -> torch.jit.ScriptModule:
        """Makes the module once: for tests that neither run it nor change it, but copies."""
        return self.build(frontend)

    def build(self, frontend: str) -> torch.jit.ScriptModule:
        """Makes the float module in eval mode, the same one every time."""
        torch.manual_seed(0)
        with warnings.catch_warnings(), torch.no_grad():
            # PyTorch's, of odd layers, and the tracer's remarks on shapes and constants.
            warnings.simplefilter("ignore")
            model = self.make().eval()
            randomize_norms(model)
            if frontend == "script":
                return torch.jit.script(model)
            args = self.arguments(2, seed=1)
            example = {"example_kwarg_inputs": args} if isinstance(args, dict) else {}
            positional = None if isinstance(args, dict) else args
            return torch.jit.trace(model, positional, strict=False, check_trace=False, **example)


def randomize_norms(model: nn.Module) -> None:
    """Gives normalizations statistics and weights that folding them wrongly would show."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                _fill(module.running_mean, -0.5, 0.5)
                _fill(module.running_var, 0.5, 2.0)
            if "Norm" in type(module).__name__:
                _fill(getattr(module, "weight", None), 0.5, 1.5)
                _fill(getattr(module, "bias", None), -0.5, 0.5)


def _fill(tensor: Tensor | None, low: float, high: float) -> None:
    """Draws `tensor` uniformly, where the module has it at all."""
    if tensor is not None:
        tensor.uniform_(low, high)


def images(channels: int = 4, side: int = 8, *more: int) -> Callable[[int], Args]:
    """Arguments: one batch of images `[N, channels, side, *more or side]` of mean 0.3."""
    size = (side, *more) if more else (side, side)
    return lambda n: (torch.randn(n, channels, *size) + 0.3,)


def values(*size: int) -> Callable[[int], Args]:
    """Arguments: one tensor `[N, *size]` of mean 0.3."""
    return lambda n: (torch.randn(n, *size) + 0.3,)


def conv(channels_in: int = 4, channels_out: int = 8) -> nn.Conv2d:
    """The 3x3 convolution, same size out as in, that most of the models stand on."""
    return nn.Conv2d(channels_in, channels_out, 3, padding=1)
