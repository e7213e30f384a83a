"""What becomes of the statistics of batch normalisation where many workers train.

averaged  what every batch was like goes with its gradient; whoever steps folds it in, so that
          weights and statistics belong together wherever the model is
local     every worker keeps those of its own batches, and they never travel
frozen    they stay as they were, and training normalises with them: for a model that begins
          with another's weights
"""

from __future__ import annotations

from torch import nn


class Local(nn.BatchNorm2d):
    statistics_are_local = True  # they are no part of a model's vector


class Frozen(nn.BatchNorm2d):
    """Weight and bias are learnt all the same."""

    statistics_are_frozen = True

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


NORMS: dict[str, type[nn.BatchNorm2d]] = {
    "averaged": nn.BatchNorm2d,
    "local": Local,
    "frozen": Frozen,
}
