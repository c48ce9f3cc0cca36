"""Quantization and graph rewriting for TorchScript."""

from __future__ import annotations

from pathlib import Path

from . import _extension, fake_quantizers, observers, quantizer, targets
from .calibrate import calibrate
from .convert import convert
from .diff import diff_graphs, format_graph
from .errors import JitPassesError, JitPassesWarning, PassError
from .export import Encoding, Encodings, encodings_of, export_calibration
from .graph import GraphEditor, GraphView, NodeView, ValueView
from .lower import lower
from .normalize import normalized_graph
from .observe import prepare
from .passes import Pipeline, passes, register_pass, run_pass
from .plugins import Plugin, load_plugins
from .profile import Profile, ValueProfile, fill, profile
from .qat import (
    ThresholdFreezer,
    disable_fake_quantize,
    disable_observers,
    enable_fake_quantize,
    enable_observers,
    freeze_statistics,
    model_parameters,
    named_quantization_parameters,
    prepare_qat,
    quantization_parameters,
    scale_corrections,
    unfreeze_statistics,
)
from .quantize import quantize_script
from .quantizer import Slot
from .report import Coverage, Inspection, coverage, inspect
from .rewrite import Match, RewriteRule, register_rules, replace_pattern, rewrite
from .schedule import ScheduledPass, Stage, schedule, scheduled, scheduled_passes
from .slots import quantize_slots
from .verify import assert_equivalent

__version__ = "0.1.0"

__all__ = [
    "Coverage",
    "Encoding",
    "Encodings",
    "GraphEditor",
    "GraphView",
    "Inspection",
    "JitPassesError",
    "JitPassesWarning",
    "Match",
    "NodeView",
    "PassError",
    "Pipeline",
    "Plugin",
    "Profile",
    "RewriteRule",
    "ScheduledPass",
    "Slot",
    "Stage",
    "ThresholdFreezer",
    "ValueProfile",
    "ValueView",
    "assert_equivalent",
    "calibrate",
    "convert",
    "coverage",
    "diff_graphs",
    "disable_fake_quantize",
    "disable_observers",
    "enable_fake_quantize",
    "enable_observers",
    "encodings_of",
    "export_calibration",
    "fake_quantizers",
    "fill",
    "format_graph",
    "freeze_statistics",
    "include_paths",
    "inspect",
    "library_path",
    "load_plugins",
    "lower",
    "model_parameters",
    "named_quantization_parameters",
    "normalized_graph",
    "observers",
    "passes",
    "prepare",
    "prepare_qat",
    "profile",
    "quantization_parameters",
    "quantize_script",
    "quantize_slots",
    "quantizer",
    "register_pass",
    "register_rules",
    "replace_pattern",
    "rewrite",
    "run_pass",
    "scale_corrections",
    "schedule",
    "scheduled",
    "scheduled_passes",
    "targets",
    "unfreeze_statistics",
]


def include_paths() -> list[str]:
    """Return the folders with the headers for C++ passes of your own, PyTorch's included.

    Headers are `<jit_passes/registry.h>` and its neighbours. Link with `library_path()`.
    """
    from torch.utils import cpp_extension

    return [str(Path(__file__).parent / "include"), *cpp_extension.include_paths()]


def library_path() -> str:
    """Return the extension, which a library with C++ passes of your own links with.

    Import that library after this package, with `torch.ops.load_library` or as a module; its passes
    then are in `jit_passes.passes`.
    """
    return _extension.PATH
