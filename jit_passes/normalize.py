"""Stage 1: one inlined graph in canonical form."""

from __future__ import annotations

from typing import Any

from .passes import Pipeline, PipelineResult

NORMALIZE = Pipeline(
    "normalize",
    (
        "freeze",
        "remove_dropout",
        "replace_inplace",
        "resolve_none_checks",
        "propagate_constants",
        "unroll_loops",
        "propagate_constants",
        "fold_constant_lists",
        "canonicalize_convolution",
        "remove_rank_checks",
        "canonicalize_padding",
        "canonicalize_linear",
        "canonicalize_clamp",
        "canonicalize_view",
        "fold_batch_norm",
        "remove_dead_code",
        "pool_constants",
        "remove_unused_attributes",
    ),
)


def normalize(module: Any, method: str = "forward") -> PipelineResult:
    """Return a module with one method, whose graph is inlined, frozen and in canonical form.

    Args:
        module: a C++ module (`model._c`); it is not touched, the result shares its weights.
        method: the method to keep.
    """
    return NORMALIZE.run(module, method)
