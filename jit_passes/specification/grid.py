"""The codes that quantized values have: integer types, their ranges, and schemes."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError, not_among

DTYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
}
SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_tensor_symmetric_with_uint8",
    "per_tensor_power_of_two",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_symmetric_with_uint8",
    "per_channel_power_of_two",
)
# Schemes of parameters that are chosen as the model runs: for the tensor, or for each token, all
# but the last axis.
DYNAMIC_SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_token_affine",
    "per_token_symmetric",
)


def settle(spec: Any, ch_axis: int | None) -> None:
    """Check dtype, codes and scheme of a specification, and put names and ends in their places."""
    grid = check_grid(spec.dtype, spec.quant_min, spec.quant_max)
    settled = dict(zip(("dtype", "quant_min", "quant_max"), grid, strict=True))
    scheme = check_scheme(spec.qscheme, ch_axis, spec.is_dynamic)
    for name, value in {**settled, "qscheme": scheme}.items():
        object.__setattr__(spec, name, value)  # how frozen dataclasses normalize


def check_grid(dtype: Any, quant_min: int | None, quant_max: int | None) -> tuple[str, int, int]:
    """Return the name of the dtype and the range of codes, which is all of it where it is None."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ArgumentError(not_among("dtype", dtype, tuple(DTYPES)))
    limits = torch.iinfo(DTYPES[name])
    low = limits.min if quant_min is None else quant_min
    high = limits.max if quant_max is None else quant_max
    if not limits.min <= low < high <= limits.max:
        raise ArgumentError(
            f"[quant_min, quant_max] = [{low}, {high}] does not fit {name}, which holds "
            f"[{limits.min}, {limits.max}]"
        )
    return name, low, high


def check_scheme(qscheme: Any, ch_axis: int | None, is_dynamic: bool = False) -> str:
    """Return the name of the scheme."""
    name = str(qscheme).removeprefix("torch.")
    known = DYNAMIC_SCHEMES if is_dynamic else SCHEMES
    if name not in known:
        other = name in SCHEMES or name in DYNAMIC_SCHEMES
        when = f" with is_dynamic={is_dynamic}" if other else ""
        raise ArgumentError(not_among(f"qscheme{when}", qscheme, known))
    if (ch_axis is not None) != name.startswith("per_channel"):
        raise ArgumentError(f"ch_axis = {ch_axis} does not go with {name}")
    return name
