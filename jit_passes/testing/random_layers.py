"""Random layers: convolutions, linears, norms, pools, and operators around them.

Each function adds a statement, or raises `DoesNotFit`.
"""

# ruff: noqa: D103 - one docstring above for all
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


def _pick_image(w: Writer) -> tuple[str, int, int]:
    """A value for a convolution: its name, the number of axes, of channels."""
    x = w.pick((3, 4, 5))
    if x is None:
        return None
    shape = w.shape(x)
    if len(shape) < 5 and w.rng.random() < 0.1:  # without a batch
        return x, len(shape) - 1, shape[0]
    return x, len(shape) - 2, shape[1]


def convolution(w: Writer) -> None:
    x, rank, channels = _pick_image(w)
    arguments, out = _convolution_arguments(w, rank, channels)
    member, y = w.new("conv"), w.new()
    w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.Conv{rank}d({arguments})"])
    if out == channels:
        w.shared.append((member, w.shape(x), x))


def transposed(w: Writer) -> None:
    x, rank, channels = _pick_image(w)
    groups = w.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    stride = w.rng.randint(1, 2)
    arguments = (
        f"{channels}, {groups * w.rng.randint(1, 2)}, {w.rng.randint(1, 3)}, stride={stride}, "
        f"padding={w.rng.randint(0, 1)}, output_padding={w.rng.randint(0, stride - 1)}, "
        f"groups={groups}, bias={w.rng.random() < 0.7}, dilation={w.rng.randint(1, 2)}"
    )
    member = w.new("conv")
    w.add(
        f"{w.new()} = self.{member}({x})", [f"self.{member} = nn.ConvTranspose{rank}d({arguments})"]
    )


def functional_convolution(w: Writer) -> None:
    x, rank, channels = _pick_image(w)
    rng, weight, bias, gain, y = w.rng, w.new("weight"), w.new("bias"), w.new("gain"), w.new()
    sizes = [rng.randint(1, 2) for _ in range(rank)]
    out, transposes = rng.randint(1, 4), rng.random() < 0.25
    first, second = (channels, out) if transposes else (out, channels)
    members = [
        f"self.{weight} = nn.Parameter(torch.randn({[first, second, *sizes]}) * 0.5)",
        f"self.{bias} = nn.Parameter(torch.randn({out}))",
    ]
    used = rng.choice(
        (f"self.{weight}", f"self.{weight} * 2", f"torch.tanh(self.{weight})",
         f"torch._weight_norm(self.{weight}, self.{gain}, 0)")
    )  # fmt: skip
    if gain in used:
        members.append(f"self.{gain} = nn.Parameter(torch.rand({[first, 1, *[1] * rank]}) + 0.5)")
    added = rng.choice(("None", f"self.{bias}", f"self.{bias} + 1", f"-self.{bias}"))
    more = rng.choice(("", ", 1", ", 1, 1", ", padding=[1]", ", padding='same'", f", 2, [{1}]"))
    if transposes:
        line = f"F.conv_transpose{rank}d({x}, {used}, {added})"
    else:
        line = f"torch.conv{rank}d({x}, {used}, {added}{more})"
    w.add(f"{y} = {line}", members)


def shared(w: Writer) -> None:
    """A convolution called again, with another value or its own result."""
    member, shape, _ = w.choice(w.shared)
    fits = [k for k, v in w.tensors().items() if v.dim() == len(shape) and v.shape[1] == shape[1]]
    x = w.choice(fits)
    w.add(f"{w.new()} = self.{member}({x})")


