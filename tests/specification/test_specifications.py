"""Specifications: what they refuse, their words, and their text in files."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from jit_passes import JitPassesError
from jit_passes.observers import (
    KLJ,
    Entropy,
    MeanSquaredError,
    MinMax,
    MovingAverageMinMax,
    Percentile,
)
from jit_passes.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    GroupDerivation,
    Place,
    QuantizationSpec,
    bias_qparams,
)
from tests.annotating import FIXED, UINT8, Nodes, annotation
from tests.annotating import chain_nodes as chain_nodes

CHANNELS: dict[str, Any] = {"qscheme": "per_channel_affine", "ch_axis": 0}
DYNAMIC: dict[str, Any] = {"is_dynamic": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "uint8", "quant_max": 256}, r"\[0, 256\] does not fit uint8"),
        ({"dtype": "int8", "quant_min": -129}, r"\[-129, 127\] does not fit int8"),
        ({"dtype": "int8", "quant_min": 5, "quant_max": 5}, r"\[5, 5\] does not fit"),
        ({"dtype": "int32"}, r"more than 2\*\*16 codes"),
        ({"dtype": "int32", "quant_min": 0, "quant_max": 65536}, r"more than 2\*\*16 codes"),
        ({"dtype": "float16"}, "dtype is one of uint8, int8, int16, int32, not 'float16'"),
        ({"dtype": torch.quint8}, "dtype is one of .*not torch.quint8"),
        ({"qscheme": "per_row"}, "qscheme is one of .*not 'per_row'"),
        ({"qscheme": torch.per_channel_affine_float_qparams}, "qscheme is one of"),
        ({"ch_axis": 0}, "ch_axis = 0 does not go with per_tensor_affine"),
        ({"qscheme": torch.per_channel_symmetric}, "ch_axis = None does not go with per_channel"),
        (
            DYNAMIC | {"qscheme": "per_tensor_power_of_two"},
            "qscheme with is_dynamic=True is one of",
        ),
        ({"qscheme": "per_token_affine"}, "qscheme with is_dynamic=False is one of"),
        (DYNAMIC | {"qscheme": "per_channel_affine", "ch_axis": 0}, "qscheme with is_dynamic=True"),
        (DYNAMIC | {"observer": Percentile(99.0)}, "the observer percentile has nothing to do"),
        (DYNAMIC | {"rounding": "floor"}, "is_dynamic=True rounds half_even, not floor"),
        (DYNAMIC | {"range_form": "glow"}, "range_form glow does not go with is_dynamic"),
        ({"range_form": "fbgemm"}, "range_form fbgemm is of dynamic kernels"),
        ({"observer": MinMax}, "observer is one of jit_passes.observers, not a type"),
        ({"observer_or_fake_quant_ctr": dict}, "observer is one of .*not a dict"),
        ({"rounding": "up"}, "rounding is one of half_even.*not 'up'"),
        ({"range_form": "tf"}, "range_form is one of pytorch, glow, fbgemm, not 'tf'"),
        ({"group_size": 32}, "group_size goes with ch_axis 0 or 1, not None"),
        ({**CHANNELS, "group_size": 0}, "group_size is a whole number above 0, not 0"),
        ({**CHANNELS, "group_size": 32.0}, "group_size is a whole number above 0, not 32.0"),
        ({**CHANNELS, "ch_axis": 2, "group_size": 32}, "ch_axis 0 or 1, not 2"),
        ({**CHANNELS, "group_size": 32, "rounding": "floor"}, "rounding half_even, not floor"),
    ],
)
def test_refused_specifications(arguments: dict[str, Any], message: str) -> None:
    """Bad specifications, and their errors."""
    with pytest.raises(ValueError, match=message):
        QuantizationSpec(**arguments)


def test_words_of_pytorch() -> None:
    """dtype, qscheme and the observer's constructor as PyTorch's own specification has them."""
    spec = QuantizationSpec(
        torch.int8, -127, 127, torch.per_channel_symmetric, 0, observer_or_fake_quant_ctr=MinMax
    )
    assert spec == QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
    percentile = QuantizationSpec(observer_or_fake_quant_ctr=Percentile(99.0))
    assert percentile.observer == Percentile(99.0)
    assert FixedQParamsQuantizationSpec(
        0.5, 0, torch.int16, qscheme=torch.per_tensor_symmetric
    ) == (FixedQParamsQuantizationSpec(0.5, 0, "int16", qscheme="per_tensor_symmetric"))
    widest = QuantizationSpec("int16")
    assert (widest.quant_min, widest.quant_max) == (-(2**15), 2**15 - 1)


def test_frozen() -> None:
    """Specifications and annotations do not change."""
    for spec in (UINT8, FIXED, annotation()):
        with pytest.raises(FrozenInstanceError):
            spec.dtype = "int8"  # type: ignore[misc, union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0, "zero_point": 0}, "scale is finite and above 0, not 0.0"),
        ({"scale": float("nan"), "zero_point": 0}, "scale is finite"),
        ({"scale": float("inf"), "zero_point": 0}, "scale is finite"),
        ({"scale": 1.0, "zero_point": 256}, r"zero_point = 256 is not within \[0, 255\]"),
        ({"scale": 1.0, "zero_point": 0, "quant_max": 300}, "does not fit uint8"),
        ({"scale": 1.0, "zero_point": 0, "qscheme": "per_channel_affine"}, "ch_axis = None"),
        ({"scale": 1.0, "zero_point": 0, "is_dynamic": True}, "is_dynamic"),
    ],
)
def test_refused_fixed(arguments: dict[str, Any], message: str) -> None:
    """Bad fixed parameters."""
    with pytest.raises(ValueError, match=message):
        FixedQParamsQuantizationSpec(**arguments)


def test_refused_derived(chain: Nodes) -> None:
    """Bad derived parameters; derived_from becomes a tuple."""
    for arguments, message in (
        ({"derived_from": ()}, "derived_from is empty"),
        ({"ch_axis": 0}, "ch_axis = 0 does not go with per_tensor_symmetric"),
        ({"qscheme": torch.per_channel_affine}, "ch_axis = None does not go"),
        ({"is_dynamic": True}, "is_dynamic"),
        ({"dtype": "int8", "quant_max": 128}, "does not fit int8"),
    ):
        with pytest.raises(ValueError, match=message):
            DerivedQuantizationSpec(
                **{"derived_from": (chain.x,), "derive_qparams_fn": bias_qparams, **arguments}
            )
    spec = DerivedQuantizationSpec([chain.x], bias_qparams)  # type: ignore[arg-type]
    assert spec.derived_from == (chain.x,)
    assert (spec.quant_min, spec.quant_max) == (-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    "spec",
    [
        UINT8,
        QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 1, MinMax()),
        QuantizationSpec("int8", -7, 7, "per_channel_affine", 0, MinMax(), group_size=32),
        QuantizationSpec.of_bits(13, False, observer=MovingAverageMinMax(0.3)),
        QuantizationSpec.of_bits(4, qscheme="per_tensor_power_of_two", observer=KLJ(bins=512)),
        QuantizationSpec(
            observer=Entropy("glow", bins=1024), rounding="half_up", range_form="glow"
        ),
        QuantizationSpec(observer=MeanSquaredError(50)),
        FIXED,
        GroupDerivation((3, 1), "a.b", "int32", -5, 5, "per_channel_affine", 0),
    ],
)
def test_text_round_trip(spec: Any) -> None:
    """Records of a prepared model read back equal; the text begins with the id."""
    place = Place(7, "a -> b", "input", spec, 3, False, "b", ("b", "c"), (2, 4), (5, 2))
    assert Place.from_text(place.to_text()) == place
    assert place.to_text().startswith('{"id": 7, ')


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"spec": {"kind": "observed"}, "group": 3, "users": ["a"]}', "before it had a number"),
        (
            Place(0, "a", "input", UINT8, 0).to_text().replace('"format": 4', '"format": 9'),
            "format 9",
        ),
        (  # without headroom in the record of the observer, which would have got some now
            Place(0, "a", "input", UINT8, 0)
            .to_text()
            .replace('"format": 4', '"format": 2')
            .replace('"headroom": 1024', '"bins": 2048'),
            "format 2",
        ),
        ("", "before it had a number"),
        ("[1]", "before it had a number"),
    ],
)
def test_text_of_another_version(text: str, what: str) -> None:
    """A model that another version prepared is refused with what to do."""
    with pytest.raises(JitPassesError, match=f"another version.*{what}.*prepare the float model"):
        Place.from_text(text)
