"""Where all ranks rest: a further meeting there changes no bit of what is learnt."""

from dataclasses import replace

import pytest
from helpers import Normalised, built, layers_for, play, small_run, strategies_for

from regatta.config import Checkpointing, Evaluation, Stop
from regatta.learn.optimisers import Adam

RESTING = [(name, n) for name, n in strategies_for(2, 3) if built(name).rests_every]
RESTLESS = [(name, n) for name, n in strategies_for(3) if not built(name).rests_every]
SELDOM = Evaluation(every=100.0)


def small(name, workers):
    strategy = built(name)
    task = Normalised(train=240, layers=layers_for(strategy))
    run = small_run(strategy, workers, task=task, optimiser=Adam(lr=0.01), evaluation=SELDOM)
    return replace(run, stop=Stop(epochs=1))


def with_meetings(run, turns):
    return replace(run, checkpointing=Checkpointing(batches=turns))


@pytest.mark.parametrize(("name", "workers"), RESTING)
def test_a_meeting_at_rest_changes_nothing(name, workers):
    run = small(name, workers)
    once = play(run)
    again = play(with_meetings(run, run.strategy.rests_every))
    assert again.digests == once.digests
    assert max(r.turns for r in again.ranks) > run.strategy.rests_every, "there was but one"


def test_what_rests_is_what_is_fixed():
    """Where messages are taken as they come, nobody can say what would have come otherwise."""
    assert all(built(name).deterministic for name, _ in RESTING)
    fixed = {built(name).name for name, _ in RESTLESS if built(name).deterministic}
    assert fixed == {"ring", "averaging"}  # the latter with Kaldi's schedule


def test_a_ring_never_rests():
    """The control: its meetings let the model stand still, and the test above would notice."""
    run = small("ring", 3)
    assert play(with_meetings(run, 7)).digests != play(run).digests


def test_elsewhere_than_at_rest_averaging_changes():
    run = small("averaging:period=4", 3)
    assert play(with_meetings(run, 3)).digests != play(run).digests
