"""Packages of AOTInductor, which C++ programs load without Python.

`torch._inductor` compiles the program of `to_exported_program`: C++ code, a shared library, and the
weights. Freezing lets it find quantize and dequantize, and pack weights ahead of the first call.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..errors import JitPassesError, first_line, shortened, warn
from ..files import check_writable, read_bytes, write_whole
from ..logs import decomposing
from ..stages.module import Report, quantized_part
from .origin import origin_of
from .program import to_exported_program
from .program.sums import keep_apart

CHECKS = "AOTI_RUNTIME_CHECK_INPUTS"  # a variable that packages read in their first call
TARGETS = ("inductor", "reference")  # of models whose placement Inductor reads


def export_aoti(
    model: torch.jit.ScriptModule,
    path: str | os.PathLike[str],
    example_inputs: Any,
    dynamic_shapes: Any = None,
    *,
    method: str = "forward",
) -> None:
    """Compile a float model, or a model of the target `inductor`, into a package of AOTInductor.

    In Python `torch._inductor.aoti_load_package` loads it. In C++ the class
    `torch::inductor::AOTIModelPackageLoader` does, without Python and without this package. The
    package runs on processors with the instructions of this one, with the version of torch that
    compiled it.

    A package of a float model computes what `to_exported_program` gives, to the rounding of
    float32. Integer kernels round once where the program rounds twice, so codes may be one step
    apart.

    Args:
        model: a float ScriptModule in eval mode, or a reference model of the target `inductor`. A
            model of the target `reference` is taken too, and runs on integers where Inductor
            recognizes its places.
        path: the file; its name ends in `.pt2`, as loaders require.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        dynamic_shapes: the sizes that are open, as `torch.export.export` takes them; None for none.
        method: the method to compile.

    Raises:
        JitPassesError: the model is for another engine or changes its buffers;
            `to_exported_program` refuses it; there is no C++ compiler; or Inductor does not compile
            the program, or compiles it wrongly.
        JitPassesError: the file cannot be written; this is an OSError too.

    Warns:
        JitPassesWarning: weights have 8 bits, and the processor has no VNNI; or this torch has no
            patterns for int8, and the package computes in float.
    """
    check_writable(path)
    if not os.fspath(path).endswith(".pt2"):
        raise JitPassesError(f"a package of AOTInductor is a file '*.pt2', not '{os.fspath(path)}'")
    _check_target(Report.read(quantized_part(model, method)))
    program = to_exported_program(model, example_inputs, dynamic_shapes, method=method)
    _check_state(program)
    keep_apart(program)  # of models of the target `reference`, whose programs other engines read
    settings = {"freezing": True, "aot_inductor.metadata": {"jit_passes": origin_of(model, method)}}
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "model.pt2")
        _compile(program, package, settings)
        _check_layouts(program, package)
        write_whole(path, read_bytes(package))


def _check_target(report: Report | None) -> None:
    """Check that a quantized model has quantize and dequantize where Inductor looks for them.

    Raises:
        JitPassesError: it is for another engine.

    Warns:
        JitPassesWarning: kernels of this processor overflow with its weights, or none are used.
    """
    if report is None or not report.is_reference:  # of the others to_exported_program tells
        return
    target = report.target.get("name")
    if target not in TARGETS:
        raise JitPassesError(
            f"the model is for '{target}', and AOTInductor wants quantize and dequantize in other "
            "places: quantize the float model with target='inductor'"
        )
    if not has_int8_patterns():
        warn(
            f"torch {torch.__version__} has left Inductor's patterns for int8 to torchao: the "
            "package gives right results, in float; compile it with torch 2.13 for integers"
        )
        return
    wide = any(row.bits.startswith("w8a") for row in report.operators)
    if wide and not torch.cpu._is_vnni_supported():
        warn(
            "without VNNI, kernels of this processor add pairs of products in int16, where weights "
            "of 8 bits overflow: give weights 7 bits in the configuration (weight: {bits: 7}), or "
            "compile on the processor that will run the package"
        )


def has_int8_patterns() -> bool:
    """Say whether Inductor of this torch looks for quantized convolutions and linears itself."""
    from torch._inductor.fx_passes import quantization  # it takes seconds to import

    return hasattr(quantization, "_register_quantization_weight_pack_pass")


def _check_state(program: torch.export.ExportedProgram) -> None:
    """Check that a program changes none of its buffers: packages of torch 2.13 lose what it writes.

    Raises:
        JitPassesError: it changes one.
    """
    # Writes in place are in the signature only once they are taken apart.
    with decomposing():
        changed = program.run_decompositions({}).graph_signature.buffers_to_mutate
    if changed:
        names = shortened([f"'{name}'" for name in sorted(set(changed.values()))])
        why = (
            f"the model changes its {names}, and a package of AOTInductor begins each call with "
            "the same state"
        )
        raise JitPassesError(
            f"{why}: give the state as an argument and return it, or use to_exported_program",
            command=f"{why}: use --to pt2",
        )


def _compile(
    program: torch.export.ExportedProgram, package: Path, settings: dict[str, Any]
) -> None:
    """Write the package.

    Raises:
        JitPassesError: there is no compiler, or the program does not compile.
    """
    import torch._inductor as inductor  # it takes seconds to import
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's are about its own code
            inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=settings
            )
    except Exception as error:
        reason = error.__cause__ or error.__context__ or error
        if isinstance(reason, InvalidCxxCompiler):
            raise JitPassesError(
                "AOTInductor needs a C++ compiler: install g++, or name one in the environment "
                f"variable CXX. PyTorch says: {first_line(reason)}"
            ) from error
        raise JitPassesError(
            f"AOTInductor does not compile the model. PyTorch says: {first_line(reason)}"
        ) from error


def _check_layouts(program: torch.export.ExportedProgram, package: Path) -> None:
    """Run a package on the example inputs, with its own checks of sizes and strides.

    With an open size, Inductor of torch 2.13 reads results of quantized convolutions with one input
    channel in the wrong layout. Only a run of the package shows it.

    Raises:
        JitPassesError: a kernel gives another layout than the package reads.
    """
    import torch._inductor as inductor

    args, kwargs = tree_map_only(torch.Tensor, torch.clone, program.example_inputs)
    before = os.environ.get(CHECKS)
    os.environ[CHECKS] = "1"
    try:
        with torch.no_grad():
            inductor.aoti_load_package(str(package))(*args, **kwargs)
    except RuntimeError as error:
        why = (
            "AOTInductor compiles the model wrongly, as is known of an int8 convolution with one "
            "input channel and an open size"
        )
        reason = first_line(error).partition("\n")[0]
        said = f"or keep the operator in float. PyTorch says: {reason}"
        raise JitPassesError(
            f"{why}: fix the sizes (dynamic_shapes=None), {said}",
            command=f"{why}: give one sample, {said}",
        ) from error
    finally:
        if before is None:
            del os.environ[CHECKS]
        else:
            os.environ[CHECKS] = before
