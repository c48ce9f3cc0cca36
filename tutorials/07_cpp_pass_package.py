# %% [markdown]
# # A package with passes in C++
#
# Passes and operators can live outside of jit_passes. This text builds a small package,
# `fpga-passes`, and uses it. The package is for a chip without dividers and without exponentials:
#
# - a **pass in C++** turns division by a power of two into a product,
# - an **operator in C++** with a gradient replaces the sigmoid by a shift, a sum and a clip,
# - a **rule in Python** puts this operator into a graph.
#
# The files are in `tutorials/cpp_pass_package`. Run this file whole, with a C++ compiler
# (`python tutorials/07_cpp_pass_package.py`, about a minute, most of it compiling). jit_passes can
# be installed, or be found through `PYTHONPATH`. Nothing is downloaded.

# %%
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import jit_passes

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
SOURCE = Path(__file__).parent / "cpp_pass_package"

# %% [markdown]
# ## 1. The pass
#
# A pass is a function that gets a `PassContext`, edits its graph, and returns whether it changed
# anything. `forEachNode` visits all nodes, also inside of branches and loops. The current node may
# be destroyed, and errors get its line of source. A static object registers the pass: its name, a
# summary, the function, and the invariants that it requires.

# %%
print((SOURCE / "src" / "replace_division.cpp").read_text())

# %% [markdown]
# ## 2. The operator
#
# `TORCH_LIBRARY` declares it. One implementation computes; another one, for `Autograd`, adds the
# gradient. This part is PyTorch alone.

# %%
print((SOURCE / "src" / "shift_sigmoid.cpp").read_text())

# %% [markdown]
# ## 3. The package
#
# `setup.py` compiles both files with the headers of jit_passes and PyTorch, and links them with the
# library of jit_passes, which has the registry. `library.cpp` includes both, so that the headers,
# which take most of the time, are parsed once. `__init__.py` loads the result, which runs the
# static objects, and registers the rule. `pyproject.toml` has an *entry point*: a line that names
# the module to import for `jit_passes.plugins`.

# %%
for name in ("src/library.cpp", "setup.py", "fpga_passes/__init__.py", "pyproject.toml"):
    print(f"--- {name}\n{(SOURCE / name).read_text()}")

# %% [markdown]
# ## 4. Build it
#
# To install the package: `pip install --no-build-isolation .` in its folder. *No build isolation*,
# because it must be compiled for the installed torch and jit_passes. This text installs a copy into
# a temporary folder, and puts that on Python's path.

# %%
temporary = tempfile.TemporaryDirectory()
copy, site = Path(temporary.name) / "source", Path(temporary.name) / "site"
shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
here = str(Path(jit_passes.__file__).parents[1])
found = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
# ninja, which runs the compiler, may be installed next to Python only.
environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
command = [
    sys.executable,
    "-m",
    "pip",
    "install",
    "--no-build-isolation",
    "--no-deps",
    "--no-index",
]
command += ["--disable-pip-version-check", "--quiet", "--target", str(site), str(copy)]
done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
print(*sorted(str(path.relative_to(site)) for path in site.glob("*/*")), sep="\n")

# %% [markdown]
# ## 5. Load it
#
# `load_plugins` imports every package with such an entry point, each once. A package whose import
# fails is skipped with a warning. `import fpga_passes` works too.

# %%
sys.path.insert(0, str(site))
assert "replace_division" not in jit_passes.passes
for plugin in jit_passes.load_plugins():
    print(f"{plugin.distribution} {plugin.version}: {', '.join(plugin.passes)}")
    assert not plugin.error
assert {"replace_division", "use_shift_sigmoid"} <= set(jit_passes.passes)
summary = jit_passes.passes["replace_division"].summary
assert summary == "Turn division by a power of two into a product."
assert "fpga-passes" in [plugin.distribution for plugin in jit_passes.load_plugins()]

# %% [markdown]
# Both are in the registry, like the passes of jit_passes. Their names can stand in any `Pipeline`.

# %%
for line in str(jit_passes.passes).splitlines():
    print(("-> " if re.match("replace_division|use_shift_sigmoid", line) else "   ") + line)

