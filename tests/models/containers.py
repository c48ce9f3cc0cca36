"""Models by what they take and return: tuples, lists, dicts, Optionals, keywords, integers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .case import Case, conv, images


class Features(NamedTuple):
    """A NamedTuple output; its field names must survive."""

    fine: Tensor
    coarse: Tensor


class Trunk(nn.Module):
    """Two feature maps for the models below to wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = torch.relu(self.conv1(x))
        return fine, self.conv2(fine)


class TrunkModel(nn.Module):
    """Base of the output models."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()


class TupleOut(TrunkModel):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.trunk(x)


class ListOut(TrunkModel):
    def forward(self, x: Tensor) -> list[Tensor]:
        fine, coarse = self.trunk(x)
        return [fine, coarse]


class DictOut(TrunkModel):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine, coarse = self.trunk(x)
        return {"fine": fine, "coarse": coarse}


class NamedTupleOut(TrunkModel):
    def forward(self, x: Tensor) -> Features:
        fine, coarse = self.trunk(x)
        return Features(fine, coarse)


class OptionalOut(TrunkModel):
    def forward(self, x: Tensor, coarse: bool = False) -> tuple[Tensor, Tensor | None]:
        fine, half = self.trunk(x)
        result: Tensor | None = None
        if coarse:
            result = half
        return fine, result


class NestedOut(TrunkModel):
    def forward(self, x: Tensor) -> tuple[dict[str, list[Tensor]], tuple[Tensor, tuple[Tensor]]]:
        fine, coarse = self.trunk(x)
        return {"maps": [fine, coarse], "one": [coarse]}, (coarse + 1, (fine,))


class TupleOfOneOut(TrunkModel):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.trunk(x)[1],)


class ScalarsOut(TrunkModel):
    """Python numbers, a shape and a string beside the tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, int, list[int], str]:
        coarse = self.trunk(x)[1]
        return coarse, coarse.size(1), coarse.shape, "coarse"


class RawAndHead(nn.Module):
    """One of the two outputs is a convolution's raw output, which also goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raw = self.conv(x)
        return self.head(raw.mean([2, 3])), raw


class InputOut(nn.Module):
    """Returns its own input beside the result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.conv(x)


class SameTwiceOut(nn.Module):
    """Returns one tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.conv(x))
        return y, y


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = conv()
        self.right = conv()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.left(x) + self.right(y))


class KeywordInputs(nn.Module):
    """Defaults, an Optional tensor and a number, given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor, gain: float = 1.0, shift: Tensor | None = None) -> Tensor:
        y = self.conv(x)
        if shift is not None:
            y = y + shift
        return torch.relu(y) * gain


class ListInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        return [self.conv(x) for x in xs]


class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = conv()
        self.right = conv()

    def forward(self, xs: dict[str, Tensor]) -> Tensor:
        return self.left(xs["left"]) + self.right(xs["right"])


class ByteImages(nn.Module):
    """uint8 images, scaled to 0..1 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x.float() / 255))


class Tokens(nn.Module):
    """Integer ids through an embedding into linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.embedding(ids)))).mean(1)


class Encoder(nn.Module):
    """A method other than forward is what gets called, and what gets quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.head = nn.Linear(8, 5)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean([2, 3])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))


def _pair(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, 8, 8), 3 * torch.rand(n, 4, 8, 8)


def _keywords(n: int) -> dict[str, object]:
    return {"x": torch.randn(n, 4, 8, 8), "shift": torch.rand(n, 8, 1, 1), "gain": 2.0}


CASES = [
    Case("tuple_out", TupleOut, images(), int8=2),
    Case("list_out", ListOut, images(), int8=2),
    Case("dict_out", DictOut, images(), int8=2),
    Case("named_tuple_out", NamedTupleOut, images(), int8=2),
    Case(
        "optional_out",
        OptionalOut,
        images(),
        int8=2,
        trace=False,
        others=lambda n: (torch.randn(n, 4, 8, 8), True),
    ),
    Case("nested_out", NestedOut, images(), int8=2, trace=False),
    Case("tuple_of_one_out", TupleOfOneOut, images(), int8=2),
    Case("scalars_out", ScalarsOut, images(), int8=2, trace=False),
    Case("raw_and_head", RawAndHead, images(), int8=2),
    Case("input_out", InputOut, images()),
    Case("same_twice_out", SameTwiceOut, images()),
    Case("two_inputs", TwoInputs, _pair, int8=2),
    Case("keyword_inputs", KeywordInputs, _keywords, trace=False),
    Case(
        "default_inputs",
        KeywordInputs,
        images(),
        trace=False,
        others=lambda n: (torch.randn(n, 4, 8, 8), 0.5, torch.rand(n, 8, 1, 1)),
    ),
    Case("list_input", ListInput, lambda n: (list(_pair(n)),)),
    Case(
        "dict_input",
        DictInput,
        lambda n: (dict(zip(("left", "right"), _pair(n), strict=True)),),
        int8=2,
    ),
    Case("byte_images", ByteImages, lambda n: (torch.randint(256, (n, 3, 8, 8)).byte(),)),
    Case("tokens", Tokens, lambda n: (torch.randint(50, (n, 7)),), int8=2),
    Case("exported_method", Encoder, images(), trace=False, method="encode"),
]
