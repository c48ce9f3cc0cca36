"""Options of the stages around calibration, for a whole model."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..errors import not_among
from .checks import OptionError

AUTO = "auto"
NONE = "none"
SEARCHED = "search"
EQUALIZATIONS = ("activations", "weights")
WEIGHT_ROUNDINGS = ("gptq", "adaround", "gptq_sequential", "adaround_sequential")
BIAS_CORRECTIONS = ("sequential", "fast", "statistics")
SMOOTH = 'smooth is "auto", "search", a number from 0 to 1, or None'
_WORDS = {
    "equalize": (AUTO, *EQUALIZATIONS),
    "weight_rounding": (AUTO, NONE, *WEIGHT_ROUNDINGS),
    "bias_correction": (AUTO, NONE, *BIAS_CORRECTIONS),
}


@dataclass(frozen=True)
class StageOptions:
    """The stages of `quantize_script` around calibration; None leaves one unsaid.

    Attributes:
        smooth: "auto", the strength, which may be "search", or "none" for no smoothing: see
            `jit_passes.smooth`.
        equalize: "auto", "activations" or "weights": see `jit_passes.equalize`.
        weight_rounding: how: see `jit_passes.round_weights`; "auto", or "none" for nearest codes.
        bias_correction: how: see `jit_passes.correct_bias`; "auto", or "none" for no correction.
        where: where options were written, by name, for messages.

    Raises:
        JitPassesError: an option is none of these.
    """

    smooth: str | float | None = None
    equalize: str | None = None
    weight_rounding: str | None = None
    bias_correction: str | None = None
    where: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_smooth(self.smooth)
        for name, words in _WORDS.items():
            word = getattr(self, name)
            if word is not None and word not in words:
                raise OptionError(name, not_among(name, word, words))

    def given(self) -> dict[str, Any]:
        """Return the options that are said, by name."""
        options = {name: getattr(self, name) for name in STAGE_KEYS}
        return {name: option for name, option in options.items() if option is not None}

    def updated(self, later: StageOptions) -> StageOptions:
        """Return these options, where later ones do not say otherwise."""
        return replace(self, **later.given(), where={**self.where, **later.where})


STAGE_KEYS = tuple(option.name for option in fields(StageOptions) if option.compare)


def check_smooth(smooth: Any) -> None:
    """Raise an error for all but None, a strength and the words for smoothing.

    Raises:
        OptionError: it is none of these.
    """
    if smooth is None or (isinstance(smooth, str) and smooth in (AUTO, NONE, SEARCHED)):
        return
    if not is_strength(smooth):
        raise OptionError("smooth", f"{SMOOTH}, not {smooth!r}")


def is_strength(strength: Any) -> bool:
    """Say whether something is a number from 0 to 1."""
    is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
    return is_number and 0 <= float(strength) <= 1
