"""What error feedback is worth: a small copy of `studies/learning.py one-bit`."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "studies"))
from learning import Arm, interval, outcome

TINY = ("task.hidden=32,32", "task.train=4096", "task.dev=2048", "minibatch=32")
RATES = (0.1, 0.3, 1.0)


def best_rate(arm):
    return max(RATES, key=lambda rate: outcome(arm, rate, seed=1000).final)


def test_one_bit_with_feedback_beats_one_bit_without():
    """Equal samples, each with the best of three rates, five seeds, paired: 95 % above nothing."""
    torch.set_num_threads(1)
    finals = []
    for feedback in ("yes", "no"):
        spec = f"all-reduce:compress=one-bit,feedback={feedback}"
        arm = Arm(spec, spec, workers=4, epochs=4, settings=TINY)
        rate = best_rate(arm)
        finals.append([outcome(arm, rate, seed).final for seed in range(5)])
    gain, half = interval([a - b for a, b in zip(*finals, strict=True)])
    assert gain - half > 0, (finals, gain, half)
