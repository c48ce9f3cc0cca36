"""Sizes: no batch axis, batches of none, sizes that change, norms and padding in each rank."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .case import Args, Case, conv, images, values


def _sequence(
    name: str, layers: Callable[[], list[nn.Module]], inputs: Callable[[int], Args], int8: int,
    others: Callable[[int], Args] | None = None,
) -> Case:  # fmt: skip
    return Case(name, lambda: nn.Sequential(*layers()), inputs, int8=int8, others=others)


def _around(name: str, layer: Callable[[], nn.Module], rank: int = 2) -> Case:
    """A layer between two convolutions of any rank."""
    conv_of = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    return _sequence(
        f"around_{name}",
        lambda: [conv_of(4, 8, 3, padding=1), layer(), conv_of(8, 4, 1)],
        values(4, *([6] * rank)),
        2,
    )


class Sized(nn.Module):
    """Positions for as many steps as there are, and a mean over them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.positions = nn.Embedding(20, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        steps = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        x = self.words(ids) + self.positions(steps)
        return self.head(torch.relu(self.layer(x)).mean(1))


class UShaped(nn.Module):
    """Down and up again, cut to the size of what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(4, 8), nn.ReLU(), nn.MaxPool2d(2))
        self.middle = nn.Sequential(conv(8, 8), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.head = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.middle(self.down(x)))
        dy, dx = x.size(2) - y.size(2), x.size(3) - y.size(3)
        y = nn.functional.pad(y, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.head(torch.cat([x, y], 1))


class Crops(nn.Module):
    """Of each image only the part that both have, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.valid = nn.Conv2d(4, 8, 3)
        self.same = conv()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.valid(x)
        z = self.same(x)[:, :, 1 : 1 + y.size(2), 1 : 1 + y.size(3)]
        return self.head(torch.relu(y + z).flatten(2).permute(0, 2, 1))


NONE = 0
IMAGES, ROWS = images(), values(6, 12)
LSTM = {"input_size": 12, "hidden_size": 16, "batch_first": True}


class LastStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(**LSTM)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


CASES = [
    # `n` serves as a size of the only sample there is.
    # int8=0: kernels want a batch axis, which traces of convolutions have.
    _sequence(
        "no_batch_images",
        lambda: [conv(), nn.ReLU(), conv(8, 4)],
        lambda n: (torch.randn(4, n + 3, 5),),
        0,
    ),
    _sequence(
        "no_batch_line",
        lambda: [nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1)],
        lambda n: (torch.randn(4, n + 8),),
        0,
    ),
    _sequence(
        "no_batch_space",
        lambda: [nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 1)],
        lambda n: (torch.randn(4, n + 3, 5, 5),),
        0,
    ),
    _sequence(
        "no_batch_transposed",
        lambda: [conv(), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2)],
        lambda n: (torch.randn(4, n + 3, 5),),
        0,
    ),
    _sequence(
        "no_batch_linear",
        lambda: [nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)],
        lambda _n: (torch.randn(12),),
        0,
    ),
    _sequence(
        "none_linear",
        lambda: [nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)],
        ROWS,
        2,
        lambda _n: ROWS(NONE),
    ),
    _sequence(
        "none_pooled",
        lambda: [conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)],
        IMAGES,
        2,
        lambda _n: IMAGES(NONE),
    ),
    Case("none_recurrent", LastStates, ROWS, int8=2),
    Case("none_steps", Sized, lambda n: (torch.randint(30, (n, 6)),), int8=4,
         others=lambda _n: (torch.randint(30, (NONE, 4)),)),
    Case("sizes_of_words", Sized, lambda n: (torch.randint(30, (n, 6)),), int8=4,
         others=lambda n: (torch.randint(30, (n, 11)),)),
    Case("sizes_u_shaped", UShaped, IMAGES, int8=3, others=images(4, 11, 13)),
    Case("sizes_cropped", Crops, IMAGES, int8=3, others=images(4, 9, 5)),
    _sequence("sizes_pooled", lambda: [conv(), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                                       nn.Linear(32, 5)], IMAGES, 2, images(4, 13, 6)),
    *(_around(name, layer, rank) for name, layer, rank in (
        ("batch_norm_1d", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(8)), 1),
        ("batch_norm_2d", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8)), 2),
        ("batch_norm_3d", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm3d(8)), 3),
        ("group_norm_1d", lambda: nn.GroupNorm(2, 8), 1),
        ("group_norm_3d", lambda: nn.GroupNorm(4, 8), 3),
        ("instance_norm_1d", lambda: nn.InstanceNorm1d(8, affine=True), 1),
        ("instance_norm_3d", lambda: nn.InstanceNorm3d(8), 3),
        ("instance_norm_tracked", lambda: nn.InstanceNorm2d(8, track_running_stats=True), 2),
        ("reflection_1d", lambda: nn.ReflectionPad1d(2), 1),
        ("reflection_2d", lambda: nn.ReflectionPad2d((1, 2, 0, 1)), 2),
        ("replication_3d", lambda: nn.ReplicationPad3d(1), 3),
        ("circular_2d", lambda: nn.CircularPad2d(1), 2),
        ("constant_2d", lambda: nn.ConstantPad2d(1, 0.5), 2),
        ("upsample_linear", lambda: nn.Upsample(scale_factor=2.0, mode="linear"), 1),
        ("upsample_nearest_1d", lambda: nn.Upsample(size=11), 1),
        ("upsample_corners", lambda: nn.UpsamplingBilinear2d(scale_factor=1.5), 2),
        ("upsample_trilinear", lambda: nn.Upsample(scale_factor=2.0, mode="trilinear"), 3),
        ("upsample_nearest_3d", lambda: nn.Upsample(scale_factor=2.0), 3),
        ("prelu_1d", lambda: nn.PReLU(8), 1),
        ("softmax_2d", nn.Softmax2d, 2),
        ("dropout_channels", lambda: nn.FeatureAlphaDropout(0.5), 2),
        ("shuffled", lambda: nn.ChannelShuffle(4), 2),
    )),
]  # fmt: skip
