"""Random idioms: operators as models put them together, which passes know by their form.

Each function adds a statement, or raises `DoesNotFit`.
"""

# ruff: noqa: D103 - one docstring above for all
from __future__ import annotations

from .random_writer import DoesNotFit, Writer

# Activations, element by element.
SPELLED_OUT = (
    "{x} * 0.5 * (1.0 + torch.erf({x} / 1.4142135623730951))",
    "{x} * torch.erf({x} * 0.7071067811865476).add(1.0).mul(0.5)",
    "0.5 * {x} * (1 + torch.tanh(0.7978845608028654 * ({x} + 0.044715 * torch.pow({x}, 3.0))))",
    "{x} * torch.sigmoid({x})", "{x} * torch.sigmoid(1.702 * {x})", "{x} / (1.0 + torch.exp(-{x}))",
    "{x} * F.relu6({x} + 3.0) / 6.0", "{x} * torch.clamp({x} / 6.0 + 0.5, 0.0, 1.0)",
    "{x} * torch.tanh(F.softplus({x}))",
)  # fmt: skip

# Over the last axis; {w} is a weight, {e} a small number.
NORMS = (
    "{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + {e}) * {w}",
    "{w} * ({x} / torch.sqrt(torch.mean({x} * {x}, -1, True) + {e}))",
    "({x} - {x}.mean(-1, True)) / ({x}.var(-1, unbiased=False, keepdim=True) + {e}).sqrt() * {w}",
    "({x} - {x}.mean(-1, True)) * torch.rsqrt({x}.var(-1, False, True) + {e}) * {w} + {w}",
    "F.normalize({x}, dim=-1) * {w}",
)  # fmt: skip

# Products of rows with each other.
SCORES = (
    "{q} @ {k}.transpose(-2, -1)", "torch.matmul({q}, {k}.transpose(-1, -2))",
    "torch.bmm({q}, {k}.permute(0, 2, 1))", "torch.einsum('bid,bjd->bij', {q}, {k})",
    "torch.einsum('n q d, n k d -> n q k', {q}, {k})",
)  # fmt: skip


def spelled_out_activation(w: Writer) -> None:
    x = w.pick()
    w.add(f"{w.new()} = {w.fill(w.rng.choice(SPELLED_OUT), x)}")


def spelled_out_norm(w: Writer) -> None:
    x, y, weight = w.pick((2, 3, 4)), w.new(), w.new("weight")
    line = w.fill(w.rng.choice(NORMS), x, w=f"self.{weight}", e=w.rng.choice(("1e-5", "1e-3")))
    w.add(f"{y} = {line}", [f"self.{weight} = nn.Parameter(torch.rand({w.shape(x)[-1]}) + 0.5)"])


def masked_attention(w: Writer) -> None:
    """Rows that see the rows in front, by a mask for the largest number of rows."""
    x, y = w.pick((3,)), w.new()
    size, query, mask, scores = w.shape(x)[-1], w.new("linear"), w.new("mask"), w.new("scores")
    q = f"self.{query}({x})"
    members = [
        f"self.{query} = nn.Linear({size}, {size})",
        f"self.register_buffer({mask!r}, torch.ones(16, 16).tril())",
    ]
    seen = f"self.{mask}[:{x}.size(1), :{x}.size(1)]"
    masked = w.rng.choice(
        (f"{scores}.masked_fill({seen} == 0, float('-inf'))",
         f"torch.where({seen} > 0, {scores}, torch.full_like({scores}, -1e4))",
         f"{scores} + (1.0 - {seen}) * -1e4")
    )  # fmt: skip
    lines = f"{scores} = {w.rng.choice(SCORES).format(q=q, k=x)} / {size**0.5:.3f}\n"
    lines += f"{y} = torch.softmax({masked}, -1) @ {x}"
    if w.rng.random() < 0.3:
        lines = f"{y} = F.scaled_dot_product_attention({q}, {x}, {x}, attn_mask={seen} > 0)"
    w.add(lines, members)


