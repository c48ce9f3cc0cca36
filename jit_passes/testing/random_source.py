"""Random source of modules: the statements, and how they are put together.

Statements are executed as they are drawn, so sizes are known, and one that does not fit is dropped.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADER = """\
from typing import List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


"""

HELPER = """
    def helper(self, x: Tensor, scale: Optional[Tensor] = None, offset: Optional[float] = None):
        if scale is not None:
            x = x * scale
        return x if offset is None else x + offset
"""

# Results are as large as x; {i} is a small number, {c} one between 0 and 1.
SAME = (
    "torch.relu({x})", "F.relu({x})", "F.relu6({x})", "F.hardtanh({x}, -{c}, {i}.0)",
    "torch.clamp({x}, -{c}, {i}.5)", "{x}.clamp(min=0)", "torch.clamp_min({x}, 0.0)",
    "{x}.clamp(max={i})", "F.leaky_relu({x}, {c})", "F.elu({x}, {c})", "F.hardswish({x})",
    "torch.sigmoid({x})", "torch.tanh({x})", "F.hardsigmoid({x})", "F.gelu({x})", "F.silu({x})",
    "torch.softmax({x}, {dim})", "F.softmax({x}, dim=-1)", "F.log_softmax({x}, -1)",
    "torch.neg({x})", "torch.neg({x}).abs()", "torch.cos(torch.neg({x}))",
    "torch.relu(torch.relu({x}))", "{x} + {c}", "{x} * {c}", "{x} - {i}",
    "{x} / {i}", "{c} - {x}", "{x} * 1", "{x} + 0", "{x}.contiguous()", "{x}.clone()",
    "{x}.detach()", "{x}.abs()", "{x}.square()", "{x} + {x}.mean()", "torch.cos({x})",
    "{x} - {x}.mean(-1, keepdim=True)", "F.relu6(F.relu({x}))", "torch.exp(-{x}.abs())",
    "torch.where({x} > {c}, {x}, {x} * {c})", "{x} * ({x} > 0)", "{x}.flip(0)", "{x}.roll(1, -1)",
    "torch.sub({x}, {x}.relu(), alpha={i})", "{x} * ({i} + 1)", "{x} * (2 * 3 - {i})",
    "{x}.permute({ranks}).permute({ranks}).reshape({x}.shape)",
    "{x}.transpose({dim}, -1).transpose({dim}, -1)", "{x}.expand_as({x})",
    "self.helper({x})", "self.helper({x}, {x})", "self.helper({x}, None, {c})",
)  # fmt: skip

# Results may have another size.
RESHAPE = (
    "{x}.view({x}.size(0), -1)", "{x}.reshape(-1)", "{x}.reshape({x}.shape[0], -1)",
    "{x}.flatten(1)", "torch.flatten({x})", "{x}.view(-1, {x}.size(-1))", "{x}.view({sizes})",
    "{x}.reshape([{sizes}])", "{x}.permute({ranks})", "{x}.transpose(1, -1)", "{x}.transpose(0, 1)",
    "{x}.unsqueeze({dim})", "{x}.unsqueeze(0).squeeze(0)", "{x}.unsqueeze(-1)", "{x}.squeeze()",
    "{x}[:, 1:]", "{x}[..., ::2]", "{x}[0]", "{x}[:, 0]", "{x}[..., -1]", "{x}.narrow({dim}, 0, 1)",
    "{x}.select({dim}, 0)", "{x}.mean({dim})", "{x}.sum(-1, keepdim=True)", "{x}.max({dim})[0]",
    "{x}.chunk(2, {dim})[0]", "{x}.unbind({dim})[0]", "{x} @ {x}.transpose(-1, -2)",
    "torch.matmul({x}, {x}.transpose(-1, -2))", "{x}.repeat_interleave(2, -1)", "{x}.mean()",
    "torch.cat([{x}, {x}], {dim})", "torch.stack([{x}, {x} * {c}], {dim})", "{x}.t()",
    "F.pad({x}, [1, 0])", "F.pad({x}, [0, 1, 1, 1], value={c})", "F.pad({x}, [1, 1], 'reflect')",
    "F.pad({x}, [-1, 1])", "{x}.contiguous().view({x}.shape[0], 1, -1)", "{x}[None]",
)  # fmt: skip

# Written to: a value that some operator has made.
WRITE = (
    "{y} = F.relu({x}, inplace=True)", "{y} = F.relu6({x}, inplace=True)", "{y} = {x}.relu_()",
    "{y} = {x}.clamp_(min=0)", "{y} = {x}.clamp_(-{c}, {c})", "{y} = F.hardtanh_({x}, -{c}, {c})",
    "{y} = F.leaky_relu({x}, {c}, inplace=True)", "{y} = {x}.add_({c})", "{y} = {x}.mul_({c})",
    "{y} = F.elu({x}, inplace=True)", "{y} = F.hardswish({x}, inplace=True)", "{x} += {c}",
    "{y} = {x}.sigmoid_()", "{y} = {x}.tanh_()", "{x} *= {c}", "{x} -= {z}", "{x} += {z}",
    "{x}[0] = {c}", "{x}[:, 0] += 1.0", "{x}[..., -1] *= {c}", "{x}[:, :1] = {z}[:, :1]",
    "{x}[0] = {z}[-1] * {c}", "{y} = {x}.zero_()", "{x}[..., 0].relu_()", "{x}.view(-1).mul_({c})",
    "{x}.transpose(0, -1).add_({c})", "{y} = {x}.add_({z}, alpha={i})", "{y} = {x}.copy_({z})",
    "{y} = {x}[:1]\n{y}.add_({c})", "{y} = {x}.view({x}.size(0), -1)\n{y}.mul_({c})",
    "{y} = {x}.detach()\n{y}.mul_({c})", "{y} = {x}.t()\n{y}.relu_()", "{y} = {x}.fill_({c})",
)  # fmt: skip

# Two values whose sizes may be broadcast.
PAIRS = (
    "{x} + {z}", "{x} - {z}", "{x} * {z}", "torch.add({x}, {z}, alpha={i})", "{z} + {x}",
    "torch.sub({x}, {z}, alpha={c})", "torch.add({x} * {c}, {z})", "torch.maximum({x}, {z})",
    "torch.relu({x} + {z})", "self.helper({x}, {z}, {c})", "{x} @ {z}", "torch.mul({z}, {x})",
    "torch.cat([{x}, {z}], {dim})", "torch.cat(({z}, {x}, {z}), -1)", "torch.stack([{x}, {z}])",
    "torch.where({x} > {z}, {x}, {z})",
)  # fmt: skip

INPUTS = (
    (2, 4, 6), (3, 3, 5), (2, 3, 6, 5), (2, 4, 5, 5), (1, 6, 6, 4), (2, 2, 4, 4, 3),
    (2, 3, 3, 4, 4),
    (4, 6), (3, 5), (2, 3, 4), (3, 6, 6), (2, 6, 7), (2, 4, 4, 6),
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A class `Net`: source, sizes of forward's arguments, names of methods."""

    source: str
    inputs: tuple[tuple[int, ...], ...]
    methods: tuple[str, ...]


