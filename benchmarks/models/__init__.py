"""The benchmarked architectures: ``MODELS`` maps each name to a :class:`ModelSpec`.

Every architecture follows its paper, with the details of torchvision's implementation where
it has one (in-place activations, adaptive pooling, initialisation), and can be scripted with
``torch.jit.script``.  Weights are seeded random numbers: latency does not depend on their
values, and :func:`~benchmarks.inputs.realistic` gives the activations the channel-to-channel
variation that makes quantization error meaningful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.inputs import audio_features, embedded_tokens, images, realistic
from benchmarks.models.audio import DepthwiseSeparableAudioNet
from benchmarks.models.chain import conv_relu_chain
from benchmarks.models.convnext import ConvNeXt
from benchmarks.models.densenet import densenet121
from benchmarks.models.efficientnet import efficientnet_b0
from benchmarks.models.encoder import Encoder
from benchmarks.models.mobilenet_v2 import MobileNetV2
from benchmarks.models.mobilenet_v3 import mobilenet_v3_large
from benchmarks.models.recurrent import Listener, Tagger
from benchmarks.models.resnet import resnet18, resnet50
from benchmarks.models.shufflenet_v2 import shufflenet_v2_x1_0
from benchmarks.models.unet import UNet

__all__ = ["MODELS", "ModelSpec", "conv_relu_chain", "parameter_count"]

_WEIGHT_SEED = 0
_STATISTICS_SEED = 1_000
_STATISTICS_BATCHES = 8


@dataclass(frozen=True)
class ModelSpec:
    """One benchmarked architecture and the data it takes."""

    title: str
    architecture: Callable[[], nn.Module]
    inputs: Callable[[int, int], Tensor]
    """``inputs(batch, seed)``: one batch of synthetic inputs."""
    parameters: int | None = None
    """Published parameter count, where the architecture has one."""
    traced: bool = False
    """Whether it is traced; most architectures are scripted."""

    def build(self) -> nn.Module:
        """The eval-mode float model, with seeded weights and realistic BatchNorm statistics."""
        torch.manual_seed(_WEIGHT_SEED)
        model = self.architecture()
        batches = [self.inputs(8, _STATISTICS_SEED + index) for index in range(_STATISTICS_BATCHES)]
        return realistic(model, batches)

    def form(self, model: nn.Module, example: Tensor) -> torch.jit.ScriptModule:
        """The TorchScript of what `build` gave."""
        if not self.traced:
            return torch.jit.script(model)
        traced: torch.jit.ScriptModule = torch.jit.trace(model, example, check_trace=False)
        return traced


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters of ``model``."""
    return sum(parameter.numel() for parameter in model.parameters())


MODELS: dict[str, ModelSpec] = {
    "resnet18": ModelSpec("ResNet-18", resnet18, images, 11_689_512),
    "resnet50": ModelSpec("ResNet-50", resnet50, images, 25_557_032),
    "mobilenet_v2": ModelSpec("MobileNetV2", MobileNetV2, images, 3_504_872),
    "mobilenet_v3": ModelSpec("MobileNetV3-large", mobilenet_v3_large, images, 5_483_032),
    "efficientnet_b0": ModelSpec("EfficientNet-B0", efficientnet_b0, images, 5_288_548),
    "shufflenet_v2": ModelSpec("ShuffleNetV2 x1.0", shufflenet_v2_x1_0, images, 2_278_604),
    "densenet121": ModelSpec("DenseNet-121", densenet121, images, 7_978_856),
    "convnext": ModelSpec("ConvNeXt-Tiny", ConvNeXt, images, 28_589_128),
    "unet": ModelSpec("U-Net (32 base channels)", UNet, images),
    "audio": ModelSpec("Depthwise-separable audio net", DepthwiseSeparableAudioNet, audio_features),
    **{
        f"encoder_{tokens}": ModelSpec(
            f"Encoder, {tokens} tokens", Encoder, partial(embedded_tokens, tokens=tokens)
        )
        for tokens in (32, 128)
    },
    "lstm": ModelSpec("LSTM tagger, 50 tokens", Tagger, partial(embedded_tokens, tokens=50)),
    "gru": ModelSpec("GRU speech net, 500 steps", Listener, audio_features),
}
