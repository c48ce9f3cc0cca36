"""The base of all backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..graph.view import NodeView
from ..passes.pipeline import Pipeline
from ..quantizers.backend import BackendQuantizer
from ..quantizers.capability import Capability
from ..quantizers.support import Spec
from ..registered import Registered


@dataclass(frozen=True)
class Target(Registered, ABC, noun="target"):
    """A backend: its operators on integers, and how the reference model becomes its own.

    Subclasses are frozen dataclasses whose fields are their options. Defining one registers it,
    under its `name`: see `Registered`.

    Attributes:
        is_reference: whether a lowered model is the reference model still, for files and programs
            that engines of others read.
    """

    is_reference: ClassVar[bool] = False

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """The operators that it can compute on integers, and how.

        Callers ask often: compute it once.
        """

    def refusal(
        self,
        node: NodeView,
        operand: int | None = None,
        spec: Spec | None = None,
        mode: str = "static",
    ) -> str | None:
        """Say why it cannot do an operator as asked: see `Capability.refusal`."""
        return self.capability.refusal(node, operand, spec, mode)

    def demand(self, node: NodeView) -> str | None:
        """Say which data the target's form of an operator takes alone: "sequences of 6 steps".

        None where it takes all that the float operator takes.
        """
        return None

    def quantizer(self) -> BackendQuantizer:
        """Return the quantizer that is used when the caller gives none."""
        return BackendQuantizer(self)

    def __str__(self) -> str:
        """Return its capability as a table."""
        return f"target '{self.name}'\n{self.capability}"

    @abstractmethod
    def lowering(self) -> Pipeline:
        """Return the pipeline that makes a reference model the backend's own.

        A remark on an operator that was to be int8 says why it is left in float; the report of the
        lowered model has it. A target that compiles whole regions has the step
        `CompileRegions(self)` in it.
        """

    def compile(self, region: torch.jit.ScriptModule) -> Any:
        """Return an object that computes a region of the reference model; None to leave it.

        Args:
            region: a module of its own with a method `forward`: see `Region`.

        Returns:
            A ScriptModule whose forward has the region's inputs and outputs; or an object of a
            custom class, `torch.ScriptObject`, with `run(Tensor[] inputs) -> Tensor[]`. The object
            is saved with the model.
        """
        return None
