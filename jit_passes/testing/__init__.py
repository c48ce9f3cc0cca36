"""Modules drawn at random, and checks of passes and rules on them."""

from ..graph.verify import assert_equivalent, compare, observe
from .check import RandomModule, check_change, random_module, random_modules

__all__ = [
    "RandomModule",
    "assert_equivalent",
    "check_change",
    "compare",
    "observe",
    "random_module",
    "random_modules",
]
