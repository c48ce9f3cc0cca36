"""A model that trains as it will be quantized."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .. import _C
from ..configuration.checks import OptionError
from ..configuration.configuration import Rule
from ..configuration.options import TENSORS, LayerOptions, TensorOptions
from ..configuration.selector import Selector
from ..errors import JitPassesError
from ..fake_quantizers import FakeQuantizer, fake_quantizer_of
from ..graph.view import GraphView
from ..passes.pipeline import Pipeline
from ..passes.subject import check_script
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer
from ..stages.annotate import Annotated, Mode, annotate, choose_quantizer, warn_of_stages
from ..stages.module import ModelStage, attribute_of
from ..stages.normalize import normalize_training
from ..targets import Target
from .insertions import Insertions, check_forward_only
from .optimizers import watch
from .parameters import make_leaves, model_parameters, quantization_parameters

QUANTIZE = Pipeline(
    "quantize_training",
    ("insert_fake_quantize", "add_statistics_switch", "switch_folding", "pool_constants"),
)


def prepare_qat(
    model: torch.jit.ScriptModule,
    quantizer: Quantizer | None = None,
    *,
    fake_quantizer: str | FakeQuantizer = "lsq",
    bits: int | Mapping[str, int] | None = None,
    first_last_bits: int | None = None,
    target: str | Target = "auto",
    config: Any = None,
    mode: str | None = None,
    strict: bool = False,
    method: str = "forward",
) -> torch.jit.ScriptModule:
    """Return a model that trains with the quantization it will have.

    Fake quantization stands in the graph ahead of autograd, where `prepare` would have observers:
    the same annotations say where. The result has the model's own parameters and buffers: its
    tensors, with its names, in its order, so training one trains both. Scales and thresholds are
    added, named `<module>.<slot>_scale`, ..., see `fake_quantizers`. Build the optimizer
    afterwards, so that it knows them: see `quantization_parameters`.

    Batch norms behind convolutions and linears stay there and train as usual. Weights are quantized
    in their folded form. `train()` and `eval()` keep their meaning; ranges follow and scales begin
    in training mode only. `disable_observers`, `disable_fake_quantize` and `freeze_statistics` are
    for schedules.

    Under DistributedDataParallel, call this after `init_process_group`, and wrap the result without
    further arguments. First values and ranges then come from all ranks' batches together, and
    scales, thresholds and ranges stay equal on all ranks. `find_unused_parameters=True` is for
    models with branches, and while thresholds are frozen.

    Args:
        model: scripted, traced or loaded, with its parameters, in training or eval mode. A traced
            model keeps the mode that it was traced in. The model does not change, except that its
            parameters become leaves of autograd again where copy.deepcopy of a ScriptModule has
            left none.
        quantizer: decides what is quantized and how; None for the target's own.
        fake_quantizer: how: "lsq", "lsq_plus", "tqt", "moving_average", or one of
            `jit_passes.fake_quantizers`.
        bits: of weights and of weighted operators' inputs, 2 to 16; or by slot, {"weight": 4,
            "input": 8, "output": 8}. None for the target's. With it, "auto" means "reference".
        first_last_bits: for these tensors of the first and last weighted operators, in place of
            `bits`.
        target: the backend that the model is for; see `prepare`. The target decides what trains, so
            name it where a state dict or a group of processes is shared between processors.
        config: options of single layers; see `prepare`.
        mode: of all operators with weights; see `prepare`. In the mode "dynamic" inputs are
            fake-quantized with the parameters that each batch has, and only weights have scales
            to train.
        strict: raise an error for operators with weights and matrix products, the rows of
            `coverage`, that would stay in float and were not asked to, and for rules of the
            configuration that change nothing. A softmax or a norm may stay in float.
        method: the method to quantize; the others stay in float.

    Raises:
        JitPassesError: the model is no ScriptModule, has no parameters (it was frozen), or is
            quantized already; the method, the target or the configuration is wrong; bits are out of
            range; nothing can be quantized.

    Warns:
        JitPassesWarning: the target cannot do all operators as asked: these operators stay in
            float.

    Source: Jacob et al., "Quantization and training of neural networks for efficient
    integer-arithmetic-only inference", arXiv:1712.05877; for the methods, see their classes.
    """
    trainer = fake_quantizer_of(fake_quantizer)
    if target == "auto" and bits is not None and quantizer is None:
        target = "reference"
    backend, chosen = choose_quantizer(quantizer, target, config, mode, default=None)
    warn_of_stages(chosen, "prepare_qat")
    refine = partial(with_bits, bits=bits, first_last_bits=first_last_bits, method=method)
    annotated = annotate(model, method, TRAINING, chosen, backend, refine=refine, strict=strict)
    of_weights = ""
    if isinstance(bits, int) and bits < 8:
        low, high = next(iter(backend.capability.activations.grids.values()))
        wide = min((high - low).bit_length(), 8)
        of_weights = f". Weights alone may have {bits}: bits={{'weight': {bits}, 'input': {wide}}}"
    return train_at(annotated, model, trainer, of_weights)


def train_at(
    annotated: Annotated, model: torch.jit.ScriptModule, trainer: FakeQuantizer, hint: str = ""
) -> torch.jit.ScriptModule:
    """Return the model with operators that train at its places.

    The hint is the end of the message where there is no place.
    """
    if not annotated.quantizations:
        raise JitPassesError(nothing_to_train(annotated.operators) + hint)
    check_forward_only(annotated.quantizations)
    insertions = Insertions(annotated.graph, lambda path: attribute_of(model, path), trainer)
    insertions.add_all(annotated.quantizations)
    result = annotated.insert(QUANTIZE, insertions.options(), ModelStage.QAT)
    if (group := default_group()) is not None:
        _C.set_string_attribute(result._c, "process_group", group)
    if hasattr(model, "training"):
        result.train(model.training)
    make_leaves(model)
    watch(result, model_parameters(result), quantization_parameters(result))
    return result


def check_trainable(model: Any, method: str) -> None:
    """Check that the model is a ScriptModule with parameters."""
    check_script(model, method)
    if not any(True for _ in model.parameters()):
        raise JitPassesError(
            "the model has no parameters to train: freezing (torch.jit.freeze, "
            "optimize_for_inference) made constants of them, and they cannot come back. Start from "
            "the module that was scripted, traced or saved before freezing"
        )


TRAINING = Mode(check_trainable, normalize_training, parameters=True)


def with_bits(
    quantizer: Quantizer,
    module: Any,
    *,
    bits: int | Mapping[str, int] | None,
    first_last_bits: int | None,
    method: str,
) -> Quantizer:
    """Return a quantizer with these numbers of bits."""
    if bits is None and first_last_bits is None:
        return quantizer
    if not isinstance(quantizer, BackendQuantizer):
        raise JitPassesError(
            f"bits change what a backend's quantizer does, and {type(quantizer).__name__} is none: "
            "say them in its specifications"
        )
    own = quantizer.configuration
    everywhere, rules = own.everywhere, own.rules  # these are more special
    if bits is not None:
        given = _layer_options(bits if isinstance(bits, Mapping) else _both(bits))
        everywhere = given.updated(everywhere)
    if first_last_bits is not None:
        options = _layer_options(_both(first_last_bits))
        names = first_and_last(GraphView.of(module, method, parameters=True), quantizer)
        rules = (*(Rule(Selector(value=name), options) for name in names), *rules)
    changed = copy.copy(quantizer)
    changed.configuration = replace(own, everywhere=everywhere, rules=rules)
    return changed


def _both(bits: int) -> dict[str, int]:
    return {"weight": bits, "input": bits}


def _layer_options(bits: Mapping[str, int]) -> LayerOptions:
    unknown = [slot for slot in bits if slot not in TENSORS]
    if unknown:
        raise JitPassesError(f"bits are of weight, input, output or bias, not of {unknown[0]!r}")
    try:
        options: dict[str, Any] = {s: TensorOptions(bits=count) for s, count in bits.items()}
    except OptionError as error:
        raise JitPassesError(str(error)) from None
    return LayerOptions(**options)


def first_and_last(graph: GraphView, quantizer: BackendQuantizer) -> list[str]:
    """Return the names of weighted operators with none in front of them, or none behind."""
    weighted = [node for node in graph.nodes if quantizer.policy.capability.is_weighted(node)]
    behind: set[int] = set()  # values that depend on a weighted operator
    ahead: set[int] = set()  # values that a weighted operator depends on
    for node in graph.nodes:
        if node in weighted or any(value.id in behind for value in node.inputs):
            behind.update(value.id for value in node.outputs)
    for node in reversed(graph.nodes):
        if node in weighted or any(value.id in ahead for value in node.outputs):
            ahead.update(value.id for value in node.inputs)
    return [
        node.name
        for node in weighted
        if not any(value.id in behind for value in node.inputs) or node.output.id not in ahead
    ]


def default_group() -> str | None:
    """Return the name of the group of processes that train together, if there are several."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    world = distributed.group.WORLD
    return world.group_name if world is not None and world.size() > 1 else None


def nothing_to_train(operators: tuple[Any, ...]) -> str:
    """Say why no operator trains with quantization."""
    reasons = list(dict.fromkeys(row.reason for row in operators if row.reason))[:3]
    return "nothing can be quantized: " + (
        "; ".join(reasons) or "the model has no convolution, linear or matrix product"
    )
