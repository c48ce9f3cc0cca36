"""Seeded synthetic inputs, and BatchNorm statistics that match them.

White noise is a poor stand-in for an image: every activation of a convolution then has the
same distribution everywhere and quantization looks better than it is.  These inputs are
smooth at several scales with a little fine noise, like normalised photographs and spectrograms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.modules.batchnorm import _BatchNorm

IMAGE_SIZE = 224
_AUDIO_FEATURES = 64
_AUDIO_FRAMES = 1000
_LOW_PASS = 0.7  # of the standard deviation of the kernel's weights


def images(batch: int, seed: int, size: int = IMAGE_SIZE) -> Tensor:
    """``batch`` smooth random RGB images, about zero mean and unit variance."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(batch, 3, size, size)
    for cells, amplitude in ((4, 0.8), (14, 0.5), (56, 0.3)):
        coarse = torch.randn(batch, 3, cells, cells, generator=generator)
        total += amplitude * interpolate(
            coarse, size=(size, size), mode="bilinear", align_corners=False
        )
    # Photographs differ in brightness and contrast more than they differ in texture.
    contrast = 0.5 + torch.rand(batch, 1, 1, 1, generator=generator)
    brightness = 0.4 * torch.randn(batch, 3, 1, 1, generator=generator)
    fine = 0.1 * torch.randn(batch, 3, size, size, generator=generator)
    return contrast * total + brightness + fine


def audio_features(batch: int, seed: int) -> Tensor:
    """``batch`` spectrogram-like features ``[batch, 64, 1000]``, smooth in time and frequency."""
    generator = torch.Generator().manual_seed(seed)
    shape = (_AUDIO_FEATURES, _AUDIO_FRAMES)
    total = torch.zeros(batch, 1, *shape)
    for bands, steps, amplitude in ((4, 10, 0.8), (16, 100, 0.6), (32, 500, 0.3)):
        coarse = torch.randn(batch, 1, bands, steps, generator=generator)
        total += amplitude * interpolate(coarse, size=shape, mode="bilinear", align_corners=False)
    fine = 0.1 * torch.randn(batch, 1, *shape, generator=generator)
    return (total + fine).squeeze(1)


def embedded_tokens(batch: int, seed: int, tokens: int, width: int = 384) -> Tensor:
    """``batch`` sequences ``[batch, tokens, width]`` of embeddings with unit variance."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, width, generator=generator)


def chain_input(batch: int, seed: int, size: int = 4) -> Tensor:
    """Tiny ``[batch, 8, size, size]`` inputs of ``conv_relu_chain``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 8, size, size, generator=generator)


def realistic(
    model: nn.Module, example_batches: Iterable[Tensor], seed: int = 0, drawn: bool = True
) -> nn.Module:
    """Give ``model`` the BatchNorm statistics of a trained network and set it to eval.

    A freshly built network has unit scales, zero shifts and running statistics that have
    nothing to do with its activations.  Here every BatchNorm gets random scales and shifts,
    which makes channels differ in range as they do after training, and running statistics
    averaged over ``example_batches``.  Depthwise kernels get a low-pass part, see below.
    Without ``drawn``, scales, shifts and kernels stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    if drawn:
        _smooth_depthwise_kernels(model, generator)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    with torch.no_grad():
        for norm in norms:
            if drawn:
                norm.weight.uniform_(0.5, 1.5, generator=generator)
                norm.bias.normal_(0.0, 0.2, generator=generator)
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative average over the batches
        model.train()
        torch.manual_seed(seed)  # dropout draws from the global generator
        for batch in example_batches if norms else ():
            model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()


def _smooth_depthwise_kernels(model: nn.Module, generator: torch.Generator) -> None:
    """Add a constant of random sign to every depthwise kernel.

    Trained depthwise kernels mostly blur.  Purely random ones suppress smooth signals as often
    as they pass them, and the BatchNorm behind them then amplifies whatever noise is left: the
    output of such a network is hardly reproducible even in bfloat16.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == module.in_channels > 1:
            weight = module.weight.detach()
            shape = [weight.shape[0]] + [1] * (weight.dim() - 1)
            weight += _LOW_PASS * weight.std() * torch.randn(shape, generator=generator).sign()
