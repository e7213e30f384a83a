"""Imported once by the process that ranks are forked from, so that they need not."""

import torch

import regatta.runs  # noqa: F401

# The first optimiser made in a process imports torch's compiler, for more than a second.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
