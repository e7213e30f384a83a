"""Residual networks (He et al. 2016): ResNet-50, and a small one for small images.

The large one has torchvision's names and shapes, stride in the 3 x 3 convolution included, so that
its published weights can be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

_EXPANSION = 4  # of a bottleneck's channels
Norm: TypeAlias = type[nn.BatchNorm2d]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """Where the sum needs another shape than the input has."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))


class Bottleneck(nn.Module):
    """Three convolutions: 1 x 1 to fewer channels, 3 x 3, 1 x 1 to four times as many."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = _EXPANSION * channels
        self.conv1, self.bn1 = _conv(inputs, channels, 1), norm(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3, stride), norm(channels)
        self.conv3, self.bn3 = _conv(channels, outputs, 1), norm(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, norm)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = relu(self.bn1(self.conv1(inputs)))
        outputs = relu(self.bn2(self.conv2(outputs)))
        outputs = self.bn3(self.conv3(outputs))
        return relu(outputs + (inputs if self.downsample is None else self.downsample(inputs)))


class Basic(nn.Module):
    """Two 3 x 3 convolutions."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, channels, 3, stride), norm(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3), norm(channels)
        self.downsample = _shortcut(inputs, channels, stride, norm)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = relu(self.bn1(self.conv1(inputs)))
        outputs = self.bn2(self.conv2(outputs))
        return relu(outputs + (inputs if self.downsample is None else self.downsample(inputs)))


class ResNet50(nn.Module):
    """For images of 224 x 224 pixels, or of any size from 32 x 32 on."""

    def __init__(self, classes: int = 1000, channels: int = 3, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _bottlenecks(64, 64, 3, stride=1, norm=norm)
        self.layer2 = _bottlenecks(256, 128, 4, stride=2, norm=norm)
        self.layer3 = _bottlenecks(512, 256, 6, stride=2, norm=norm)
        self.layer4 = _bottlenecks(1024, 512, 3, stride=2, norm=norm)
        self.fc = nn.Linear(512 * _EXPANSION, classes)
        _draw(self)

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.maxpool(relu(self.bn1(self.conv1(images))))
        outputs = self.layer4(self.layer3(self.layer2(self.layer1(outputs))))
        classes: Tensor = self.fc(outputs.mean((2, 3)))
        return classes


class SmallResNet(nn.Module):
    """For images of some 8 to 64 pixels: stages of basic blocks, each of half the size.

    Three stages of three blocks with 16, 32 and 64 channels are He et al.'s ResNet-20.
    """

    def __init__(
        self,
        classes: int,
        channels: int = 3,
        width: int = 16,
        blocks: Sequence[int] = (1, 1, 1),
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3), norm(width)
        stages: list[nn.Module] = []
        inputs = width
        for number, count in enumerate(blocks):
            outputs = width << number
            for block in range(count):
                stages.append(Basic(inputs, outputs, 2 if number and block == 0 else 1, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)
        _draw(self)

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.blocks(relu(self.bn1(self.conv1(images))))
        classes: Tensor = self.fc(outputs.mean((2, 3)))
        return classes


def _bottlenecks(inputs: int, channels: int, count: int, stride: int, norm: Norm) -> nn.Sequential:
    further = [Bottleneck(_EXPANSION * channels, channels, 1, norm) for _ in range(count - 1)]
    return nn.Sequential(Bottleneck(inputs, channels, stride, norm), *further)


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    """He et al. 2015: a rectifier lets half of the variance through."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def multiply_adds(model: nn.Module, image: Tensor) -> int:
    """Of one forward pass, in convolutions and linear layers; the image may be on `meta`."""
    total = 0

    def count(module: nn.Module, _inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        nonlocal total
        assert isinstance(module, nn.Conv2d | nn.Linear)
        total += outputs[0].numel() * module.weight[0].numel()

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return total