def linear(w: Writer) -> None:
    x = w.pick((2, 3, 4))
    rng, y = w.rng, w.new()
    size, out = w.shape(x)[-1], rng.randint(1, 6)
    weight, bias, member = w.new("weight"), w.new("bias"), w.new("linear")
    parameters = [
        f"self.{weight} = nn.Parameter(torch.randn({size}, {out}))",
        f"self.{bias} = nn.Parameter(torch.randn({out}))",
    ]
    choice = rng.randrange(7)
    if choice < 2:
        parameters = [f"self.{member} = nn.Linear({size}, {out}, bias={rng.random() < 0.7})"]
    scale = rng.choice(("", "", f", beta=1, alpha={rng.randint(1, 2)}")) if choice > 2 else ""
    line = {
        2: f"F.linear({x}, self.{weight}.t() * 2, self.{bias})",
        3: f"torch.addmm(self.{bias}, {x}, self.{weight}{scale})",
        4: f"{x} @ self.{weight} + self.{bias}",
        5: f"torch.mm({x}, self.{weight})",
        6: f"torch.matmul({x}, self.{weight})",
    }.get(choice, f"self.{member}({x})")
    w.add(f"{y} = {line}", parameters)


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


def batch_norm(w: Writer) -> None:
    x = w.pick((2, 3, 4, 5))
    member, shape = w.new("norm"), w.shape(x)
    members = _norm_members(w, member, len(shape), shape[1])
    w.add(f"{w.new()} = self.{member}({x})", members)
    w.keep()


def convolution_norm(w: Writer) -> None:
    """Operators that batch norms are folded into."""
    made = w.rng.choice((convolution, convolution, transposed, linear))
    made(w)
    x = f"v{w.last}"
    shape, member = w.shape(x), w.new("norm")
    members = _norm_members(w, member, len(shape), shape[1])
    call = f"self.{member}({x})"
    line = f"{w.new()} = {w.rng.choice((call, call, f'F.relu({call})'))}"
    w.add(line, members)
    w.keep()


def layer_scale(w: Writer) -> None:
    """A factor for each channel behind a layer; the layer may write its channels elsewhere."""
    w.rng.choice((convolution, convolution, transposed, linear))(w)
    x = f"v{w.last}"
    rank = len(w.shape(x))
    order = w.rng.choice((list(range(rank)), w.rng.sample(range(rank), rank)))
    axis = w.rng.choice((rank - 1, order.index(min(1, rank - 1))))
    size, factor = w.shape(x)[order[axis]], w.new("factor")
    sizes = ", ".join(["1"] * w.rng.randint(0, axis) + [str(size)] + ["1"] * (rank - 1 - axis))
    moved = x if order == sorted(order) else f"{x}.permute({order})"
    product = w.rng.choice((f"self.{factor} * {moved}", f"{moved} * self.{factor}"))
    w.add(f"{w.new()} = {product}", [f"self.{factor} = nn.Parameter(torch.randn({sizes}))"])


def other_norm(w: Writer) -> None:
    member, x = w.new("norm"), w.pick((2, 3, 4, 5))
    shape = w.shape(x)
    groups = w.rng.choice([g for g in range(1, shape[1] + 1) if shape[1] % g == 0])
    kind = w.rng.choice(
        (f"LayerNorm({shape[-1]})", f"LayerNorm({list(shape[-2:])}, elementwise_affine=False)",
         f"GroupNorm({groups}, {shape[1]})")
    )  # fmt: skip
    members = [f"self.{member} = nn.{kind}"]
    if "affine" not in kind:  # groups of one number would give 0, where functions have kinks
        members.append(f"nn.init.uniform_(self.{member}.weight, -0.5, 1.5)")
        members.append(f"nn.init.uniform_(self.{member}.bias, -0.5, 0.5)")
    w.add(f"{w.new()} = self.{member}({x})", members)


def dropout(w: Writer) -> None:
    x, member, y = w.pick(), w.new("drop"), w.new()
    choice = w.rng.randrange(4)
    kinds = ("Dropout(0.3)", "Dropout2d(0.4)", "AlphaDropout(0.2)")
    kind = kinds[choice - 1] if len(w.shape(x)) == 4 else kinds[0]
    if choice:
        w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"])
    else:
        w.add(f"{y} = F.dropout({x}, 0.4, self.training)")
    w.keep()


