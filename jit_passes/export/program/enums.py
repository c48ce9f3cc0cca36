"""Dtypes, layouts and memory formats by PyTorch's own numbers, which graphs have in their place."""

from __future__ import annotations

from typing import Any

import torch

# c10/core/ScalarType.h
DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    27: torch.uint16,
    28: torch.uint32,
    29: torch.uint64,
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

# By the type that a schema says, as in c10/core/Layout.h and MemoryFormat.h.
ENUMS: dict[str, dict[int, Any]] = {
    "ScalarType": DTYPES,
    "Layout": {0: torch.strided, 1: torch.sparse_coo},
    "MemoryFormat": {
        0: torch.contiguous_format,
        1: torch.preserve_format,
        2: torch.channels_last,
        3: torch.channels_last_3d,
    },
}
