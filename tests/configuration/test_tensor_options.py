"""Options of one tensor: how they join, what specification they give, and calibration methods."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from jit_passes import JitPassesError
from jit_passes.configuration.file import TENSOR_KEYS
from jit_passes.errors import nearest
from jit_passes.observers import (
    KLJ,
    Entropy,
    Fixed,
    Histogram,
    MinMax,
    Percentile,
    observer_of,
    parameters_of,
)
from jit_passes.quantizer import (
    FixedQParamsQuantizationSpec,
    LayerOptions,
    QuantizationSpec,
    TensorOptions,
)
from tests.configuration.configurations import ACTIVATION, FLOAT, METHODS, WEIGHT, options

# Options of one tensor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "bits is a whole number from 2 to 16, not 1"),
        ({"bits": 17}, "from 2 to 16, not 17"),
        ({"bits": True}, "bits is a whole number from 2 to 16, not True"),
        ({"bits": 8.0}, "whole number"),
        ({"bits": "8"}, "not '8'"),
        ({"dtype": "int9"}, "dtype is one of uint8, int8, int16, int32, float, not 'int9'.*'int8'"),
        ({"dtype": torch.int8}, "dtype is one of"),
        ({"scheme": "symetric"}, "did you mean 'symmetric'"),
        ({"scheme": "per_tensor_affine"}, "scheme is one of"),
        ({"channelwise": 1}, "channelwise is True or False, not 1"),
        ({"narrow_range": 0}, "narrow_range is True or False, not 0"),
        ({"group_size": 0}, "group_size is a whole number from 1"),
        ({"group_size": "32"}, "whole number"),
        ({"group_size": 32, "channelwise": False}, "group_size cuts channels"),
        ({"group_size": 32, "scale": 1.0}, "exclude each other"),
        ({"calibration": "entropy"}, "observer_of"),
        ({"scale": 0.0}, "scale is above 0"),
        ({"scale": -1.0}, "scale is above 0"),
        ({"scale": float("nan")}, "scale is finite"),
        ({"scale": float("inf")}, "scale is finite"),
        ({"scale": 10**400}, "scale is finite"),
        ({"scale": "1"}, "scale is made of numbers"),
        ({"scale": 1.0, "zero_point": 0.5}, "zero_point is a whole number"),
        ({"zero_point": 3}, "give a scale too"),
        ({"range": (1.0, -1.0)}, "low <= high"),
        ({"range": (1.0,)}, "two numbers"),
        ({"range": 4}, "two numbers"),
        ({"range": (0.0, float("inf"))}, "range is finite"),
        ({"range": (None, 1)}, "made of numbers"),
        ({"range": (0, 1), "scale": 1.0}, "exclude each other"),
        ({"range": (0, 1), "calibration": MinMax()}, "exclude each other"),
        ({"scale": 1.0, "calibration": MinMax()}, "exclude each other"),
        ({"scale": 1.0, "scheme": "affine"}, "exclude each other"),
        ({"scale": 1.0, "channelwise": True}, "exclude each other"),
        ({"bits": 9, "dtype": "int8"}, "bits is 9, and int8 has 8"),
        ({"bits": 9, "dtype": "uint8"}, "bits is 9, and uint8 has 8"),
        ({"bits": 8, "dtype": "float"}, "bits has no meaning"),
        ({"range": (0, 1), "dtype": "float"}, "range has no meaning"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorOptions(**options)


def test_options_are_completed() -> None:
    assert TensorOptions(scale=1).zero_point == 0
    assert TensorOptions(scale=1) == TensorOptions(scale=1.0, zero_point=0)
    assert TensorOptions(range=[-1, 1]) == TensorOptions(range=(-1.0, 1.0))  # type: ignore[arg-type]
    for dtype, bits in [("int8", 8), ("uint8", 8), ("int16", 16), ("int32", 16)]:
        assert TensorOptions(bits=bits, dtype=dtype).bits == bits
    assert tuple(o.name for o in fields(TensorOptions) if o.compare) == TENSOR_KEYS
    with pytest.raises(ValueError, match="weight is TensorOptions"):
        LayerOptions(weight=8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep_float is True or False"):
        LayerOptions(keep_float=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "later", "both"),
    [
        ({"bits": 4}, {"scheme": "affine"}, {"bits": 4, "scheme": "affine"}),
        ({"bits": 4}, {"bits": 6}, {"bits": 6}),
        ({"bits": 4}, {}, {"bits": 4}),
        ({"scale": 2.0, "zero_point": 3}, {"range": (0, 1)}, {"range": (0, 1)}),
        ({"range": (0, 1), "bits": 4}, {"scale": 2.0}, {"scale": 2.0, "bits": 4}),
        ({"scale": 2.0, "zero_point": 3}, {"scale": 1.0}, {"scale": 1.0, "zero_point": 0}),
        ({"range": (0, 1)}, {"calibration": KLJ()}, {"calibration": KLJ()}),
        ({"scale": 1.0}, {"calibration": KLJ()}, {"calibration": KLJ()}),
        ({"calibration": KLJ()}, {"range": (0, 1)}, {"range": (0, 1)}),
        ({"calibration": KLJ()}, {"scale": 1.0}, {"scale": 1.0}),
        ({"scheme": "affine", "channelwise": True}, {"scale": 1.0}, {"scale": 1.0}),
        ({"scale": 1.0}, {"scheme": "affine"}, {"scheme": "affine"}),
        ({"scale": 1.0}, {"channelwise": True}, {"channelwise": True}),
        ({"bits": 4, "range": (0, 1)}, {"dtype": "float"}, {"dtype": "float"}),
        ({"dtype": "float"}, {"bits": 4}, {"bits": 4}),
        ({"dtype": "float"}, {}, {"dtype": "float"}),
        ({"dtype": "int8"}, {"bits": 4}, {"dtype": "int8", "bits": 4}),
        ({"dtype": "int8"}, {"bits": 12}, {"dtype": "int16", "bits": 12}),
        ({"dtype": "uint8"}, {"bits": 12}, {"bits": 12}),
        ({"bits": 12}, {"dtype": "int8"}, {"dtype": "int8"}),
    ],
    ids=str,
)
def test_later_options_win(
    first: dict[str, Any], later: dict[str, Any], both: dict[str, Any]
) -> None:
    assert options(**first).updated(options(**later)) == options(**both)


def test_any_update_of_any_options_is_valid() -> None:
    single = [
        *({"bits": b} for b in (2, 8, 16)),
        *({"dtype": d} for d in ("uint8", "int8", "int16", "int32", "float")),
        {"scheme": "affine"}, {"channelwise": True}, {"calibration": MinMax()},
        {"scale": 1.0}, {"scale": 1.0, "zero_point": 5}, {"range": (0, 1)},
    ]  # fmt: skip
    for three in itertools.product(single, repeat=3):
        result = TensorOptions()
        for one in three:
            result = result.updated(options(**one))
        last = options(**three[-1]).given()
        assert {name: result.given().get(name) for name in last} == last


SPEC = QuantizationSpec


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        (ACTIVATION, {}, ACTIVATION),
        (ACTIVATION, {"bits": 8}, ACTIVATION),
        (ACTIVATION, {"bits": 4}, SPEC("uint8", 0, 15)),
        (ACTIVATION, {"bits": 12}, SPEC("int32", 0, 4095)),
        (ACTIVATION, {"dtype": "int8"}, SPEC("int8", -128, 127)),
        (ACTIVATION, {"dtype": "int16"}, SPEC("int16", -(2**15), 2**15 - 1)),
        (ACTIVATION, {"dtype": "int32", "bits": 16}, SPEC("int32", -(2**15), 2**15 - 1)),
        (ACTIVATION, {"dtype": "int32", "bits": 4}, SPEC("int32", -8, 7)),
        (ACTIVATION, {"scheme": "symmetric"}, SPEC(qscheme="per_tensor_symmetric")),
        (ACTIVATION, {"scheme": "power_of_two"}, SPEC(qscheme="per_tensor_power_of_two")),
        (
            ACTIVATION,
            {"scheme": "symmetric_with_uint8"},
            SPEC(qscheme="per_tensor_symmetric_with_uint8"),
        ),
        (ACTIVATION, {"channelwise": True}, SPEC(qscheme="per_channel_affine", ch_axis=1)),
        (ACTIVATION, {"channelwise": False}, ACTIVATION),
        (ACTIVATION, {"calibration": KLJ()}, SPEC(observer=KLJ())),
        (ACTIVATION, {"range": (-1, 6)}, SPEC(observer=Fixed(-1.0, 6.0))),
        # 7 bits stay 7 bits when only the sign changes: kernels may need it.
        (SPEC(quant_max=127), {"dtype": "int8"}, SPEC("int8", -64, 63)),
        (SPEC(quant_max=127), {"bits": 7}, SPEC(quant_max=127)),
        (SPEC(quant_max=127), {"bits": 8}, SPEC(quant_max=255)),
        (SPEC.of_bits(12, signed=False), {"dtype": "uint8"}, SPEC()),
        (WEIGHT, {"bits": 8}, WEIGHT),
        (WEIGHT, {"bits": 4}, replace(WEIGHT, quant_min=-7, quant_max=7)),
        (WEIGHT, {"bits": 2}, replace(WEIGHT, quant_min=-1, quant_max=1)),
        (
            WEIGHT,
            {"bits": 2, "narrow_range": False},
            replace(WEIGHT, quant_min=-2, quant_max=1),
        ),
        (WEIGHT, {"narrow_range": False}, replace(WEIGHT, quant_min=-128)),
        (WEIGHT, {"narrow_range": True}, WEIGHT),
        (SPEC("int8", -64, 63), {"narrow_range": True}, SPEC("int8", -63, 63)),
        (SPEC("int8", -63, 62), {"narrow_range": False}, SPEC("int8", -63, 62)),
        (ACTIVATION, {"bits": 4, "narrow_range": False}, SPEC(quant_max=15)),
        (
            WEIGHT,
            {"bits": 16},
            replace(WEIGHT, dtype="int16", quant_min=-(2**15) + 1, quant_max=2**15 - 1),
        ),
        (WEIGHT, {"dtype": "uint8"}, replace(WEIGHT, dtype="uint8", quant_min=0, quant_max=255)),
        (WEIGHT, {"scheme": "affine"}, replace(WEIGHT, qscheme="per_channel_affine")),
        (
            WEIGHT,
            {"channelwise": False},
            replace(WEIGHT, qscheme="per_tensor_symmetric", ch_axis=None),
        ),
        (WEIGHT, {"channelwise": True}, WEIGHT),
        (
            SPEC("int8", -126, 125, "per_tensor_symmetric"),
            {"bits": 8},
            SPEC("int8", -126, 125, "per_tensor_symmetric"),
        ),
        (
            SPEC("int8", -128, 127, rounding="floor", range_form="glow"),
            {"bits": 5},
            SPEC("int8", -16, 15, rounding="floor", range_form="glow"),
        ),
    ],
)
def test_apply(spec: QuantizationSpec, given: dict[str, Any], expected: QuantizationSpec) -> None:
    assert options(**given).apply(spec, ch_axis=1) == expected


def test_apply_of_every_scheme_to_every_width() -> None:
    schemes = ("affine", "symmetric", "symmetric_with_uint8", "power_of_two")
    for scheme, bits, channelwise in itertools.product(schemes, range(2, 17), (False, True)):
        for base in (ACTIVATION, WEIGHT):
            given = options(scheme=scheme, bits=bits, channelwise=channelwise)
            spec = given.apply(base, 0)
            assert isinstance(spec, QuantizationSpec)
            assert spec.qscheme == f"per_{'channel' if channelwise else 'tensor'}_{scheme}"
            assert (spec.quant_max - spec.quant_min).bit_length() == bits
            assert (spec.quant_min < 0) == (base.quant_min < 0)


def test_apply_of_what_is_known_beforehand() -> None:
    assert FLOAT.apply(ACTIVATION) is None
    fixed = FixedQParamsQuantizationSpec
    assert options(scale=0.5).apply(ACTIVATION) == fixed(0.5, 0)
    assert options(scale=0.5, zero_point=7, bits=4).apply(ACTIVATION) == fixed(
        0.5, 7, "uint8", 0, 15
    )
    assert options(scale=0.5).apply(WEIGHT) == fixed(0.5, 0, "int8", -127, 127)


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        (ACTIVATION, {"channelwise": True}, "a.yaml:3:1: channelwise needs a tensor with channels"),
        (
            ACTIVATION,
            {"scale": 1.0, "zero_point": 300},
            "one of the codes 0 to 255, not 300; .*uint8",
        ),
        (WEIGHT, {"scale": 1.0, "zero_point": -128}, "one of the codes -127 to 127"),
        (ACTIVATION, {"narrow_range": True}, "a.yaml:3:1: .*these codes are unsigned"),
        (
            SPEC("int8", 3, 5),
            {"scheme": "power_of_two"},
            "a.yaml:3:1: .*does not hold 0.*; without these options it is int8",
        ),
    ],
    ids=str,
)
def test_apply_says_what_does_not_fit(
    spec: QuantizationSpec, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(JitPassesError, match=message):
        options(**given).apply(spec, None, "a.yaml:3:1")


# Calibration methods


def test_every_observer_has_a_method() -> None:
    assert len(METHODS) == 13
    for name, kind in METHODS.items():
        assert parameters_of(kind()) == (name, {}) and observer_of(name) == kind()
    assert observer_of("kl_j") == KLJ()
    assert observer_of("percentile", percentile=99, bins=64) == Percentile(99.0, bins=64)
    assert parameters_of(Entropy("glow")) == ("entropy", {"form": "glow"})
    assert parameters_of(Histogram()) == ("histogram", {})


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("entrpy", {}, "no calibration method 'entrpy': did you mean 'entropy'"),
        ("xyz", {}, "there are .*'entropy', 'fixed', .*'min_max'"),
        ("entropy", {"frm": "glow"}, "entropy has no parameter 'frm': did you mean 'form'"),
        ("min_max", {"bins": 3}, "min_max has no parameter 'bins': it has none"),
        ("entropy", {"form": "intel"}, "form is one of nvidia, glow"),
        ("entropy", {"bins": "many"}, "bins of entropy is a whole number, not 'many'"),
        ("entropy", {"bins": True}, "whole number"),
        ("percentile", {"percentile": "99"}, "is a number"),
        ("entropy", {"form": 3}, "form of entropy is text"),
        ("percentile", {"percentile": 20}, r"in \(50, 100\]"),
        ("fixed", {"low": 3.0, "high": 1.0}, "not a finite range"),
    ],
    ids=str,
)
def test_methods_that_are_none(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        observer_of(method, **parameters)


def test_nearest() -> None:
    assert nearest("CONV", ["conv", "add"]) == "did you mean 'conv'?"
    assert nearest("x", []) == "there are none"
    assert nearest("xyz", "abcdefg", 2) == "there are 'a', 'b' and 5 more"
