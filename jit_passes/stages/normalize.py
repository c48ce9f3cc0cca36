"""Stage 1: one inlined graph in canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.jit._trace import TopLevelTracedModule

from .. import _C
from ..errors import JitPassesError
from ..graph.view import GraphView
from ..passes.pipeline import CLEAN_UP, FOLD_NUMBERS, Pipeline, PipelineResult, own
from .module import check_module

# The canonical form, of models for use and of models that train. `simplify` runs again where steps
# between give it more to go by.
CANONICAL_FORM = (
    "avoid_fast_path",
    "simplify",
    "replace_inplace",
    "canonicalize_synonyms",
    "settle_batch_axis",
    "canonicalize_convolution",
    "simplify",  # branches on a batch axis are gone
    "canonicalize_products",
    "canonicalize_reshape",
    "canonicalize_pool",
    "simplify",  # sizes are told by fewer operators
    "spell_out_weights",  # as lists, which constants would be again
    "raise_sizes",
    "keep_leading_axes",
    FOLD_NUMBERS,
)

NORMALIZE = Pipeline(
    "normalize",
    (
        "freeze",
        "remove_dropout",
        "propagate_constants",  # branches on keys
        "fold_written_constants",
        *CANONICAL_FORM,
        "fold_batch_norm",
        "fold_scale",
        *CLEAN_UP,
    ),
    ensures=("inlined", "canonical"),
)

# Parameters, dropout and batch norms stay.
NORMALIZE_TRAINING = Pipeline(
    "normalize_training",
    (
        "follow_mode",
        "fold_attributes",
        "propagate_constants",  # branches on attributes
        *CANONICAL_FORM,
        "pool_attributes",
        "defer_batch_norm",
        "remove_dead_code",
        "pool_constants",
    ),
    ensures=("inlined", "canonical"),
)


def normalize_training(model: torch.jit.ScriptModule, method: str = "forward") -> Any:
    """Return a C++ module whose graph is inlined and in canonical form, with its parameters.

    Raises:
        JitPassesError: the model decides as it runs which of its modules it calls.
    """
    subject = own(model, method)
    _C.inline_forks(subject.held, method)
    if problem := subject.check("inlined"):
        raise JitPassesError(
            f"the model decides as it runs which module it calls, so no graph has all operators "
            f"({problem}): call modules that are members, or elements of a ModuleList"
        )
    # A module from torch.jit.trace knows it, and one from a file does not.
    traced = isinstance(model, TopLevelTracedModule)
    NORMALIZE_TRAINING.run_on(subject, options={"follow_mode": {"traced": traced}})
    return subject.module


def normalize(module: Any, method: str = "forward", state: Sequence[str] = ()) -> PipelineResult:
    """Return a module with one method, whose graph is inlined, frozen and in canonical form.

    Attributes at the paths of `state` stay attributes.
    """
    return NORMALIZE.run(module, method, options={"freeze": {"state": list(state)}})


def normalized_graph(model: torch.jit.ScriptModule, method: str = "forward") -> GraphView:
    """Return the graph that quantizers annotate: the first form of a model in `prepare`.

    Configurations, profiles and reports use its names.

    Args:
        model: scripted, traced or loaded, in eval mode. The model does not change.
        method: the method to look at.

    Raises:
        JitPassesError: the model is not a ScriptModule, is in training mode or does not have the
            method.
    """
    check_module(model, method)
    return GraphView.of(normalize(model._c, method).module, method)
