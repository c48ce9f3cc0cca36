"""Random layers: convolutions, linears, norms, pools, and what stands around them.

Each function adds a statement, and returns whether there was one that fits.
"""

# ruff: noqa: D103 - the docstring above is that of all
from __future__ import annotations

from typing import Any

from .random_writer import Writer


def _convolution_arguments(w: Writer, rank: int, channels: int) -> tuple[str, int]:
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


def _pick_image(w: Writer) -> tuple[str, int, int] | None:
    """A value for a convolution: its name, the number of axes, of channels."""
    x = w.pick((3, 4, 5))
    if x is None:
        return None
    shape = w.shape(x)
    if len(shape) < 5 and w.rng.random() < 0.1:  # without a batch
        return x, len(shape) - 1, shape[0]
    return x, len(shape) - 2, shape[1]


def convolution(w: Writer) -> bool:
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


def transposed(w: Writer) -> bool:
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


def functional_convolution(w: Writer) -> bool:
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


def shared(w: Writer) -> bool:
    """A convolution called again, with another value or its own result."""
    if not w.shared:
        return False
    member, shape, _ = w.rng.choice(w.shared)
    fits = [k for k, v in w.tensors().items() if v.dim() == len(shape) and v.shape[1] == shape[1]]
    return bool(fits) and w.add(f"{w.new()} = self.{member}({w.rng.choice(fits)})")


def linear(w: Writer) -> bool:
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


def _norm_members(w: Writer, member: str, rank: int, channels: int) -> list[str]:
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


def batch_norm(w: Writer) -> bool:
    x = w.pick((2, 3, 4, 5))
    if x is None:
        return False
    member, shape = w.new("norm"), w.shape(x)
    members = _norm_members(w, member, len(shape), shape[1])
    return w.keep(w.add(f"{w.new()} = self.{member}({x})", members))


def convolution_norm(w: Writer) -> bool:
    """Operators that batch norms are folded into."""
    made = w.rng.choice((convolution, convolution, transposed, linear))
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


def other_norm(w: Writer) -> bool:
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


def dropout(w: Writer) -> bool:
    x, member, y = w.pick(), w.new("drop"), w.new()
    if x is None:
        return False
    choice = w.rng.randrange(4)
    if choice == 0:
        return w.keep(w.add(f"{y} = F.dropout({x}, 0.4, self.training)"))
    kinds = ("Dropout(0.3)", "Dropout2d(0.4)", "AlphaDropout(0.2)")
    kind = kinds[choice - 1] if len(w.shape(x)) == 4 else kinds[0]
    return w.keep(w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"]))


def pool(w: Writer) -> bool:
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


def layers(w: Writer) -> bool:
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


def concatenation(w: Writer) -> bool:
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


def many_groups(w: Writer) -> bool:
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


def attention(w: Writer) -> bool:
    x = w.pick((3,))
    if x is None:
        return False
    y, size = w.new(), w.shape(x)[-1]
    query, key = w.new("linear"), w.new("linear")
    members = [f"self.{n} = nn.Linear({size}, {size})" for n in (query, key)]
    scores = f"torch.softmax(self.{query}({x}) @ self.{key}({x}).transpose(1, 2) / 2, -1)"
    return w.add(f"{y} = {scores} @ {x}", members)
