"""Networks as plain `nn.Module`s."""

from regatta.models.dnn import dnn
from regatta.models.initial import initialise
from regatta.models.lstm import ConvLstm

__all__ = ["ConvLstm", "dnn", "initialise"]