@dataclass
class _Writer:
    """The statements so far, and the values they have left."""

    rng: random.Random
    inputs: list[str]
    shapes: list[tuple[int, ...]]
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    shared: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def __post_init__(self) -> None:
        self.execute_all()

    def execute_all(self) -> None:
        """Execute from the start, after something that went wrong."""
        torch.default_generator.manual_seed(0)
        net: Any = nn.Module()
        values = [torch.randn(shape) for shape in self.shapes]
        # Leaves cannot be written to.
        leaves = [value.requires_grad_() for value in values]
        self.scope = {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "self": net}
        self.scope |= {"List": list, "missing": None}
        net.helper = _helper
        self.scope["leaves"] = leaves
        for name, leaf in zip(self.inputs, leaves, strict=True):
            self.scope[name] = leaf.clone()
        for line in [*self.members, *self.lines]:
            exec(line, self.scope)

    def new(self, prefix: str = "v") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def add(self, lines: str, members: Sequence[str] = (), *, writes: bool = False) -> bool:
        """Add statements if they run, and leave autograd intact if they write."""
        try:
            for line in (*members, lines):
                exec(line, self.scope)
            for value in self.tensors().values():
                if value.numel() > 1500 or value.numel() == 0:
                    raise ValueError("it is too large, or empty")
            if writes:
                total = sum(v.sum() for v in self.tensors().values() if v.requires_grad)
                torch.autograd.grad(total, self.scope["leaves"], retain_graph=True)  # type: ignore[arg-type]
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
            self.execute_all()
            return False
        self.members += members
        self.lines.append(lines)
        return True

    def tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.scope.items() if isinstance(v, Tensor) and k != "extra"}

    def keep(self, done: bool) -> bool:
        """Return the latest value from forward: dead, it might not run, and this shows.

        Dropout draws numbers, which others then do not get, and batch norm updates its buffers.
        """
        if done:
            self.results.append(f"v{self.last}")
        return done

    @property
    def last(self) -> int:
        """The number of the latest value."""
        return max(int(name[1:]) for name in self.tensors() if name[0] == "v")

    def pick(self, ranks: Sequence[int] = (1, 2, 3, 4, 5), *, made: bool = False) -> str | None:
        """Return the name of a value, one of the latest most of the time."""
        names = [k for k, v in self.tensors().items() if v.dim() in ranks]
        if made:
            names = [name for name in names if name not in self.inputs]
        if not names:
            return None
        return self.rng.choice(names[-3:] if self.rng.random() < 0.7 else names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.scope[name].shape)

    def fill(self, template: str, x: str, **names: str) -> str:
        shape = self.shape(x)
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        sizes = list(shape)
        self.rng.shuffle(sizes)
        return template.format(
            x=x,
            c=self.rng.choice((0.25, 0.5, 0.75, 1.5)),
            i=self.rng.randint(1, 4),
            dim=self.rng.randrange(len(shape)) if shape else 0,
            ranks=", ".join(map(str, order)),
            sizes=", ".join(map(str, sizes)),
            **names,
        )

    def same(self, x: str) -> str:
        return self.fill(self.rng.choice(SAME), x)


