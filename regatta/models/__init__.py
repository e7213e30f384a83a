"""Networks as plain `nn.Module`s."""

from regatta.models.dnn import dnn
from regatta.models.initial import initialise
from regatta.models.lstm import ConvLstm
from regatta.models.resnet import ResNet50, SmallResNet

__all__ = ["ConvLstm", "ResNet50", "SmallResNet", "dnn", "initialise"]
