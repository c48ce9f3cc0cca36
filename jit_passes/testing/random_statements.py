"""Random statements without layers: arithmetic, views, writes, lists, control flow, state.

Each function adds a statement, or raises `DoesNotFit`.
"""

# ruff: noqa: D103 - one docstring above for all
from __future__ import annotations

from .random_writer import Writer

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


def elementwise(w: Writer) -> None:
    x = w.pick()
    w.add(f"{w.new()} = {w.same(x)}")


def activation_module(w: Writer) -> None:
    member, x = w.new("act"), w.pick(made=True)
    kind = w.rng.choice(
        ("ReLU()", "ReLU(inplace=True)", "ReLU6()", "Hardtanh(-0.5, 1.5)", "LeakyReLU(0.1)",
         "ELU()", "Hardswish()", "Sigmoid()", "Tanh()", "Softmax(-1)",
         "ReLU6(inplace=True)", "Identity()")
    )  # fmt: skip
    w.add(f"{w.new()} = self.{member}({x})", [f"self.{member} = nn.{kind}"], writes=True)


def reshape(w: Writer) -> None:
    x = w.pick()
    w.add(f"{w.new()} = {w.fill(w.rng.choice(RESHAPE), x)}")


def pair(w: Writer) -> None:
    x, z = w.pick(), w.pick()
    w.add(f"{w.new()} = {w.fill(w.rng.choice(PAIRS), x, z=z)}")


def write(w: Writer) -> None:
    if w.rng.random() < 0.2:
        tensors = [name for name in w.inputs if name != "extra"]
        x = w.rng.choice(tensors)  # the caller's
    else:
        x = w.pick(made=True)
    z = w.pick()
    y = w.new()
    lines = w.fill(w.rng.choice(WRITE), x, z=z, y=y)
    w.add(lines, writes=True)


def alias_and_write(w: Writer) -> None:
    """A view of a fresh value, and a write to one of the two."""
    x = w.pick((2, 3, 4, 5))
    y, view = w.new(), w.new()
    lines = f"{y} = {x} * 2\n{view} = {w.fill(w.rng.choice(RESHAPE[:24]), y)}"
    w.add(lines)
    target = w.rng.choice((y, view))
    w.add(w.fill(w.rng.choice(WRITE), target, z=y, y=w.new()), writes=True)


def resize(w: Writer) -> None:
    y, x = w.new(), w.pick((3, 4, 5))
    rank = len(w.shape(x)) - 2
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
    line = w.rng.choice(
        (f"F.interpolate({x}, scale_factor=2.0)", f"F.interpolate({x}, size={[3] * rank})",
         f"F.interpolate({x}, scale_factor=2.0, mode='{smooth}', align_corners=False)",
         f"F.interpolate({x}, size={[5] * rank}, mode='{smooth}', align_corners=True)",
         f"F.pad({x}, {[1, 1] * rank}, 'replicate')", f"F.pad({x}, {[1, 0] * rank}, 'circular')")
    )  # fmt: skip
    w.add(f"{y} = {line}")


def unpack(w: Writer) -> None:
    x = w.pick((2, 3, 4, 5))
    dims = [d for d, size in enumerate(w.shape(x)) if size % 2 == 0]
    dim, a, b = w.choice(dims), w.new(), w.new()
    half = w.shape(x)[dim] // 2
    line = w.rng.choice((f"{x}.chunk(2, {dim})", f"torch.split({x}, {half}, {dim})"))
    w.add(f"{a}, {b} = {line}")


def lists(w: Writer) -> None:
    x = w.pick((2, 3, 4, 5))
    parts, y = w.new("parts"), w.new()
    appended = w.same(x)
    if w.rng.random() < 0.5:
        lines = f"{parts} = [{x}, {w.same(x)}]\n{parts}.append({appended})"
    else:
        lines = f"{parts}: List[Tensor] = []\nfor i in range(3):\n    {parts}.append({x} * i)"
    ending = w.rng.choice((f"torch.cat({parts}, 1)", f"torch.stack({parts})", f"{parts}[1]"))
    w.add(f"{lines}\n{y} = {ending}")


def sizes(w: Writer) -> None:
    """A list of numbers that grows."""
    x = w.pick((2, 3, 4))
    sizes, y = w.new("sizes"), w.new()
    lines = w.rng.choice(
        (f"{sizes} = [{x}.size(0)]\n{sizes}.append(-1)", f"{sizes} = [2, -1]",
         f"{sizes} = [1]\n{sizes}.append(-1)", f"{sizes} = [-1]")
    )  # fmt: skip
    w.add(f"{lines}\n{y} = {x}.reshape({sizes})")


