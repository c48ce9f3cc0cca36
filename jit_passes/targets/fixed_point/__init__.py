"""The target `fixed_point`: integers only."""

from .target import FixedPoint

__all__ = ["FixedPoint"]