def heads(w: Writer) -> None:
    """Attention of several heads, by views."""
    x, y = w.pick((3,)), w.new()
    size, query, last, q = w.shape(x)[-1], w.new("linear"), w.new("linear"), w.new("query")
    count = w.rng.choice([g for g in range(1, size + 1) if size % g == 0])
    split = w.rng.choice(
        (f"view(list({x}.shape[:-1]) + [{count}, -1])", f"unflatten(-1, ({count}, -1))",
         f"reshape({x}.size(0), -1, {count}, {size // count})",
         f"view({x}.size(0), {x}.size(1), {count}, {size // count})")
    )  # fmt: skip
    shares = w.rng.choice(
        (f"({q} @ {q}.transpose(-2, -1)).softmax(-1) @ {q}",
         f"F.scaled_dot_product_attention({q}, {q}, {q})")
    )  # fmt: skip
    join = w.rng.choice(("flatten(2)", f"reshape({x}.shape)", f"reshape({x}.size(0), -1, {size})"))
    w.add(
        f"{q} = self.{query}({x}).{split}.transpose(1, 2)\n"
        f"{y} = self.{last}(({shares}).transpose(1, 2).{join})",
        [f"self.{name} = nn.Linear({size}, {size})" for name in (query, last)],
    )


def transformer(w: Writer) -> None:
    """PyTorch's own layers, which have a fast path."""
    x, y, member = w.pick((3,)), w.new(), w.new("layer")
    size = w.shape(x)[-1]
    count = w.rng.choice([g for g in range(1, size + 1) if size % g == 0])
    first = w.rng.choice(("", ", batch_first=True"))
    if w.rng.random() < 0.5:
        kind = f"TransformerEncoderLayer({size}, {count}, 8, 0.0{first})"  # traces keep dropout
        w.add(f"{y} = self.{member}({x})", [f"self.{member} = nn.{kind}"])
        return
    weights = w.rng.choice(("", ", need_weights=False"))
    kind = f"MultiheadAttention({size}, {count}{first})"
    w.add(f"{y} = self.{member}({x}, {x}, {x}{weights})[0]", [f"self.{member} = nn.{kind}"])


def rows(w: Writer) -> None:
    """A linear layer over rows, which are joined and split again."""
    x, y, member = w.pick((3, 4)), w.new(), w.new("linear")
    if 1 in w.shape(x):
        raise DoesNotFit  # canonicalize_reshape goes further in a second run
    shape, out, weight = w.shape(x), w.rng.randint(2, 4), w.new("weight")
    flat = w.rng.choice((f"{x}.flatten(0, -2)", f"{x}.reshape(-1, {x}.size(-1))"))
    layer = w.rng.choice(
        (f"self.{member}({flat})", f"torch.addmm(self.{member}.bias, {flat}, self.{weight})")
    )
    sizes = ", ".join(f"{x}.size({axis})" for axis in range(len(shape) - 1))
    back = w.rng.choice((f"{sizes}, {out}", f"{sizes}, -1", f"list({x}.shape[:-1]) + [{out}]"))
    w.add(
        f"{y} = {layer}.{w.rng.choice(('view', 'reshape'))}({back})",
        [f"self.{member} = nn.Linear({shape[-1]}, {out})",
         f"self.{weight} = nn.Parameter(torch.randn({shape[-1]}, {out}))"],
    )  # fmt: skip


def written_bias(w: Writer) -> None:
    """A bias that loses one part in each call."""
    x, y, bias, copy = w.pick((2, 3)), w.new(), w.new("bias"), w.new("copy")
    member, part = w.new("linear"), w.rng.choice((":2", "1:3", f"self.{bias}.numel() // 3:"))
    w.add(
        f"{copy} = self.{bias}.clone()\n{copy}[{part}].zero_()\n"
        f"{y} = F.linear({x}, self.{member}.weight, {copy})",
        [f"self.{member} = nn.Linear({w.shape(x)[-1]}, 6)",
         f"self.{bias} = nn.Parameter(torch.randn(6))"],
    )  # fmt: skip


