"""From a float model to its annotated values and their places: the front of all modes.

    check -> normalize -> annotate -> operator records -> refusals -> places -> legality

A mode inserts operators at the places and writes its report: `Annotated.insert`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from .. import _C
from ..collector import paused
from ..configuration.checks import OptionError
from ..configuration.configuration import Configuration
from ..configuration.file import write_configuration
from ..configuration.options import AUTO, LayerOptions
from ..errors import JitPassesError, warn
from ..graph.origins import Origins
from ..graph.view import GraphView
from ..passes.pipeline import Pipeline
from ..passes.subject import Remark, wrap
from ..quantizers.backend import BackendQuantizer
from ..quantizers.base import Quantizer, annotations_of
from ..quantizers.deferred import show_folded
from ..registered import path_of
from ..specification.annotation import Annotations
from ..specification.derivation import hold_derivations
from ..specification.resolve import Quantization, resolve
from ..specification.slots import merged_use
from ..specification.specification import GroupDerivation
from ..targets import Target, resolve_target
from .channels import with_remarks
from .module import ModelStage, OperatorRecord, Report, attribute_of, check_module, part_of
from .normalize import normalize
from .parts import check_parts, describe_parts
from .records import QuantizedUses, check_refusals, operator_records


@dataclass(frozen=True)
class Mode:
    """How models come in.

    Attributes:
        check: raises a JitPassesError for models that are not fit.
        normalize: makes a C++ module in canonical form.
        parameters: whether the graph still has its parameters, which then count as constants.
        again: a kind of operator; a model that trains and has one may be quantized further. "" for
            no model.
    """

    check: Callable[[Any, str], None]
    normalize: Callable[[torch.jit.ScriptModule, str], Any]
    parameters: bool = False
    again: str = ""

    def enter(self, model: torch.jit.ScriptModule, method: str) -> Any:
        """Return the checked model in canonical form.

        Raises:
            JitPassesError: it is not fit, or a stage has seen it already.
        """
        found = part_of(model, method)
        report = Report.read(found) if isinstance(found, torch.jit.ScriptModule) else None
        if report is not None and not self._goes_on(found, report):
            why = f"the model is {report.stage} already: start from the float model"
            raise JitPassesError(f"{why}, or go on with {NEXT[report.stage]}", command=why)
        self.check(model, method)
        module = self.normalize(model, method)
        if not self.again:
            graph = GraphView.of(module, method)
            check_packed(graph)
            check_parts(module, method, graph)
        return module

    def _goes_on(self, model: torch.jit.ScriptModule, report: Report) -> bool:
        graph = GraphView.of(model, report.method)
        trains = report.stage is ModelStage.QAT
        return trains and any(node.kind == self.again for node in graph.nodes)


DYNAMIC = "dynamic"
NEXT = {
    ModelStage.PREPARED: "calibrate and convert",
    ModelStage.QAT: "training and convert",
    ModelStage.REFERENCE: "lower",
    ModelStage.LOWERED: "this one as it is",
}


def frozen(state: Sequence[str] = ()) -> Mode:
    """Return the mode of models that do not train.

    Args:
        state: paths of attributes that are no constants, since other methods change them.
    """
    return Mode(check_module, lambda model, method: normalize(model._c, method, state).module)


FROZEN = frozen()


def entered(module: Any) -> Mode:
    """Return the mode of a model whose canonical form is known already.

    Args:
        module: `FROZEN.enter` of that model. The model is copied.
    """
    return Mode(check_module, lambda _, method: _C.clone(module, method))


@dataclass(frozen=True)
class Annotated:
    """A model and the values to be quantized in it.

    Attributes:
        module: in canonical form, as the quantizer has changed it.
        method: whose graph.
        backend: the target; None where no target's operators will compute.
        graph: the annotated graph.
        annotations: the quantizer's annotations of it.
        operators: all operators with weights and all matrix products.
        quantizations: the places at which values are quantized.
        made: the report's entries on the quantizer.
    """

    module: Any
    method: str
    backend: Target | None
    graph: GraphView
    annotations: Annotations
    operators: tuple[OperatorRecord, ...]
    quantizations: list[Quantization]
    made: Mapping[str, Any]

    def insert(
        self, pipeline: Pipeline, options: Mapping[str, Any], stage: ModelStage | None = None
    ) -> torch.jit.ScriptModule:
        """Return the model with operators at its places.

        Args:
            pipeline: which inserts them.
            options: of its passes.
            stage: that the model has reached then; None for one without a report.
        """
        module = self.module
        if self.quantizations:
            module = pipeline.run(module, self.method, options=options).module
        if stage is not None and self.backend is not None:
            Report(
                stage, self.method, self.backend.record(), self.operators, made=self.made,
                nothing_fits=bool(self.annotations.refused) and not self.annotations.quantized,
            ).write(module)  # fmt: skip
        model = wrap(module)
        specs = [quantization.spec for quantization in self.quantizations]
        hold_derivations(model, [s.function for s in specs if isinstance(s, GroupDerivation)])
        return model


@paused()
def annotate(
    model: torch.jit.ScriptModule,
    method: str,
    mode: Mode,
    quantizer: Quantizer,
    backend: Target | None = None,
    *,
    change: Callable[[Any, str], Any] | None = None,
    refine: Callable[[Quantizer, Any], Quantizer] | None = None,
    strict: bool | None = None,
) -> Annotated:
    """Return the values that are quantized in a model, and how.

    Args:
        model: it is not touched.
        method: the method to quantize.
        mode: how the model comes in.
        quantizer: decides what is quantized and how.
        backend: whose operators will compute it.
        change: makes another float module of that in canonical form.
        refine: makes another quantizer of it, once the module is in canonical form.
        strict: whether operators with weights and matrix products that would stay in float are an
            error; None to tell nobody.

    Raises:
        JitPassesError: the model is not fit, the quantizer returns no annotations, or its
            annotations are beyond the target.

    Warns:
        JitPassesWarning: the configuration asks for more than the target can do, or a rule of it
            has no effect.
    """
    module = mode.enter(model, method)
    origins = Origins(wrap(module) if mode.parameters else model)

    def view(module: Any) -> GraphView:
        graph = GraphView.of(module, method, parameters=mode.parameters)
        graph.origins = origins
        return graph

    if change is not None:
        module = change(module, method)
    made = description_of(quantizer)
    if made.get("mode") == AUTO and backend is not None and backend.capability.forms:
        assert isinstance(quantizer, BackendQuantizer)
        regions = backend.capability.dynamic_regions or backend.capability.integers_only
        if not regions and not quantizer.is_static(view(module)):
            made["forms"] = False  # a target's own are for operators in regions
    module, remarks = formed(module, method, backend, made)
    if refine is not None:
        quantizer = refine(quantizer, module)
    if type(quantizer).transform_for_annotation is not Quantizer.transform_for_annotation:
        transform = Pipeline("transform_for_annotation", (quantizer.transform_for_annotation,))
        module = transform.run(module, method).module
    graph = view(module)
    if mode.parameters:
        show_folded(graph, partial(attribute_of, wrap(module)))
    annotations = annotations_of(quantizer, graph)
    for remark in remarks:
        annotations.reasons.setdefault(remark.name, remark.reason)
    quantizer.validate(annotations)
    quantizations = resolve(graph, annotations)
    operators = tuple(operator_records(graph, annotations, backend, quantizations))
    if not mode.parameters:  # training makes up for it
        operators = with_remarks(graph, operators)
    if strict is not None:
        fails = mode.parameters and not quantizations  # there is nothing to train
        check_refusals(annotations, operators, strict, fails)
        if parts := describe_parts(module, method, graph, mode.parameters):
            warn(parts)
    if backend is not None:
        check_places(quantizations, backend)
    return Annotated(module, method, backend, graph, annotations, operators, quantizations, made)


def formed(
    module: Any, method: str, backend: Target | None, made: Mapping[str, Any]
) -> tuple[Any, Sequence[Remark]]:
    """Return a canonical module in the forms that a target computes, and remarks on others.

    Forms are for operators in regions: of dynamic operators, only some targets have regions. The
    last argument has a report's entries on the quantizer.
    """
    if backend is None or not backend.capability.forms:
        return module, ()
    dynamic = made.get("mode") == DYNAMIC and not backend.capability.dynamic_regions
    if dynamic or made.get("forms") is False:
        return module, ()
    steps = (*backend.capability.forms, "remove_dead_code", "pool_constants")
    result = Pipeline(f"forms_of_{backend.name}", steps).run(module, method)
    return result.module, result.remarks


def choose_quantizer(
    quantizer: Quantizer | None,
    target: str | Target,
    config: Any = None,
    mode: str | None = None,
    *,
    default: str | None = AUTO,
) -> tuple[Target, Quantizer]:
    """Return the backend, and the quantizer with the mode for all operators and the rules.

    Without a mode, the caller's quantizer keeps its own mode, and the target's has the default.

    Raises:
        JitPassesError: the target or the mode is unknown, the quantizer is none, or takes no
            configuration.
    """
    if quantizer is not None and not isinstance(quantizer, Quantizer):
        call = f": call it, {quantizer.__name__}()" if isinstance(quantizer, type) else ""
        raise JitPassesError(f"a quantizer is an instance of Quantizer, not {quantizer!r}{call}")
    made_for = quantizer.target if quantizer is not None else None
    backend = resolve_target(made_for if target == "auto" and made_for is not None else target)
    chosen = quantizer or backend.quantizer()
    if mode is None and quantizer is None and isinstance(chosen, BackendQuantizer):
        mode = chosen.configuration.everywhere.mode or default
    said = {"mode": mode, "config": config}
    for name in (name for name, what in said.items() if what is not None):
        if not isinstance(chosen, BackendQuantizer):
            what = "a configuration" if name == "config" else "a mode"
            raise JitPassesError(
                f"{what} changes what a backend's quantizer does, and "
                f"{type(chosen).__name__} is none: leave `{name}` or `quantizer` out"
            )
        chosen = chosen.configured(config if name == "config" else of_mode(said[name]))
    return backend, chosen


def warn_of_stages(quantizer: Quantizer, call: str) -> None:
    """Tell that a configuration asks for stages which a function is not."""
    if isinstance(quantizer, BackendQuantizer):
        names = ", ".join(quantizer.configuration.stages.given())
        if names:
            warn(
                f"the stages of the configuration, {names}, are left out: {call} does none of "
                "them; quantize_script does"
            )


def description_of(quantizer: Quantizer) -> dict[str, Any]:
    """Return a report's entries on the quantizer: class, mode, and options of single layers."""
    described: dict[str, Any] = {"quantizer": path_of(type(quantizer))}
    if isinstance(quantizer, BackendQuantizer):
        said = quantizer.configuration
        described["mode"] = mode_of(said)
        if said.everywhere.mode == AUTO:
            said = replace(said, everywhere=replace(said.everywhere, mode=None))
        if said != Configuration():
            described["configuration"] = write_configuration(said)
    return described


