"""Support tables: as the document has them, and as quantizers go by them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from jit_passes.quantizer import (
    PER_TENSOR,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    SpecSupport,
)
from jit_passes.targets import Reference, Stock

DOCUMENT = Path(__file__).parents[1] / "docs" / "targets.md"


def test_the_document_shows_what_is_printed() -> None:
    """Every table, to the letter."""
    text = DOCUMENT.read_text()
    pattern = r"`print\(jit_passes\.targets\.([^`]*)\)`:\n\n```\n(.*?)\n```"
    shown = re.findall(pattern, text, re.DOTALL)
    assert len(shown) == 3
    makers = {
        'Stock("x86", reduce_range=False)': lambda: Stock("x86", reduce_range=False),
        'Stock("qnnpack", reduce_range=False)': lambda: Stock("qnnpack", reduce_range=False),
        "Reference()": Reference,
    }
    for code, table in shown:
        engine = re.findall(r'"(\w+)"', code)
        if all(name in torch.backends.quantized.supported_engines for name in engine):
            assert str(makers[code]()) == table


SUPPORT = SpecSupport({"uint8": (0, 255)}, PER_TENSOR, whole=True)
NARROW = SpecSupport({"int8": (-127, 127)}, ("per_channel_symmetric",))


@pytest.mark.parametrize(
    ("support", "spec", "reason"),
    [
        (SUPPORT, QuantizationSpec("uint8"), None),
        (SUPPORT, FixedQParamsQuantizationSpec(1 / 256, 0), None),
        (SUPPORT, QuantizationSpec("uint8", 0, 15), r"uint8 \[0, 15\], and .* uint8 \[0, 255\]"),
        (SUPPORT, QuantizationSpec("int8"), r"int8 \[-128, 127\], and"),
        (SUPPORT, QuantizationSpec(rounding="floor"), "rounded floor"),
        (NARROW, QuantizationSpec("int8", -7, 7, "per_channel_symmetric", 0), None),
        (NARROW, QuantizationSpec("int8", -128, 127, "per_channel_symmetric", 0), "-128"),
        (
            NARROW,
            QuantizationSpec("int8", -7, 7, "per_channel_affine", 0),
            "channel_affine, and",
        ),
    ],
)
def test_refusals(support: SpecSupport, spec: QuantizationSpec, reason: str | None) -> None:
    """What does not fit is named, with what would."""
    found = support.refusal(spec)
    assert found is None if reason is None else found is not None and re.search(reason, found)