# %% [markdown]
# ## 6. A model
#
# A gated layer that divides by 8 and by 3, and takes a sigmoid.


# %%
class Gate(nn.Module):
    """A linear layer whose result opens and closes a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.value(x / 8) / 3
        return y * torch.sigmoid(self.gate(x))


torch.manual_seed(0)
model = torch.jit.script(Gate().double())
x = torch.randn(16, 6, dtype=torch.float64)
print(jit_passes.format_graph(jit_passes.run_pass("remove_dead_code", model)))

# %% [markdown]
# ## 7. The pass
#
# The result is equal to the last bit: `verify` compares outputs and gradients. Three is no power of
# two, so this division stays. The pass ran on a copy: the model itself has both divisions.

# %%
divided = jit_passes.Pipeline("divide", ("replace_division",)).run(model, verify=(x,))
print(divided.diff(color=False))
text = jit_passes.format_graph(divided.module)
assert "0.125" in text and text.count("aten::div") == 1
assert torch.equal(divided.module(x), model(x))
assert jit_passes.format_graph(model).count("aten::div") == 2

# %% [markdown]
# ## 8. The rule
#
# The result is not equal: the clipped line differs from the sigmoid by up to 0.12. The difference
# is the price of the small circuit, and the reason to train with it.

# %%
pipeline = jit_passes.Pipeline("to_fpga", ("replace_division", "use_shift_sigmoid"))
result = pipeline.run(model)
hardware = result.module
print(result)
print(result.diff(color=False))
assert "fpga::shift_sigmoid" in jit_passes.format_graph(hardware)
assert "aten::sigmoid" not in jit_passes.format_graph(hardware)

# By hand, in Python:
gate = torch.clamp(hardware.gate.weight.new_tensor(0.5) + 0.25 * nn.functional.linear(
    x, hardware.gate.weight, hardware.gate.bias), 0, 1)  # fmt: skip
expected = nn.functional.linear(x / 8, hardware.value.weight, hardware.value.bias) / 3 * gate
torch.testing.assert_close(hardware(x), expected)

grid = torch.linspace(-8, 8, 1001, dtype=torch.float64)
worst = (torch.ops.fpga.shift_sigmoid(grid) - torch.sigmoid(grid)).abs().max().item()
print(f"largest difference from the sigmoid: {worst:.3f}")
assert 0.11 < worst < 0.12

# %% [markdown]
# ## 9. Gradients
#
# The pass and the rule ran before autograd, so the gradient follows from the new operators.
# `gradcheck` compares it with finite differences. The corners at -2 and 2 have no gradient: the
# points must keep away from them.

# %%
points = torch.tensor([-3.0, -1.9, -0.3, 0.7, 1.8, 2.5], dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(torch.ops.fpga.shift_sigmoid, points)
inputs = 0.1 * x.clone().requires_grad_()
assert torch.autograd.gradcheck(lambda z: hardware(z), inputs)

# %% [markdown]
# So the model can be trained. The parameters are the parameters of `model`.

# %%
assert hardware.gate.weight is model.gate.weight
target = torch.sigmoid(x[:, :4])
optimizer = torch.optim.SGD(hardware.parameters(), lr=0.5)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(hardware(x), target)
    loss.backward()
    assert hardware.gate.weight.grad is not None and hardware.gate.weight.grad.abs().sum() > 0
    optimizer.step()
    losses.append(loss.item())
print("losses:", " ".join(f"{loss:.4f}" for loss in losses))
assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]

# %% [markdown]
# ## 10. On every compiled function
#
# A pass of a package can be scheduled like any other, see `05_when_passes_run.py`.

# %%
with jit_passes.scheduled(pipeline):
    compiled = torch.jit.script(Gate())
assert "fpga::shift_sigmoid" in jit_passes.format_graph(compiled)

# %% [markdown]
# ## 11. Good to know
#
# - A file of `torch.jit.save` names the operator `fpga::shift_sigmoid`: import `fpga_passes` before
#   loading it. A model after the pass alone needs no import.
# - Build the package again after an update of torch or jit_passes: it is compiled for both.
# - A pass or rule in Python needs no compiler: use `@jit_passes.register_pass` and
#   `RewriteRule.register` in a module with an entry point.

# %%
temporary.cleanup()
