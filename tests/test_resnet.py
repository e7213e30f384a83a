"""Residual networks: sizes that are known, and torchvision's names."""

from __future__ import annotations

import pytest
import torch

from regatta.models.resnet import ResNet50, SmallResNet, multiply_adds


@pytest.fixture(scope="module")
def large():
    with torch.device("meta"):
        return ResNet50()


def test_resnet_50_has_the_known_number_of_parameters(large):
    assert sum(p.numel() for p in large.parameters()) == 25_557_032  # torchvision's page


def test_resnet_50_has_the_known_number_of_multiply_adds(large):
    image = torch.empty(1, 3, 224, 224, device="meta")
    assert multiply_adds(large, image) == 4_089_184_256  # 4.09 G


def test_resnet_50_has_torchvisions_names_and_shapes(large):
    state = {name: tuple(value.shape) for name, value in large.state_dict().items()}
    assert len(state) == 320
    for name, shape in {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "bn1.num_batches_tracked": (),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.bias": (256,),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer2.3.bn3.weight": (512,),
        "layer3.5.conv3.weight": (1024, 256, 1, 1),
        "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
        "layer4.2.bn2.running_mean": (512,),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }.items():
        assert state[name] == shape, name
    assert "layer1.1.downsample.0.weight" not in state


def test_the_stride_stands_in_the_second_convolution(large):
    first = large.layer2[0]
    assert (first.conv1.stride, first.conv2.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize("size", [32, 64])
def test_resnet_50_takes_images_of_other_sizes_and_classes(size):
    with torch.device("meta"):
        model = ResNet50(classes=7, channels=1)
    assert model(torch.empty(2, 1, size, size, device="meta")).shape == (2, 7)


def test_three_blocks_a_stage_are_resnet_20():
    """He et al., table 6: 0.27 million; with projections where shapes change."""
    model = SmallResNet(10, blocks=(3, 3, 3))
    assert sum(p.numel() for p in model.parameters()) == 272_474


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3)])
def test_small_images_of_any_size(size, channels):
    model = SmallResNet(10, channels, width=8)
    outputs = model(torch.randn(4, channels, size, size))
    assert outputs.shape == (4, 10)
    assert outputs.isfinite().all()


def test_the_variance_of_a_deep_network_stays_within_bounds():
    torch.manual_seed(0)
    outputs = SmallResNet(10, blocks=(3, 3, 3))(torch.randn(16, 3, 32, 32))
    assert 0.01 < outputs.std().item() < 10
