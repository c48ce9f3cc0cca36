"""Models by what of the language they use: tasks, interfaces, classes, enums, dicts, hooks."""

import enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .case import Case, conv, images
from .control import SHARED_RANGE


class TwoMaps(nn.Module):
    """Base: two maps of 8 channels, and a convolution that reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = conv()
        self.right = conv()
        self.head = conv(8, 4)


class ListOfTasks(nn.Module):
    """Tasks that are made in a list, and waited for in another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv() for _ in range(3))
        self.head = conv(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        tasks: list[torch.jit.Future[Tensor]] = []
        for layer in self.layers:
            tasks.append(torch.jit.fork(layer, x))
        return self.head(torch.cat([torch.jit.wait(task) for task in tasks], 1))


def _shifted(x: Tensor, by: float) -> tuple[Tensor, Tensor]:
    return torch.relu(x) + by, x


class TaskOfFunction(TwoMaps):
    """A function in a task of its own, that gives a tuple."""

    def forward(self, x: Tensor) -> Tensor:
        task = torch.jit.fork(_shifted, self.left(x), 0.5)
        y = self.right(x)
        a, b = torch.jit.wait(task)
        return self.head(a + b + y)


@torch.jit.interface
class Layer:
    """Any module that maps a tensor to a tensor."""

    def forward(self, input: Tensor) -> Tensor:
        pass


class PickedAtRunTime(nn.Module):
    """Modules of several classes, by an index that is known when the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([conv(4, 4), nn.Sequential(conv(4, 4), nn.ReLU()), nn.ReLU()])
        self.head = conv()

    def forward(self, x: Tensor, which: int = 1) -> Tensor:
        layer: Layer = self.layers[which]
        return self.head(layer.forward(x))


@torch.jit.script
class Accumulator:
    """Keeps a sum and a count."""

    def __init__(self, start: Tensor) -> None:
        self.total = start
        self.count = 1

    def add(self, x: Tensor) -> None:
        self.total = self.total + x
        self.count += 1

    def mean(self) -> Tensor:
        return self.total / self.count


class ScriptClass(TwoMaps):
    """An object of a class of TorchScript's own."""

    def forward(self, x: Tensor) -> Tensor:
        mean = Accumulator(self.left(x))
        for _ in range(2):
            mean.add(torch.relu(self.right(x)))
        return self.head(mean.mean())


class Join(enum.Enum):
    """How two maps become one."""

    SUM = 1
    PRODUCT = 2


class ByEnum(TwoMaps):
    """An attribute of an enum, and a local variable of it."""

    def __init__(self, kind: Join) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        a, b, kind = self.left(x), self.right(x), self.kind
        y = a + b
        if kind == Join.PRODUCT:
            y = a * b
        return self.head(y)


class Pyramid(NamedTuple):
    """Maps of several sizes."""

    fine: Tensor
    coarse: Tensor
    sizes: list[int]


class NamedParts(TwoMaps):
    """A NamedTuple between two methods."""

    def build(self, x: Tensor) -> Pyramid:
        fine = torch.relu(self.left(x))
        return Pyramid(fine, torch.max_pool2d(self.right(x), 2), [x.size(2), x.size(3)])

    def forward(self, x: Tensor) -> Tensor:
        parts = self.build(x)
        coarse = torch.nn.functional.interpolate(parts.coarse, size=parts.sizes)
        return self.head(parts.fine + coarse)


class Dictionaries(TwoMaps):
    """A dict of lists, one with numbers for keys, and the loops over them."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps: dict[str, list[Tensor]] = {"left": [self.left(x)], "right": [self.right(x)]}
        maps["left"].append(torch.relu(maps["left"][0]))
        by_number: dict[int, Tensor] = {}
        for number, (_, several) in enumerate(maps.items()):
            total = several[0]
            for one in several[1:]:
                total = total + one
            by_number[number] = total
        found: dict[str, Tensor] = {}
        for number in by_number:
            found[f"head_{number}"] = self.head(by_number[number])
        found.update({"sum": by_number[0] + by_number[1]})
        return found


class Optionals(TwoMaps):
    """Optional tensors in a list, and an Optional of a tuple."""

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        several: list[Tensor | None] = [self.left(x), skip, self.right(x)]
        pair: tuple[Tensor, Tensor] | None = None
        y = torch.zeros_like(x[:, :1])
        for one in several:
            if one is not None:
                y = y + one
        if skip is not None:
            pair = (y, skip)
        if pair is not None:
            y = pair[0] * 0.5 + pair[1]
        return self.head(y)


class Dense(nn.Module):
    """A layer of DenseNet: a tensor or a list of them comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = conv(channels, 4)

    def forward(self, x: list[Tensor]) -> Tensor:
        return self.conv(torch.relu(self.norm(torch.cat(x, 1))))


class ListGoesThrough(nn.Module):
    """A list that each layer reads and that grows, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(4, 4)
        self.layers = nn.ModuleDict({f"layer{i}": Dense(4 + 4 * i) for i in range(3)})
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.stem(x)]
        for _, layer in self.layers.items():
            maps.append(layer(maps))
        return self.head(torch.relu(torch.cat(maps, 1)).mean([2, 3]))


class ListsJoined(TwoMaps):
    """Lists that are added, extended, reversed and taken from before they are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x).chunk(2, 1), self.right(x).chunk(2, 1)
        maps = [a[0], a[1]] + [torch.relu(part) for part in b]
        maps.reverse()
        last = maps.pop()
        maps.extend([last * 0.5])
        maps.insert(0, maps.pop(1))
        return self.head(torch.cat(maps[:1] + maps[2:3], 1))


