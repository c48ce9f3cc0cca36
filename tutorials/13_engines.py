# %% [markdown]
# # From a file to other engines
#
# A `.pt` file holds a model, without its Python source. This text quantizes it, and runs it in ONNX
# Runtime, in OpenVINO, and with AOTInductor in a C++ program without Python.
#
# An engine puts an operator on integers only where it finds quantize and dequantize in the places
# that it knows. In all other places the operator silently runs in float, and the file is slower
# than the float model. The second half of this text shows how to find these operators.
#
# Run this file whole (`python tutorials/13_engines.py`, about a minute), or cell by cell in an
# editor that supports `# %%`. ONNX Runtime, OpenVINO and a C++ compiler are used if they are
# installed. Assertions check the claims.

# %%
import importlib.util
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsMobileNet, load_digits_tensors, top1, train

import jit_passes

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
warnings.filterwarnings("ignore", category=FutureWarning)  # PyTorch's exporters about themselves
torch.set_num_threads(1)  # results then do not depend on the number of cores


def has(*packages: str) -> bool:
    """Say whether packages are installed; name the missing ones."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"left out, since there is no {', '.join(missing)}: pip install {' '.join(missing)}")
    return not missing


# %% [markdown]
# ## 1. A file
#
# A small MobileNet for scanned digits. After this cell only the file is used.

# %%
folder = Path(tempfile.mkdtemp())
data = load_digits_tensors()
torch.manual_seed(0)
script = torch.jit.script(train(DigitsMobileNet(width=8), data, epochs=4))
torch.jit.save(script, folder / "float.pt")
del script

model = torch.jit.load(folder / "float.pt")
batches = data.train_x[:256].split(64)
float_top1 = top1(model, data.test_x, data.test_y)
print(f"float {float_top1:.2f} %")

# %% [markdown]
# ## 2. Before any data: inspect
#
# Each engine is a target. `inspect` says which operators it will compute on integers, and why not
# the others. Symmetric activations, as in TensorRT, are a common wish. In ONNX Runtime they cost
# most of the network: its relu6 clips at 0, symmetric codes reach below, and a clip with an effect
# keeps ONNX Runtime from fusing the convolution in front of it.
#
# Weights have 7 bits, since on processors without VNNI two products of 8 bits overflow int16.

# %%
affine = {"version": 1, "global": {"weight": {"bits": 7}}}
symmetric = {"version": 1, "global": {"weight": {"bits": 7}, "output": {"scheme": "symmetric"}}}
found = jit_passes.inspect(model, target="onnxruntime", config=symmetric)
in_float = [row for row in found if row.kind == "aten::conv2d" and row.dtype == "float"]
print(
    f"symmetric: {len(in_float)} convolutions in float\n  {in_float[0].name}: {in_float[0].reason}"
)
assert "make it affine" in in_float[0].reason

found = jit_passes.inspect(model, target="onnxruntime", config=affine)
print(str(found).partition("\n")[0])
assert all(row.dtype != "float" for row in found)

# %% [markdown]
# The reason shows the remedy: with the default, affine, all operators are on integers.
#
# ## 3. ONNX Runtime
#
# `coverage` reads the quantized model itself: the bits of each operator, or its reason. The reasons
# also describe the engine, since the model is a *reference model*: float operators between quantize
# and dequantize. The model runs here, and shows the accuracy before there is a file.

# %%
how = {"mode": "static", "config": affine, "progress": False}
reference = jit_passes.quantize_script(model, batches, target="onnxruntime", **how)
rows = jit_passes.coverage(reference)
print(str(rows).partition("\n")[0])
reference_top1 = top1(reference, data.test_x, data.test_y)
print(f"reference {reference_top1:.2f} %")
assert len(rows.int8) == len(rows) == 18
assert reference_top1 > float_top1 - 2

batch = torch.export.Dim("batch", min=2, max=1024)
if has("onnx", "onnxscript"):
    jit_passes.export_onnx(reference, folder / "int8.onnx", batches[0], ({0: batch},))

# %% [markdown]
# `check_onnx` runs the file twice, plain and optimized, and compares all codes with the reference
# model. Then it counts the integer operators in the optimized graph of ONNX Runtime, which is the
# graph that runs. In a shell: `jit-passes check int8.onnx --against ...`.

# %%
if has("onnx", "onnxscript", "onnxruntime"):
    check = jit_passes.check_onnx(folder / "int8.onnx", reference, batches[:1], progress=False)
    print(check.summary)
    assert check.kept
    assert not check.floats

# %% [markdown]
# A few codes differ: at ties, where a value is halfway between two codes, and behind them. The
# order of float32 sums decides ties. The labels equal the reference model's.

# %%
if has("onnx", "onnxscript", "onnxruntime"):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "int8.onnx")
    [name] = [value.name for value in session.get_inputs()]
    [logits] = session.run(None, {name: data.test_x.numpy()})
    onnx_top1 = 100 * (torch.from_numpy(logits).argmax(1) == data.test_y).float().mean().item()
    print(f"ONNX Runtime {onnx_top1:.2f} %")
    assert abs(onnx_top1 - reference_top1) < 1

# %% [markdown]
# ## 4. A wrong target
#
# This file is for another engine. `openvino` has no quantize between a convolution and the sum that
# reads it, since OpenVINO adds before rounding. ONNX Runtime loads the file, computes it correctly,
# and leaves these convolutions in float. `check_onnx` reports it if you ask for ONNX Runtime: by
# default it runs the engine of the model's target.

# %%
for_openvino = jit_passes.quantize_script(model, batches, target="openvino", **how)
if has("onnx", "onnxscript"):
    jit_passes.export_onnx(for_openvino, folder / "openvino.onnx", batches[0], ({0: batch},))
if has("onnx", "onnxscript", "onnxruntime"):
    check = jit_passes.check_onnx(
        folder / "openvino.onnx",
        for_openvino,
        batches[:1],
        engine="onnxruntime",
        progress=False,
    )
    print(check.summary)
    assert not check.kept
    assert check.floats

# %% [markdown]
# ## 5. OpenVINO
#
# OpenVINO reads this file. `check_onnx` compares its results with the reference model as floats,
# and counts layers. OpenVINO's own report is the runtime model: each layer has a
# `runtimePrecision`.

# %%
if has("onnx", "onnxscript", "openvino"):
    import openvino

    check = jit_passes.check_onnx(
        folder / "openvino.onnx", for_openvino, batches[:1], progress=False
    )
    print(check)
    assert check.kept
    options = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 on some processors otherwise
    compiled = openvino.Core().compile_model(str(folder / "openvino.onnx"), "CPU", options)
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    precisions = [
        info["runtimePrecision"].astype(str)
        for info in layers
        if info["layerType"].astype(str) in ("Convolution", "FullyConnected")
    ]
    print(f"OpenVINO: {len(precisions)} layers with weights, in {sorted({*precisions})}")
    found = torch.from_numpy(compiled(data.test_x.numpy())[0])
    openvino_top1 = 100 * (found.argmax(1) == data.test_y).float().mean().item()
    print(f"OpenVINO {openvino_top1:.2f} %")
    assert len(precisions) == 18
    assert {*precisions} <= {"u8", "i8"}
    assert abs(openvino_top1 - float_top1) < 3

# %% [markdown]
# ## 6. AOTInductor, in C++
#
# `export_aoti` compiles the model with PyTorch's own compiler into one file, a *package*. The sizes
# are fixed here: Inductor of torch 2.13 compiles int8 convolutions with one input channel and an
# open batch wrongly. `export_aoti` runs each package once, with checks of layouts, and refuses a
# wrong one.

# %%
compiler = os.environ.get("CXX") or shutil.which("g++")
images = data.test_x[:64]
package = folder / "int8_package.pt2"
if compiler is None:
    print("left out, since there is no C++ compiler: install g++")
else:
    for_inductor = jit_passes.quantize_script(model, batches, target="inductor", **how)
    print(str(jit_passes.coverage(for_inductor)).partition("\n")[0])
    jit_passes.export_aoti(for_inductor, package, images)
    print(f"{package.name}: {package.stat().st_size / 1e3:.0f} kB")

# %% [markdown]
# The program needs LibTorch, the C++ part of PyTorch.

# %%
source = Path(__file__).parent / "cpp_aoti" / "run_package.cpp"
print(source.read_text())

# %%
if compiler is not None:
    torch_folder = Path(torch.__file__).parent
    libraries = torch_folder / "lib"
    command = [compiler, "-std=c++20", "-O0", "-w", str(source), "-o", str(folder / "run_package")]
    command += [f"-I{torch_folder / 'include'}"]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    images.contiguous().numpy().tofile(folder / "images.bin")
    files = [str(folder / name) for name in ("int8_package.pt2", "images.bin", "results.bin")]
    command = [str(folder / "run_package"), *files, *map(str, images.shape)]
    subprocess.run(command, check=True)
    logits = torch.from_file(str(folder / "results.bin"), size=640).reshape(64, 10)
    with torch.no_grad():
        expected = for_inductor(images)
    step = jit_passes.encodings_of(for_inductor).activations[-1].scale[0]
    apart = (logits - expected).abs().max().item() / step
    print(f"C++: at most {apart:.0f} steps from the reference model")
    assert apart < 3.5
    assert (logits.argmax(1) == expected.argmax(1)).float().mean() > 0.95

# %% [markdown]
# ## 7. Where to look
#
# | question | answer |
# | --- | --- |
# | which operators will the engine leave in float, and why? | `inspect(model, target=...)` |
# | which are on integers, with how many bits? | `coverage(reference)` |
# | which are on integers in the engine's own graph? | `check_onnx(path, reference, batches)` |
# | at which value does an engine differ, and why? | `conformance(reference, batches, engines)` |
#
# Read the reasons of `inspect` and `coverage` first. If both promise integers and the engine's
# graph has a float operator, the file was usually made for another engine, as in section 4. If all
# is on integers and labels are wrong, look at the weights: on processors without VNNI they need 7
# bits. [docs/engines.md](../docs/engines.md) has the places of each engine, and its known faults.