def _helper(x: Tensor, scale: Tensor | None = None, offset: float | None = None) -> Tensor:
    """What the method of that name does."""
    if scale is not None:
        x = x * scale
    return x if offset is None else x + offset


def _elementwise(w: _Writer) -> bool:
    x = w.pick()
    return x is not None and w.add(f"{w.new()} = {w.same(x)}")


def _activation_module(w: _Writer) -> bool:
    x, member = w.pick(made=True), w.new("act")
    kind = w.rng.choice(
        ("ReLU()", "ReLU(inplace=True)", "ReLU6()", "Hardtanh(-0.5, 1.5)", "LeakyReLU(0.1)",
         "ELU()", "Hardswish()", "Sigmoid()", "Tanh()", "Softmax(-1)",
         "ReLU6(inplace=True)", "Identity()")
    )  # fmt: skip
    if x is None:
        return False
    return w.add(f"{w.new()} = self.{member}({x})", [f"self.{member} = nn.{kind}"], writes=True)


def _reshape(w: _Writer) -> bool:
    x = w.pick()
    return x is not None and w.add(f"{w.new()} = {w.fill(w.rng.choice(RESHAPE), x)}")


def _pair(w: _Writer) -> bool:
    x, z = w.pick(), w.pick()
    if x is None or z is None:
        return False
    return w.add(f"{w.new()} = {w.fill(w.rng.choice(PAIRS), x, z=z)}")


def _write(w: _Writer) -> bool:
    if w.rng.random() < 0.2:
        tensors = [name for name in w.inputs if name != "extra"]
        x: str | None = w.rng.choice(tensors)  # the caller's
    else:
        x = w.pick(made=True)
    z = w.pick()
    if x is None or z is None:
        return False
    y = w.new()
    lines = w.fill(w.rng.choice(WRITE), x, z=z, y=y)
    return w.add(lines, writes=True)


def _alias_and_write(w: _Writer) -> bool:
    """A view of a fresh value, and a write to one of the two."""
    x = w.pick((2, 3, 4, 5))
    if x is None:
        return False
    y, view = w.new(), w.new()
    lines = f"{y} = {x} * 2\n{view} = {w.fill(w.rng.choice(RESHAPE[:24]), y)}"
    if not w.add(lines):
        return False
    target = w.rng.choice((y, view))
    return w.add(w.fill(w.rng.choice(WRITE), target, z=y, y=w.new()), writes=True)


