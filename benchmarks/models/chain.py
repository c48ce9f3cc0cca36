"""A chain of tiny convolutions: many graph nodes, hardly any arithmetic."""

from __future__ import annotations

from torch import nn

CHANNELS = 8


def conv_relu_chain(length: int) -> nn.Sequential:
    """``length`` pairs of an 8-channel 3x3 convolution and a ReLU.

    The graph grows with ``length`` while a forward stays cheap, so that the time to quantize
    the chain is the time the graph passes take.
    """
    layers: list[nn.Module] = []
    for _ in range(length):
        conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        # Keeps the activations from vanishing along a chain of hundreds of layers.
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.ReLU()]
    return nn.Sequential(*layers)
