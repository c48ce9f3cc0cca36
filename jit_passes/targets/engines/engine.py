"""The base of targets that stand for another engine's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...passes.pipeline import CLEAN_UP, Pipeline
from ...quantizers.capability import Capability
from ..target import Target


@dataclass(frozen=True)
class Engine(Target, abstract=True):
    """An engine that reads quantize and dequantize, and fuses them with the operators between.

    Its capability says where it looks for them. The lowered model is the reference model, with
    functions as they are: an engine does not know lookup tables. `export_onnx` and
    `to_exported_program` hand it over.

    Attributes:
        own_capability: what it computes on integers, for all of its instances.
        reads: the forms that it reads: "onnx", files of `export_onnx`; "pt2", programs of
            `to_exported_program`; "aoti", packages of `export_aoti`.
    """

    is_reference: ClassVar[bool] = True
    own_capability: ClassVar[Capability]
    reads: ClassVar[tuple[str, ...]] = ("onnx",)

    @property
    def capability(self) -> Capability:
        return self.own_capability

    def lowering(self) -> Pipeline:
        return Pipeline(f"lower_{self.name}", CLEAN_UP, ensures=("valid_grids",))
