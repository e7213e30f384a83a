"""What every test shares: one thread, so that a gradient is the same bits every time."""

import pytest
import torch
from helpers import Quadratic

torch.set_num_threads(1)


@pytest.fixture
def quadratic():
    return Quadratic()