class EitherType(TwoMaps):
    """A value that is a tensor or a list, told apart while the model runs."""

    def join(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x
        assert isinstance(x, list[Tensor])
        return x[0] + x[1]

    def forward(self, x: Tensor) -> Tensor:
        a = self.join([self.left(x), self.right(x)])
        return self.head(self.join(torch.relu(a)))


class EarlyReturns(TwoMaps):
    """Returns from a loop and from branches."""

    def first_positive(self, maps: list[Tensor]) -> Tensor:
        for one in maps:
            if float(one.mean()) > -100.0:
                return torch.relu(one)
        return maps[0]

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return x
        return self.head(self.first_positive([self.left(x), self.right(x)]))


@torch.jit.script
def joined(x: Tensor, y: Tensor, how: str = "sum") -> Tensor:
    """A function that was compiled ahead."""
    if how == "sum":
        return x + y
    return x * y


class CompiledFunction(TwoMaps):
    """A compiled function, called with words for options."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(joined(self.left(x), joined(self.right(x), self.left(x), how="product")))


class Hooked(TwoMaps):
    """Hooks before and after a layer, which scripting keeps."""

    def __init__(self) -> None:
        super().__init__()

        def before(_self: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            return (inputs[0] * 0.5,)

        def after(_self: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            return torch.relu(output)

        self.left.register_forward_pre_hook(before)
        self.left.register_forward_hook(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.left(x) + self.right(x))


class NoGradient(TwoMaps):
    """Contexts, prints of nothing, and dtype and device as values."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.left(x) + torch.zeros([1], dtype=x.dtype, device=x.device)
        if x.requires_grad:
            print("gradients")
        return self.head(y.to(x.device, x.dtype) + self.right(x).type_as(y))


class ScalarsOfTensors(TwoMaps):
    """Numbers that are read from tensors, and go back into arithmetic."""

    def forward(self, x: Tensor) -> tuple[Tensor, float, bool]:
        largest = float(x.abs().max())
        steps = int(torch.tensor(2).item())
        y = self.left(x) / largest * steps
        return self.head(y + self.right(x)), largest, largest > 0


class ParametersInList(nn.Module):
    """Weights in a list and a dict of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4, 1, 1) / 2) for _ in range(3))
        self.head = conv()

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.relu(torch.conv2d(x, weight))
        return self.head(x)


class WeightNormed(nn.Module):
    """Weights that a parametrization computes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(conv())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean([2, 3]))


class Unused(TwoMaps):
    """Methods that only Python sees, and a branch for training."""

    @torch.jit.unused
    def describe(self) -> str:
        return str(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) + self.right(x)
        if self.training:
            y = y + torch.randn_like(y)
        return self.head(y)


class Slices(nn.Module):
    """A Sequential that is gone through and indexed from both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv(4, 8), nn.ReLU(), conv(8, 8), nn.Sigmoid(), conv(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x)
        for number, layer in enumerate(self.layers):
            if number > 0 and number < len(self.layers) - 1:
                y = layer(y)
        return self.layers[-1](y)


def _maybe_skipped(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, 8, 8), torch.randn(n, 8, 8, 8)


def _picked(n: int) -> tuple[Tensor, int]:
    return torch.randn(n, 4, 8, 8), int(torch.randint(3, ()))


CASES = [
    Case("list_of_tasks", ListOfTasks, images(), trace=False),
    Case("task_of_function", TaskOfFunction, images(), trace=False),
    Case("picked_at_run_time", PickedAtRunTime, _picked, int8=3, trace=False, floor=SHARED_RANGE),
    Case("script_class", ScriptClass, images(), trace=False),
    Case("enum_sum", lambda: ByEnum(Join.SUM), images(), int8=3),
    Case("enum_product", lambda: ByEnum(Join.PRODUCT), images(), int8=3),
    Case("named_parts", NamedParts, images(), int8=3),
    Case("dictionaries", Dictionaries, images(), trace=False),
    Case("optionals", Optionals, _maybe_skipped, int8=2, trace=False),
    Case("list_goes_through", ListGoesThrough, images(), int8=5),
    Case("lists_joined", ListsJoined, images(), int8=3),
    Case("either_type", EitherType, images(), trace=False),
    Case("early_returns", EarlyReturns, images(), trace=False),
    Case("compiled_function", CompiledFunction, images(), int8=3),
    Case("hooked", Hooked, images(), int8=3),
    Case("no_gradient", NoGradient, images(), int8=3),
    Case("scalars_of_tensors", ScalarsOfTensors, images(), int8=3, trace=False),
    Case("parameters_in_list", ParametersInList, images(), int8=4),
    Case("weight_normed", WeightNormed, images(), script=False),
    Case("unused", Unused, images(), int8=3),
    Case("slices", Slices, images(), int8=3),
]
