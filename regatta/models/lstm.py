"""Recurrent networks for sequences of frames."""

from __future__ import annotations

from torch import Tensor, nn


class ConvLstm(nn.Module):
    """A convolution over time, LSTM layers, and a linear layer on every frame that is left."""

    def __init__(
        self,
        features: int,
        hidden: int,
        layers: int,
        outputs: int,
        kernel: int = 11,
        stride: int = 2,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(features, hidden, kernel, stride)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, outputs)

    def forward(self, frames: Tensor) -> Tensor:
        """[sequence, frame, feature] -> [sequence, frame after the stride, output]."""
        states, _ = self.lstm(self.conv(frames.transpose(1, 2)).transpose(1, 2))
        outputs: Tensor = self.linear(states)
        return outputs