def _convolution_arguments(w: _Writer, rank: int, channels: int) -> tuple[str, int]:
    rng = w.rng
    groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0] + [1, channels])
    out = groups * rng.randint(1, 3)
    if rng.random() < 0.5 and channels % groups == 0:
        out = channels
    kernel: Any = rng.randint(1, 3)
    if rng.random() < 0.3:
        kernel = tuple(rng.randint(1, 3) for _ in range(rank))
    stride: Any = rng.choice((1, 1, 1, 2))
    padding: Any = rng.choice((0, 1, 1, 2, "'same'", "'same'", "'valid'"))
    if padding == "'same'":
        stride = 1
    elif isinstance(padding, int) and rng.random() < 0.2:
        padding = tuple(rng.randint(0, 1) for _ in range(rank))
    arguments = f"{channels}, {out}, {kernel}, stride={stride}, padding={padding}"
    if rng.random() < 0.3:
        arguments += f", dilation={rng.randint(1, 2)}"
    if groups > 1:
        arguments += f", groups={groups}"
    if rng.random() < 0.3:
        arguments += ", bias=False"
    if rng.random() < 0.15:
        arguments += f", padding_mode={rng.choice(('circular', 'reflect', 'replicate'))!r}"
    return arguments, out


def _pick_image(w: _Writer) -> tuple[str, int, int] | None:
    """A value for a convolution: its name, the number of axes, of channels."""
    x = w.pick((3, 4, 5))
    if x is None:
        return None
    shape = w.shape(x)
    if len(shape) < 5 and w.rng.random() < 0.1:  # without a batch
        return x, len(shape) - 1, shape[0]
    return x, len(shape) - 2, shape[1]


def _convolution(w: _Writer) -> bool:
    found = _pick_image(w)
    if found is None:
        return False
    x, rank, channels = found
    arguments, out = _convolution_arguments(w, rank, channels)
    member, y = w.new("conv"), w.new()
    if not w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.Conv{rank}d({arguments})"]):
        return False
    if out == channels:
        w.shared.append((member, w.shape(x), x))
    return True


def _transposed(w: _Writer) -> bool:
    found = _pick_image(w)
    if found is None:
        return False
    x, rank, channels = found
    groups = w.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    stride = w.rng.randint(1, 2)
    arguments = (
        f"{channels}, {groups * w.rng.randint(1, 2)}, {w.rng.randint(1, 3)}, stride={stride}, "
        f"padding={w.rng.randint(0, 1)}, output_padding={w.rng.randint(0, stride - 1)}, "
        f"groups={groups}, bias={w.rng.random() < 0.7}, dilation={w.rng.randint(1, 2)}"
    )
    member = w.new("conv")
    return w.add(
        f"{w.new()} = self.{member}({x})", [f"self.{member} = nn.ConvTranspose{rank}d({arguments})"]
    )


def _functional_convolution(w: _Writer) -> bool:
    found = _pick_image(w)
    if found is None:
        return False
    x, rank, channels = found
    rng, weight, bias, y = w.rng, w.new("weight"), w.new("bias"), w.new()
    sizes = ", ".join(str(rng.randint(1, 2)) for _ in range(rank))
    out = rng.randint(1, 4)
    members = [
        f"self.{weight} = nn.Parameter(torch.randn({out}, {channels}, {sizes}) * 0.5)",
        f"self.{bias} = nn.Parameter(torch.randn({out}))",
    ]
    used = rng.choice((f"self.{weight}", f"self.{weight} * 2", f"torch.tanh(self.{weight})"))
    added = rng.choice(("None", f"self.{bias}", f"self.{bias} + 1", f"-self.{bias}"))
    more = rng.choice(("", ", 1", ", 1, 1", ", padding=[1]", ", padding='same'", f", 2, [{1}]"))
    if rng.random() < 0.25:
        members[0] = f"self.{weight} = nn.Parameter(torch.randn({channels}, {out}, {sizes}))"
        return w.add(f"{y} = F.conv_transpose{rank}d({x}, {used}, {added})", members)
    return w.add(f"{y} = torch.conv{rank}d({x}, {used}, {added}{more})", members)


def _shared(w: _Writer) -> bool:
    """A convolution called again, with another value or its own result."""
    if not w.shared:
        return False
    member, shape, _ = w.rng.choice(w.shared)
    fits = [k for k, v in w.tensors().items() if v.dim() == len(shape) and v.shape[1] == shape[1]]
    return bool(fits) and w.add(f"{w.new()} = self.{member}({w.rng.choice(fits)})")


