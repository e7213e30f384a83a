"""Networks as plain `nn.Module`s."""

from regatta.models.dnn import dnn

__all__ = ["dnn"]