def resize_as(w: Writer) -> None:
    """A pool of an image, resized to the image's size, as in feature pyramids."""
    x, y, conv, z = w.pick((4,)), w.new(), w.new("conv"), w.new()
    channels = w.shape(x)[1]
    smooth = w.rng.choice(("", ", mode='bilinear', align_corners=False"))
    w.add(
        f"{y} = self.{conv}({x})\n"
        f"{z} = {y} + F.interpolate(F.max_pool2d({y}, 2), size={y}.shape[-2:]{smooth})",
        [f"self.{conv} = nn.Conv2d({channels}, {channels}, 3, 1, 1)"],
    )


def pool_of_lines(w: Writer) -> None:
    """An average over one axis of an image behind a convolution."""
    x, y, conv, z = w.pick((4,)), w.new(), w.new("conv"), w.new()
    sizes = w.rng.choice((f"[1, {y}.size(3)]", f"[{y}.size(2), 1]", f"(1, {y}.size(-1))"))
    w.add(
        f"{y} = self.{conv}({x})\n{z} = F.adaptive_avg_pool2d({y}, {sizes})",
        [f"self.{conv} = nn.Conv2d({w.shape(x)[1]}, {w.rng.randint(1, 4)}, 1)"],
    )


def cast(w: Writer) -> None:
    """A layer whose weights get the dtype of its operand, as classifiers have it."""
    x, y, first, second, z = w.pick((2, 3)), w.new(), w.new("linear"), w.new("linear"), w.new()
    size, out = w.shape(x)[-1], w.rng.randint(1, 4)
    dtype = w.rng.choice((f"{y}.dtype", f"{x}.dtype"))
    weight, bias = f"self.{second}.weight", f"self.{second}.bias"
    casts = w.rng.choice((f"{weight}.to({dtype}), {bias}.to({dtype})", f"{weight}.type_as({y})"))
    w.add(
        f"{y} = self.{first}({x})\n{z} = F.linear({y}, {casts})",
        [f"self.{first} = nn.Linear({size}, {size})",
         f"self.{second} = nn.Linear({size}, {out})"],
    )  # fmt: skip


def recurrent_cell(w: Writer) -> None:
    """A cell with two states, in a loop that keeps each of the first."""
    x, y, cell, states = w.pick((3,)), w.new(), w.new("cell"), w.new("states")
    size = w.rng.randint(1, 4)
    zeros = f"torch.zeros({x}.size(1), {size}, dtype={x}.dtype)"
    w.add(
        f"{states}: List[Tensor] = []\nh{y}, c{y} = {zeros}, {zeros}\n"
        f"for i in range({x}.size(0)):\n    h{y}, c{y} = self.{cell}({x}[i], (h{y}, c{y}))\n"
        f"    {states}.append(h{y})\n{y} = torch.stack({states})",
        [f"self.{cell} = nn.LSTMCell({w.shape(x)[-1]}, {size})"],
    )


def listed(w: Writer) -> None:
    """Results of several layers, joined."""
    x, y, member, parts = w.pick((2, 3, 4)), w.new(), w.new("layers"), w.new("parts")
    size = w.shape(x)[-1]
    many = ", ".join(f"nn.Linear({size}, {w.rng.randint(1, 3)})" for _ in range(3))
    made = w.rng.choice(
        (f"{parts} = [one({x}) for one in self.{member}]",
         f"{parts}: List[Tensor] = []\nfor layer in self.{member}:\n    {parts}.append(layer({x}))")
    )  # fmt: skip
    w.add(f"{made}\n{y} = torch.cat({parts}, -1)", [f"self.{member} = nn.ModuleList([{many}])"])