def pool(w: Writer) -> None:
    member, y, x = w.new("pool"), w.new(), w.pick((3, 4, 5))
    rank = len(w.shape(x)) - 2
    kind = w.rng.choice(
        (f"MaxPool{rank}d(2)", f"MaxPool{rank}d(3, stride=1, padding=1)", f"AvgPool{rank}d(2)",
         f"AvgPool{rank}d(3, 2, 1)", f"AdaptiveAvgPool{rank}d(1)", f"AdaptiveAvgPool{rank}d(2)",
         f"AdaptiveMaxPool{rank}d(2)", f"MaxPool{rank}d(2, ceil_mode=True)")
    )  # fmt: skip
    if w.rng.random() < 0.3:
        w.add(f"{y} = F.{w.rng.choice(('max', 'avg'))}_pool{rank}d({x}, 2)")
    else:
        w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"])


def layers(w: Writer) -> None:
    """A loop over modules, or a sequence of them."""
    x = w.pick((3, 4))
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
    w.add(lines, members)
    w.keep()


def concatenation(w: Writer) -> None:
    """Convolutions, in front of another one."""
    x = w.pick((3, 4))
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
    w.add(f"{y} = self.{names[2]}({joined})", members)


def many_groups(w: Writer) -> None:
    """A convolution in more groups than some kernels take."""
    x = w.pick((4,))
    first, second, y = w.new("conv"), w.new("conv"), w.new()
    members = [
        f"self.{first} = nn.Conv2d({w.shape(x)[1]}, 128, 1)",
        f"self.{second} = nn.Conv2d(128, 128, 2, groups=128)",
    ]
    w.add(f"{y} = self.{second}(self.{first}(F.adaptive_avg_pool2d({x}, 2)))", members)


def attention(w: Writer) -> None:
    x = w.pick((3,))
    y, size = w.new(), w.shape(x)[-1]
    query, key = w.new("linear"), w.new("linear")
    members = [f"self.{n} = nn.Linear({size}, {size})" for n in (query, key)]
    scores = f"torch.softmax(self.{query}({x}) @ self.{key}({x}).transpose(1, 2) / 2, -1)"
    w.add(f"{y} = {scores} @ {x}", members)


def fused_attention(w: Writer) -> None:
    x = w.pick((3, 4))
    masked = w.rng.choice(("", ", is_causal=True", ", scale=0.5"))
    w.add(f"{w.new()} = F.scaled_dot_product_attention({x}, {x}, {x}{masked})")


def embedding(w: Writer) -> None:
    """Rows of a table for each place, added."""
    x = w.pick((2, 3, 4))
    member, size = w.new("table"), w.shape(x)[-1]
    ids = f"torch.arange({x}.size(-2)) % 4"
    w.add(
        f"{w.new()} = {x} + self.{member}({ids})", [f"self.{member} = nn.Embedding(4, {size})"]
    )  # fmt: skip


def recurrent(w: Writer) -> None:
    """A recurrent layer, or a cell in a loop."""
    x, y = w.pick((3,)), w.new()
    kind, member = w.rng.choice(("LSTM", "GRU", "RNN")), w.new("layer")
    inner, out = w.shape(x)[-1], w.rng.randint(1, 4)
    if w.rng.random() < 0.3 and kind != "LSTM":
        state = f"torch.zeros({x}.size(1), {out}, dtype={x}.dtype)"
        lines = f"{y} = {state}\nfor i in range({x}.size(0)):\n    {y} = self.{member}({x}[i], {y})"
        w.add(lines, [f"self.{member} = nn.{kind}Cell({inner}, {out})"])
        return
    options = w.rng.choice(("", ", batch_first=True", ", bidirectional=True", ", bias=False"))
    w.add(f"{y} = self.{member}({x})[0]", [f"self.{member} = nn.{kind}({inner}, {out}{options})"])
