# %% [markdown]
# # Generating text with weights of 4 bits
#
# A decoder writes one token after the other. For each token it reads all of its weights, and
# multiplies them with one row of numbers: so a token takes the time to read the weights. Weights of
# 4 bits have an eighth of the size of float32.
#
# This text quantizes a decoder in a `.pt` file for a loop that generates text: the configuration,
# its cost in accuracy, and the file.
#
# Run this file whole (`python tutorials/16_generating_text.py`, about half a minute), or cell by
# cell in an editor that supports `# %%`. Assertions check the claims.

# %%
import codecs
import contextlib
import io
import os
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. A decoder that keeps keys and values
#
# Keys and values of earlier tokens are inputs of each layer, and come back with the new ones. A
# prompt comes as a whole, with empty caches; then tokens follow one by one.

# %%
WIDTH, HEADS, LAYERS, LONGEST = 96, 3, 2, 128
SIZE = WIDTH // HEADS


class Layer(nn.Module):
    """Causal attention and two linear layers, each behind a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mixed = F.scaled_dot_product_attention(q, keys, values, mask)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), keys, values


class Decoder(nn.Module):
    """Characters [1, T], and caches [LAYERS, 1, HEADS, P, SIZE] of P earlier ones, to logits."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LONGEST, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words)

    def forward(
        self, tokens: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, past = tokens.shape[1], keys.shape[3]
        x = self.embed(tokens) + self.position[past : past + count]
        mask = torch.ones(count, past + count, dtype=torch.bool).tril(past)
        new_keys: list[Tensor] = []
        new_values: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, keys[i], values[i], mask)
            new_keys.append(k)
            new_values.append(v)
        return self.head(self.norm(x)), torch.stack(new_keys), torch.stack(new_values)


# %% [markdown]
# It learns one text by heart, so an error is easy to see.

# %%
with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13")
letters = sorted(set(TEXT))
codes = torch.tensor([letters.index(letter) for letter in TEXT])
empty = torch.zeros(LAYERS, 1, HEADS, 0, SIZE)

torch.manual_seed(0)
decoder = Decoder(len(letters))
optimizer = torch.optim.AdamW(decoder.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=400)
for _ in range(400):
    starts = torch.randint(0, len(codes) - LONGEST, (6,))
    rows = torch.stack([codes[start : start + LONGEST + 1] for start in starts])
    none = empty.expand(-1, len(rows), -1, -1, -1)
    logits, _, _ = decoder(rows[:, :-1], none, none)
    loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print(f"loss {loss.item():.3f}")

folder = Path(tempfile.mkdtemp())
torch.jit.script(decoder.eval()).save(str(folder / "float.pt"))
del decoder

# %% [markdown]
# From here on only the file is used.

# %%
model = torch.jit.load(folder / "float.pt")
PROMPT, LENGTH = TEXT[:40], 80


def write(decoder: torch.jit.ScriptModule, count: int = LENGTH) -> str:
    """Go on from the prompt, each time with the likeliest character."""
    tokens = torch.tensor([[letters.index(letter) for letter in PROMPT]])
    keys = values = empty
    text = ""
    with torch.no_grad():
        for _ in range(count):
            logits, keys, values = decoder(tokens, keys, values)
            tokens = logits[:, -1:].argmax(-1)
            text += letters[int(tokens)]
    return text


def logits_of(decoder: torch.jit.ScriptModule) -> Tensor:
    with torch.no_grad():
        return decoder(codes[None, :LONGEST], empty, empty)[0][0]


def error(decoder: torch.jit.ScriptModule) -> float:
    """Return the mean square of the error of logits."""
    return (logits_of(decoder) - logits_of(model)).square().mean().item()


def report(name: str, decoder: torch.jit.ScriptModule) -> None:
    """Print error, loss in nats, the size of the file, and the speed."""
    decoder.save(str(folder / "model.pt"))
    write(decoder, 10)
    start = time.perf_counter()
    write(decoder)
    speed = LENGTH / (time.perf_counter() - start)
    loss = F.cross_entropy(logits_of(decoder), codes[1 : LONGEST + 1]).item()
    size = (folder / "model.pt").stat().st_size / 1e3
    print(
        f"{name:22s} error {error(decoder):7.5f}  loss {loss:.3f}  {size:5.0f} kB  "
        f"{speed:4.0f} characters a second"
    )


report("float", model)
assert "Explicit is better than implicit." in write(model)

# %% [markdown]
# ## 2. Weights of 4 bits
#
# `mode: dynamic` quantizes the input of each linear layer while the model runs, without data, and
# multiplies integers. A scale for each 32 inputs keeps 4 bits exact enough: with one scale for a
# whole channel its largest weight decides for all others.
#
# Embeddings are looked up, not multiplied: they keep 8 bits.


# %%
def config(mode: str, **weight: object) -> dict[str, object]:
    embeddings = {"op": "embedding", "weight": {"bits": 8, "channelwise": True}}
    return {"version": 1, "global": {"mode": mode, "weight": weight}, "rules": [embeddings]}


four = jit_passes.quantize_script(
    model, target="x86", config=config("dynamic", bits=4, group_size=32)
)
print(jit_passes.coverage(four))
report("4 bits, dynamic", four)
assert error(four) < 0.02 * logits_of(model).square().mean().item()
print(PROMPT + write(four))

# %% [markdown]
# ## 3. The alternatives
#
# * `weight_only` leaves activations in float32. The results are a little more exact, and slower if
#   a prompt has many tokens.
# * A scale for each channel has a larger error at 4 bits, and `x86` stores these weights in 8 bits.
# * 8 bits are nearly exact. The file is larger, and a token takes longer if the network exceeds the
#   caches of the processor. This one is small, so the times here are alike.

# %%
alone = jit_passes.quantize_script(
    model, target="x86", config=config("weight_only", bits=4, group_size=32)
)
channels = jit_passes.quantize_script(model, target="x86", config=config("dynamic", bits=4))
eight = jit_passes.quantize_script(model, target="x86", config=config("dynamic", bits=8))
report("4 bits, weight_only", alone)
report("4 bits, per channel", channels)
report("8 bits, dynamic", eight)

assert 10 * error(eight) < error(alone) < 1.2 * error(four) < error(channels)

# %% [markdown]
# ## 4. The file
#
# A linear layer in groups of 32 takes 5 bits a weight with its scales: 0.16 of float32. Weights are
# in the file as the kernel reads them, so that memory holds them once. To load the file,
# `import jit_passes` first.

# %%
four.save(str(folder / "four.pt"))
again = torch.jit.load(folder / "four.pt")
assert write(again) == write(four)
share = os.path.getsize(folder / "four.pt") / os.path.getsize(folder / "float.pt")
print(f"{share:.2f} of the float file")