def _linear(w: _Writer) -> bool:
    x = w.pick((2, 3, 4))
    if x is None:
        return False
    rng, y = w.rng, w.new()
    size, out = w.shape(x)[-1], rng.randint(1, 6)
    weight, bias, member = w.new("weight"), w.new("bias"), w.new("linear")
    parameters = [
        f"self.{weight} = nn.Parameter(torch.randn({size}, {out}))",
        f"self.{bias} = nn.Parameter(torch.randn({out}))",
    ]
    choice = rng.randrange(7)
    if choice < 2:
        bias_flag = rng.random() < 0.7
        return w.add(
            f"{y} = self.{member}({x})",
            [f"self.{member} = nn.Linear({size}, {out}, bias={bias_flag})"],
        )
    if choice == 2:
        used = f"self.{weight}.t() * 2"
        return w.add(f"{y} = F.linear({x}, {used}, self.{bias})", parameters)
    scale = rng.choice(("", "", f", beta=1, alpha={rng.randint(1, 2)}"))
    line = {
        3: f"torch.addmm(self.{bias}, {x}, self.{weight}{scale})",
        4: f"{x} @ self.{weight} + self.{bias}",
        5: f"torch.mm({x}, self.{weight})",
        6: f"torch.matmul({x}, self.{weight})",
    }[choice]
    return w.add(f"{y} = {line}", parameters)


def _norm_members(w: _Writer, member: str, rank: int, channels: int) -> list[str]:
    rng = w.rng
    kind = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}[rank]
    affine, tracks = rng.random() < 0.8, rng.random() < 0.9
    arguments = f"{channels}, affine={affine}, track_running_stats={tracks}"
    arguments += rng.choice(("", "", ", momentum=None", ", eps=1e-3"))
    members = [f"self.{member} = nn.BatchNorm{kind}({arguments})"]
    if affine:
        members.append(f"nn.init.uniform_(self.{member}.weight, -0.5, 1.5)")
        members.append(f"nn.init.uniform_(self.{member}.bias, -0.5, 0.5)")
    if tracks:
        members.append(f"nn.init.uniform_(self.{member}.running_mean, -0.5, 0.5)")
        members.append(f"nn.init.uniform_(self.{member}.running_var, 0.5, 2.0)")
    return members


def _batch_norm(w: _Writer) -> bool:
    x = w.pick((2, 3, 4, 5))
    if x is None:
        return False
    member, shape = w.new("norm"), w.shape(x)
    members = _norm_members(w, member, len(shape), shape[1])
    return w.keep(w.add(f"{w.new()} = self.{member}({x})", members))


def _convolution_norm(w: _Writer) -> bool:
    """What batch norms are folded into."""
    made = w.rng.choice((_convolution, _convolution, _transposed, _linear))
    if not made(w):
        return False
    x = f"v{w.last}"
    shape = w.shape(x)
    member = w.new("norm")
    if len(shape) not in (2, 3, 4, 5):
        return False
    members = _norm_members(w, member, len(shape), shape[1])
    call = f"self.{member}({x})"
    line = f"{w.new()} = {w.rng.choice((call, call, f'F.relu({call})'))}"
    return w.keep(w.add(line, members))


