"""Quantization and graph rewriting for TorchScript."""

from __future__ import annotations

from pathlib import Path

from . import _starting as _starting  # isort: skip  # ahead of torch
from . import _extension, fake_quantizers, logs, observers, quantizer, targets
from ._version import __version__ as __version__
from .errors import JitPassesError, JitPassesWarning, PassError
from .export import (
    Encoding,
    Encodings,
    encodings_of,
    export_aoti,
    export_c,
    export_calibration,
    export_onnx,
    export_vectors,
    from_exported_program,
    to_exported_program,
)
from .export.strip import strip
from .graph.diff import diff_graphs, format_graph
from .graph.editor import GraphEditor
from .graph.verify import assert_equivalent
from .graph.view import GraphView, NodeView, ValueView
from .passes.pipeline import Pipeline, run_pass
from .passes.plugins import Plugin, load_plugins
from .passes.registry import invariants, passes, register_invariant, register_pass
from .passes.rewrite import rewrite
from .passes.rule import Match, RewriteRule, register_rules, replace_pattern
from .passes.schedule import ScheduledPass, Stage, schedule, scheduled, scheduled_passes
from .passes.steps import PassCall, RuleSet
from .passes.subject import Remark
from .profile import Profile, ValueProfile, fill, profile
from .quantize import quantize_script
from .report import (
    Comparison,
    Conformance,
    Coverage,
    Description,
    Inspection,
    Parity,
    check_onnx,
    compare,
    conformance,
    coverage,
    exactness,
    inspect,
    parity,
    provenance,
    report,
    show_versions,
)
from .stages.calibrate import calibrate
from .stages.convert import convert
from .stages.correct_bias import correct_bias
from .stages.equalize import equalize
from .stages.lower import lower
from .stages.normalize import normalized_graph
from .stages.partition import partition
from .stages.prepare import prepare
from .stages.round_weights import round_weights
from .stages.smooth import smooth
from .training.freezing import ThresholdFreezer
from .training.oscillations import OscillationCount, Oscillations
from .training.parameters import (
    model_parameters,
    named_quantization_parameters,
    quantization_parameters,
)
from .training.prepare import prepare_qat
from .training.quantize_slots import quantize_slots
from .training.starting import start_from
from .training.statistics import estimate_statistics
from .training.switches import (
    disable_fake_quantize,
    disable_observers,
    enable_fake_quantize,
    enable_observers,
    freeze_statistics,
    scale_corrections,
    unfreeze_statistics,
)
from .tuning import Improved, Sensitivity, Tuned, improve, sensitivity, tune

__all__ = [
    "Comparison",
    "Conformance",
    "Coverage",
    "Description",
    "Encoding",
    "Encodings",
    "GraphEditor",
    "GraphView",
    "Improved",
    "Inspection",
    "JitPassesError",
    "JitPassesWarning",
    "Match",
    "NodeView",
    "OscillationCount",
    "Oscillations",
    "Parity",
    "PassCall",
    "PassError",
    "Pipeline",
    "Plugin",
    "Profile",
    "Remark",
    "RewriteRule",
    "RuleSet",
    "ScheduledPass",
    "Sensitivity",
    "Stage",
    "ThresholdFreezer",
    "Tuned",
    "ValueProfile",
    "ValueView",
    "assert_equivalent",
    "calibrate",
    "check_onnx",
    "compare",
    "conformance",
    "convert",
    "correct_bias",
    "coverage",
    "diff_graphs",
    "disable_fake_quantize",
    "disable_observers",
    "enable_fake_quantize",
    "enable_observers",
    "encodings_of",
    "equalize",
    "estimate_statistics",
    "exactness",
    "export_aoti",
    "export_c",
    "export_calibration",
    "export_onnx",
    "export_vectors",
    "fake_quantizers",
    "fill",
    "format_graph",
    "freeze_statistics",
    "from_exported_program",
    "improve",
    "include_paths",
    "inspect",
    "invariants",
    "library_path",
    "load_plugins",
    "lower",
    "model_parameters",
    "named_quantization_parameters",
    "normalized_graph",
    "observers",
    "parity",
    "partition",
    "passes",
    "prepare",
    "prepare_qat",
    "profile",
    "provenance",
    "quantization_parameters",
    "quantize_script",
    "quantize_slots",
    "quantizer",
    "register_invariant",
    "register_pass",
    "register_rules",
    "replace_pattern",
    "report",
    "rewrite",
    "round_weights",
    "run_pass",
    "runtime_path",
    "scale_corrections",
    "schedule",
    "scheduled",
    "scheduled_passes",
    "sensitivity",
    "show_versions",
    "smooth",
    "start_from",
    "strip",
    "targets",
    "to_exported_program",
    "tune",
    "unfreeze_statistics",
]

logs.set_up()


def include_paths() -> list[str]:
    """Return the folders with the headers for C++ passes of your own, PyTorch's included.

    Headers are `<jit_passes/registry.h>` and its neighbours. Link with `library_path()`.
    """
    from torch.utils import cpp_extension

    return [str(Path(__file__).parent / "include"), *cpp_extension.include_paths()]


def runtime_path() -> str:
    """Return the library that C++ programs load before a file with operators of this package.

    The library has the operators and plans, not the bindings, so no Python. A program links with
    it, or calls `dlopen`. A process that imports this package must not load it too.
    """
    return str(Path(_extension.PATH).parent / "lib" / "libjit_passes.so")


def library_path() -> str:
    """Return the extension, which a library with C++ passes of your own links with.

    Import that library after this package, with `torch.ops.load_library` or as a module; its passes
    then are in `jit_passes.passes`.
    """
    return _extension.PATH