def mode_of(configuration: Configuration) -> str:
    """Return the mode of operators that no rule gives another."""
    return DYNAMIC if configuration.is_dynamic else configuration.everywhere.mode or "static"


def of_mode(mode: Any) -> Configuration:
    """Return a configuration that says the mode of all operators.

    Raises:
        JitPassesError: the mode is unknown.
    """
    try:
        return Configuration(LayerOptions(mode=mode))
    except OptionError as error:
        raise JitPassesError(str(error)) from None


def check_places(places: Sequence[Quantization], target: Target) -> None:
    """Raise an error for specifications that the target's operators do not compute with.

    Specifications of a target's own quantizer have passed this already.
    """
    seen = QuantizedUses(places)
    for place in places:
        if isinstance(place.spec, GroupDerivation):
            continue
        for node, operand in place.uses or ((place.node, None),):
            alone = operand is not None and seen.is_alone(node, operand)
            dynamic = operand is not None and seen.is_dynamic(node)
            mode = "weight_only" if alone else "dynamic" if dynamic else "static"
            if why := target.refusal(*merged_use(node, operand), place.spec, mode):
                raise JitPassesError(
                    f"'{place.name}' is to be {why}: annotate what '{target.name}' has, or prepare "
                    "for another target"
                )


def check_packed(graph: GraphView) -> None:
    """Check that a graph has none of the operators that PyTorch makes for one processor.

    Raises:
        JitPassesError: it has.
    """
    kinds = {node.kind for node in graph.nodes}
    packed = sorted(k for k in kinds if k.startswith("prim::") and "mkldnn" in k.lower())
    if packed:
        raise JitPassesError(
            "the model comes from torch.jit.optimize_for_inference, which has packed its weights "
            f"for oneDNN ({packed[-1]}): quantize the model that was given to it"
        )