def branch(w: Writer) -> None:
    x = w.pick()
    y, flag = w.new(), w.new("flag")
    members: list[str] = []
    condition = w.rng.choice(
        (f"float({x}.sum()) > 0.01", f"bool({x}.mean() < 0.1)", "self.training", f"self.{flag}",
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
    w.add(lines, members)


def y_of(w: Writer, x: str, y: str) -> str:
    """Let y be known as something of x's size before its statement has run."""
    w.scope[y] = w.scope[x]
    return y


def loop(w: Writer) -> None:
    x = w.pick()
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
    w.add(lines, members)


def state(w: Writer) -> None:
    """A buffer that calls change, or an attribute without readers."""
    name, y, x = w.new("state"), w.new(), w.pick()
    members = [f"self.register_buffer({name!r}, torch.ones(1))"]
    line = w.rng.choice(
        (f"self.{name}.add_(1)\n{y} = {x} * self.{name}", f"{y} = {x} + self.{name}",
         f"{y} = {x} * self.{name}\nself.{name}.mul_(2)", f"{y} = {x} * 1.5",
         f"self.{name}.copy_({x}.detach().mean())\n{y} = {x} - self.{name}")
    )  # fmt: skip
    w.add(line, members)


def optional(w: Writer) -> None:
    """An argument that may not be there."""
    x = w.pick()
    given = w.inputs[-1] == "extra"
    y = w.new()
    name = "extra" if given else "missing"
    lines = f"{y} = {x}\nif {name} is not None:\n    {y} = {x} * {name}.mean()"
    w.add(lines)


def dictionary(w: Writer) -> None:
    """Values by name, which are replaced, taken out and gone through."""
    x = w.pick((2, 3, 4, 5))
    parts, y = w.new("parts"), w.new()
    ending = w.rng.choice(
        (f"{parts}['c'] = {w.same(x)}\n{y} = {parts}['a'] + {parts}['c']",
         f"{y} = {x} * 0\nfor key in {parts}.keys():\n    {y} = {y} + {parts}[key]",
         f"{parts}['b'] = {parts}.pop('a')\n{y} = {parts}['b'] * 0.5",
         f"{parts}.update({{'a': {parts}['b']}})\n{y} = torch.cat(list({parts}.values()), 1)",
         f"if 'c' in {parts}:\n    {y} = {parts}['c']\nelse:\n    {y} = {parts}['b']")
    )  # fmt: skip
    w.add(f"{parts} = {{'a': {x}, 'b': {w.same(x)}}}\n{ending}")


def write_in_block(w: Writer) -> None:
    """Writes to parts of a fresh value, in a loop or a branch."""
    x, y = w.pick((2, 3, 4, 5)), w.new()
    c, i = w.fill("{c}", x), w.fill("{i}", x)
    line = w.rng.choice(
        (f"{y}[i].mul_({c})", f"{y}[i, 0] += 1.0", f"{y}.select(0, i).relu_()",
         f"{y}[i:].add_({c})", f"{y}[i] = {y}[0].clone() * {c}", f"{y}.add_(i)")
    )  # fmt: skip
    block = w.rng.choice(
        (f"for i in range({y}.size(0)):\n    {line}",
         f"for i in range({y}.size(0)):\n    if i > 0:\n        {line}",
         f"if float({x}.sum()) > 0.01:\n    {y}[0] = {c}\nelse:\n    {y}.relu_()",
         f"if {x}.size(0) > {i}:\n    {y}[..., 0].mul_({c})")
    )  # fmt: skip
    w.add(f"{y} = {x} * 2\n{block}", writes=True)


def list_of_views(w: Writer) -> None:
    """Views in a list, which are written to, moved and joined."""
    x, y = w.pick((2, 3, 4, 5)), w.new()
    parts, z = w.new("parts"), w.new()
    change = w.rng.choice(
        (f"{parts}[0].mul_({w.fill('{c}', x)})", f"{y}[0].relu_()", f"{parts}[1] += 1.0",
         f"{parts}.insert(0, {parts}.pop())", f"{parts}.extend([{y}[0]])", f"{parts}.reverse()",
         f"{parts}[0] = {parts}[1] * 2\n{parts}[1].add_(1)")
    )  # fmt: skip
    lines = f"{y} = {x} * 2\n{parts} = [{y}[0], {y}[-1]]\n{change}\n{z} = torch.stack({parts})"
    w.add(lines, writes=True)


def swap(w: Writer) -> None:
    """Names that change places, in a loop or once."""
    x, a, b = w.pick(), w.new(), w.new()
    line = f"{a}, {b} = {b}, {a}"
    looped = f"for i in range({w.rng.randint(0, 3)}):\n    {line}"
    w.add(f"{a}, {b} = {x}, {w.same(x)}\n{w.rng.choice((line, looped))}")
