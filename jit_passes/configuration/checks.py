"""Checks of the numbers in a configuration, and the error that names the option."""

from __future__ import annotations

import math
import numbers
from typing import Any

from ..errors import ArgumentError
from .located import brief


class OptionError(ArgumentError):
    """An option that cannot be.

    Attributes:
        option: its name.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def whole(name: str, value: Any, *ends: int) -> int:
    """Return a whole number, within the ends if they are given.

    Raises:
        OptionError: it is none.
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or (ends and not ends[0] <= int(value) <= ends[1]):
        which = f" from {ends[0]} to {ends[1]}" if ends else ""
        raise OptionError(name, f"{name} is a whole number{which}, not {brief(value)}")
    return int(value)


def finite(name: str, value: Any) -> float:
    """Return a finite number.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(name, f"{name} is made of numbers, not {brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(name, f"{name} is finite, not {brief(value)}")
    return number