def _other_norm(w: _Writer) -> bool:
    x, member = w.pick((2, 3, 4, 5)), w.new("norm")
    if x is None:
        return False
    shape = w.shape(x)
    groups = w.rng.choice([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
    kind = w.rng.choice(
        (f"LayerNorm({shape[-1]})", f"LayerNorm({list(shape[-2:])}, elementwise_affine=False)",
         f"GroupNorm({groups}, {shape[1]})")
    )  # fmt: skip
    return w.add(f"{w.new()} = self.{member}({x})", [f"self.{member} = nn.{kind}"])


def _dropout(w: _Writer) -> bool:
    x, member, y = w.pick(), w.new("drop"), w.new()
    if x is None:
        return False
    choice = w.rng.randrange(4)
    if choice == 0:
        return w.keep(w.add(f"{y} = F.dropout({x}, 0.4, self.training)"))
    kinds = ("Dropout(0.3)", "Dropout2d(0.4)", "AlphaDropout(0.2)")
    kind = kinds[choice - 1] if len(w.shape(x)) == 4 else kinds[0]
    return w.keep(w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"]))


def _pool(w: _Writer) -> bool:
    x, member, y = w.pick((3, 4, 5)), w.new("pool"), w.new()
    if x is None:
        return False
    rank = len(w.shape(x)) - 2
    kind = w.rng.choice(
        (f"MaxPool{rank}d(2)", f"MaxPool{rank}d(3, stride=1, padding=1)", f"AvgPool{rank}d(2)",
         f"AvgPool{rank}d(3, 2, 1)", f"AdaptiveAvgPool{rank}d(1)", f"AdaptiveAvgPool{rank}d(2)",
         f"AdaptiveMaxPool{rank}d(2)", f"MaxPool{rank}d(2, ceil_mode=True)")
    )  # fmt: skip
    if w.rng.random() < 0.3:
        return w.add(f"{y} = F.{w.rng.choice(('max', 'avg'))}_pool{rank}d({x}, 2)")
    return w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"])


def _resize(w: _Writer) -> bool:
    x, y = w.pick((3, 4, 5)), w.new()
    if x is None:
        return False
    rank = len(w.shape(x)) - 2
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
    line = w.rng.choice(
        (f"F.interpolate({x}, scale_factor=2.0)", f"F.interpolate({x}, size={[3] * rank})",
         f"F.interpolate({x}, scale_factor=2.0, mode='{smooth}', align_corners=False)",
         f"F.interpolate({x}, size={[5] * rank}, mode='{smooth}', align_corners=True)",
         f"F.pad({x}, {[1, 1] * rank}, 'replicate')", f"F.pad({x}, {[1, 0] * rank}, 'circular')")
    )  # fmt: skip
    return w.add(f"{y} = {line}")


def _unpack(w: _Writer) -> bool:
    x = w.pick((2, 3, 4, 5))
    if x is None:
        return False
    dims = [d for d, size in enumerate(w.shape(x)) if size % 2 == 0]
    if not dims:
        return False
    dim, a, b = w.rng.choice(dims), w.new(), w.new()
    half = w.shape(x)[dim] // 2
    line = w.rng.choice((f"{x}.chunk(2, {dim})", f"torch.split({x}, {half}, {dim})"))
    return w.add(f"{a}, {b} = {line}")


def _lists(w: _Writer) -> bool:
    x = w.pick((2, 3, 4, 5))
    if x is None:
        return False
    parts, y = w.new("parts"), w.new()
    appended = w.same(x)
    if w.rng.random() < 0.5:
        lines = f"{parts} = [{x}, {w.same(x)}]\n{parts}.append({appended})"
    else:
        lines = f"{parts}: List[Tensor] = []\nfor i in range(3):\n    {parts}.append({x} * i)"
    ending = w.rng.choice((f"torch.cat({parts}, 1)", f"torch.stack({parts})", f"{parts}[1]"))
    return w.add(f"{lines}\n{y} = {ending}")


def _sizes(w: _Writer) -> bool:
    """A list of numbers that grows."""
    x = w.pick((2, 3, 4))
    if x is None:
        return False
    sizes, y = w.new("sizes"), w.new()
    lines = w.rng.choice(
        (f"{sizes} = [{x}.size(0)]\n{sizes}.append(-1)", f"{sizes} = [2, -1]",
         f"{sizes} = [1]\n{sizes}.append(-1)", f"{sizes} = [-1]")
    )  # fmt: skip
    return w.add(f"{lines}\n{y} = {x}.reshape({sizes})")


def _branch(w: _Writer) -> bool:
    x = w.pick()
    if x is None:
        return False
    y, flag = w.new(), w.new("flag")
    members: list[str] = []
    condition = w.rng.choice(
        (f"float({x}.sum()) > 0.0", f"bool({x}.mean() < 0.1)", "self.training", f"self.{flag}",
         f"{x}.size(0) > 1", f"{x}.dim() == 3", f"self.{flag} and {x}.shape[-1] > 2")
    )  # fmt: skip
    if flag in condition:
        members = [f"self.{flag} = {w.rng.random() < 0.5}"]
    other = w.rng.choice((x, w.same(x)))
    lines = f"if {condition}:\n    {y} = {w.same(x)}\nelse:\n    {y} = {other}"
    if w.rng.random() < 0.3:
        lines = f"{y} = {w.same(x)}\nif {condition}:\n    {y} = {w.same(y_of(w, x, y))}"
    if condition == "self.training":
        w.scope["self"].training = True
    return w.add(lines, members)


def y_of(w: _Writer, x: str, y: str) -> str:
    """Let y be known as something of x's size before its statement has run."""
    w.scope[y] = w.scope[x]
    return y


def _loop(w: _Writer) -> bool:
    x = w.pick()
    if x is None:
        return False
    y, count = w.new(), w.new("count")
    y_of(w, x, y)
    members = [f"self.{count} = {w.rng.randint(1, 3)}"]
    counts = ["2", "3", "1", "0", f"self.{count}", f"{x}.size(0)", f"int({x}.abs().sum()) % 3"]
    body = w.rng.choice((w.same(y), w.same(y), f"{y} + i", f"{w.same(y)} * (i + 1)"))
    conv = [member for member, shape, _ in w.shared if shape == w.shape(x)]
    if conv and w.rng.random() < 0.5:
        body = f"self.{w.rng.choice(conv)}({y})"
    if w.rng.random() < 0.25:
        n = w.new("n")
        lines = f"{y} = {x}\n{n} = 0\nwhile {n} < self.{count}:\n    {y} = {body}\n    {n} += 1"
        lines = lines.replace("i + 1", f"{n} + 1").replace("+ i\n", f"+ {n}\n")
    else:
        lines = f"{y} = {x}\nfor i in range({w.rng.choice(counts)}):\n    {y} = {body}"
        if w.rng.random() < 0.2:
            lines += f"\n    if i == 1:\n        {y} = {w.same(y)}"
    return w.add(lines, members)


def _layers(w: _Writer) -> bool:
    """A loop over modules, or a sequence of them."""
    x = w.pick((3, 4))
    if x is None:
        return False
    shape, member, y = w.shape(x), w.new("layers"), w.new()
    rank = len(shape) - 2
    conv = f"nn.Conv{rank}d({shape[1]}, {shape[1]}, 3, padding=1)"
    norm = f"nn.BatchNorm{rank}d({shape[1]})"
    parts = [conv, w.rng.choice((norm, "nn.ReLU(inplace=True)", "nn.ReLU()")), "nn.Hardtanh()"]
    kind = w.rng.choice(("ModuleList([{}])", "Sequential({})"))
    members = [f"self.{member} = nn.{kind.format(', '.join(parts))}"]
    if "ModuleList" in kind:
        lines = f"{y} = {x}\nfor layer in self.{member}:\n    {y} = layer({y})"
    else:
        lines = f"{y} = self.{member}({x})"
    return w.keep(w.add(lines, members))


def _concatenation(w: _Writer) -> bool:
    """Of convolutions, in front of another one."""
    x = w.pick((3, 4))
    if x is None:
        return False
    rank, channels = len(w.shape(x)) - 2, w.shape(x)[1]
    names = [w.new("conv") for _ in range(3)]
    sizes = ((channels, 3), (channels, 2), (5, w.rng.randint(1, 4)))
    members = [
        f"self.{name} = nn.Conv{rank}d({size[0]}, {size[1]}, 1)"
        for name, size in zip(names, sizes, strict=True)
    ]
    y = w.new()
    parts = f"[self.{names[0]}({x}), self.{names[1]}({x})]"
    joined = w.rng.choice((f"torch.cat({parts}, 1)", f"F.relu(torch.cat({parts}, 1))"))
    return w.add(f"{y} = self.{names[2]}({joined})", members)


def _many_groups(w: _Writer) -> bool:
    """A convolution in more groups than some kernels take."""
    x = w.pick((4,))
    if x is None:
        return False
    first, second, y = w.new("conv"), w.new("conv"), w.new()
    members = [
        f"self.{first} = nn.Conv2d({w.shape(x)[1]}, 128, 1)",
        f"self.{second} = nn.Conv2d(128, 128, 2, groups=128)",
    ]
    return w.add(f"{y} = self.{second}(self.{first}(F.adaptive_avg_pool2d({x}, 2)))", members)


def _attention(w: _Writer) -> bool:
    x = w.pick((3,))
    if x is None:
        return False
    y, size = w.new(), w.shape(x)[-1]
    query, key = w.new("linear"), w.new("linear")
    members = [f"self.{n} = nn.Linear({size}, {size})" for n in (query, key)]
    scores = f"torch.softmax(self.{query}({x}) @ self.{key}({x}).transpose(1, 2) / 2, -1)"
    return w.add(f"{y} = {scores} @ {x}", members)


def _state(w: _Writer) -> bool:
    """A buffer that calls change, or an attribute that nobody reads."""
    name, y, x = w.new("state"), w.new(), w.pick()
    if x is None:
        return False
    members = [f"self.register_buffer({name!r}, torch.ones(1))"]
    line = w.rng.choice(
        (f"self.{name}.add_(1)\n{y} = {x} * self.{name}", f"{y} = {x} + self.{name}",
         f"{y} = {x} * self.{name}\nself.{name}.mul_(2)", f"{y} = {x} * 1.5",
         f"self.{name}.copy_({x}.detach().mean())\n{y} = {x} - self.{name}")
    )  # fmt: skip
    return w.add(line, members)


def _optional(w: _Writer) -> bool:
    """An argument that may not be there."""
    x = w.pick()
    if x is None or "scale" in w.scope:
        return False
    given = w.inputs[-1] == "extra"
    y = w.new()
    name = "extra" if given else "missing"
    lines = f"{y} = {x}\nif {name} is not None:\n    {y} = {x} * {name}.mean()"
    return w.add(lines)


_STATEMENTS: dict[Callable[[_Writer], bool], int] = {
    _elementwise: 14, _activation_module: 7, _reshape: 10, _pair: 9, _write: 8, _alias_and_write: 4,
    _convolution: 9, _transposed: 4, _functional_convolution: 5, _shared: 3, _linear: 7,
    _batch_norm: 3, _convolution_norm: 7, _other_norm: 2, _dropout: 3, _pool: 4, _resize: 3,
    _unpack: 3, _lists: 3, _sizes: 2, _branch: 5, _loop: 5, _layers: 3, _attention: 1, _state: 3,
    _optional: 2, _concatenation: 2, _many_groups: 1,
}  # fmt: skip


def draw(rng: random.Random) -> Drawn:
    """Draw a class; whether it runs in both modes is for the caller to see."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's advice on what is drawn
        return _draw(rng)


def _draw(rng: random.Random) -> Drawn:
    shapes: list[tuple[int, ...]] = [rng.choice(INPUTS)]
    if rng.random() < 0.4:
        shapes.append(shapes[0])
    inputs = [f"x{i}" for i in range(len(shapes))]
    optional = rng.random() < 0.15
    if optional:
        inputs.append("extra")
        shapes.append((2,))
    w = _Writer(rng, inputs, shapes)
    statements, weights = list(_STATEMENTS), list(_STATEMENTS.values())
    wanted = rng.randint(3, 9)
    for _ in range(60):
        if len(w.lines) >= wanted:
            break
        with contextlib.suppress(KeyError):
            rng.choices(statements, weights)[0](w)
        for name in [k for k in w.scope if k.startswith("v") and k not in "\n".join(w.lines)]:
            del w.scope[name]
    names = [name for name, value in w.tensors().items() if name not in inputs] or [inputs[0]]
    results = list(dict.fromkeys([*w.results, names[-1]]))
    if rng.random() < 0.5:
        results += [n for n in rng.sample(names, min(2, len(names))) if n not in results]
    return Drawn(*_class(w, rng, results, optional))


def _class(
    w: _Writer, rng: random.Random, results: list[str], optional: bool
) -> tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]:
    result = ", ".join(results)
    if len(results) == 1:
        result = rng.choice((result, result, result, f"({result},)", f"[{result}, {result}]"))
    else:
        result = rng.choice(
            (f"({result})", f"[{result}]", f"{{'a': {results[0]}, 'b': {results[1]}}}")
        )
    if len(results) > 2 and result.startswith("{"):
        result = f"({', '.join(results)})"
    arguments = "".join(f", {name}: Tensor" for name in w.inputs if name != "extra")
    arguments += ", extra: Optional[Tensor] = None" if optional else ""
    if any("missing is not None" in line for line in w.lines):
        arguments += ", missing: Optional[Tensor] = None"
    members = [f"        {line}\n" for line in w.members]
    body = [f"        {part}\n" for line in w.lines for part in line.split("\n")]
    source = (
        "class Net(nn.Module):\n    def __init__(self) -> None:\n        super().__init__()\n"
        + "".join(members)
        + f"\n    def forward(self{arguments}):\n{''.join(body)}        return {result}\n"
    )
    if "self.helper(" in source:
        source += HELPER
    methods = ["forward"]
    if rng.random() < 0.1:
        methods.append("other")
        given = ", ".join(part.split(":")[0] for part in arguments[2:].split(", "))
        source += f"\n    @torch.jit.export\n    def other(self{arguments}):\n"
        source += (
            f"        result = self.forward({given})\n        return result, {w.inputs[0]} * 1\n"
        )
    return source, tuple(w.shapes), tuple(methods)
