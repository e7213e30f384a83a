"""Elastic averaging: traces by hand, the bounds of its pull, whose statistics the centre has."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers import Crew, Normalised, Sized, Weight, play, small_run
from test_golden import Traced, log_of, traced_slope

from regatta.cluster import Cluster
from regatta.config import Stop
from regatta.learn.optimisers import Sgd
from regatta.strategies.elastic import Elastic

SYNC = Elastic(period=2, alpha=0.25)
ASYNC = Elastic(mode="async", period=1, alpha=0.25)


def traced(strategy, *segments):
    crew = Crew(strategy, len(segments[0]), Traced, traced_slope)
    for gradients in segments:
        crew.play(gradients)
    return crew


def seen(crew):
    return [replica.model.seen for replica in crew.replicas[: crew.workers]]


def own(crew):
    """Every worker's own model, which it has put aside."""
    return [replica.slots["own"].tolist() for replica in crew.replicas[: crew.workers]]


def answers(crew):
    """What all ranks hold; the 1 behind it counts one model."""
    assert all(weights == crew.final[0] for weights in crew.final)
    weight, count = crew.final[0]
    assert count == 1.0
    return weight


# -- sync, by hand ---------------------------------------------------------------------------


def test_the_trace_of_a_common_pull():
    crew = traced(SYNC, [[2, 2, 2, 2], [4, 4, 4, 4]])
    # -3 and -7 pull by a quarter of their distance from 1: -1 and -2. They stand at -2 and -5, the
    # centre at -2. Then -6 and -13 pull by -1 and -2.75.
    assert seen(crew) == [[1, -1, -2, -4], [1, -3, -5, -9]]
    assert own(crew) == [[-5, 1], [-10.25, 1]]
    assert answers(crew) == -5.75
    # Four steps; two rounds that pull, one that finds nothing new, one for the statistics.
    assert crew.world.now == 4 * 1.0 + 4 * 0.75


def test_who_is_out_of_data_stays_where_it_is_and_the_last_pull_counts():
    crew = traced(SYNC, [[2], [4, 4, 4]])
    # -1 and -7 pull by -0.5 and -2: -0.5 and -5, centre -1.5. Rank 1 goes on to -9 and pulls alone,
    # by -1.875; rank 0, which would now be pulled to the centre, keeps its -0.5.
    assert seen(crew) == [[1], [1, -3, -5]]
    assert own(crew) == [[-0.5, 1], [-7.125, 1]]
    assert answers(crew) == -3.375
    assert crew.world.now == 2.75 + 1.75 + 0.75 + 0.75


def test_own_models_survive_a_meeting():
    crew = traced(SYNC, [[2, 2], [4, 4]], [[2], []])
    # After the first segment -2, -5 and centre -2. In the second rank 0 goes on from its own -2
    # to -4 and pulls by -0.5; rank 1 has nothing to bring and is not asked to.
    assert seen(crew) == [[1, -1, -2], [1, -3]]
    assert own(crew) == [[-3.5, 1], [-5, 1]]
    assert answers(crew) == -2.5


def test_a_period_counts_from_the_last_contact():
    crew = traced(replace(SYNC, alpha=0.5), [[2]], [[2, 2]])
    # -1 pulls by -1: both at 0. Two further steps make a period: -4 pulls by -2.
    assert seen(crew) == [[1, 0, -2]]
    assert answers(crew) == -2.0


# -- async, by hand --------------------------------------------------------------------------


def test_the_log_of_a_centre_on_a_server():
    assert log_of(ASYNC, [[2, 2], [4]]) == [
        "1.000 rank 0 sends -1 v1 to 2",  # with one gradient in it
        "1.000 rank 1 sends -3 v1 to 2",
        "1.625 rank 2 takes -1 v1 from 0",
        "1.875 rank 2 sends -0.5 v1 to 0",  # the pull; the centre goes from 1 to 0.5
        "2.125 rank 2 takes -3 v1 from 1",
        "2.375 rank 2 sends -0.875 v2 to 1",  # and to -0.375
        "2.500 rank 0 takes -0.5 v1 from 2",  # and stands at -0.5
        "3.000 rank 1 takes -0.875 v2 from 2",
        "3.000 rank 1 sends nothing v0 to 2",
        "3.125 rank 2 takes nothing v0 from 1",
        "3.500 rank 0 sends -2.5 v1 to 2",
        "4.125 rank 2 takes -2.5 v1 from 0",
        "4.375 rank 2 sends -0.53125 v3 to 0",  # to -0.90625
        "5.000 rank 0 takes -0.53125 v3 from 2",
        "5.000 rank 0 sends nothing v0 to 2",
        "5.125 rank 2 takes nothing v0 from 0",
    ]


def test_the_trace_of_a_centre_on_a_server():
    crew = traced(ASYNC, [[2, 2], [4]])
    assert seen(crew) == [[1, -0.5], [1]]
    assert own(crew) == [[-1.96875, 1], [-2.125, 1]]
    assert answers(crew) == -0.90625
    assert crew.holder.version == 3
    # The last sum among three: four messages of a third of a vector.
    assert crew.world.now == pytest.approx(5.125 + 4 * (0.125 + 0.5 / 3))


def test_a_visit_brings_all_steps_since_the_last_one():
    crew = traced(replace(ASYNC, period=3), [[2] * 7])
    visits = [line for line in log_of(replace(ASYNC, period=3), [[2] * 7]) if "to 1" in line]
    assert [line.split()[5] for line in visits] == ["v3", "v3", "v1", "v0"]
    assert crew.holder.version == 7


# -- how strong a pull may be ----------------------------------------------------------------


def settled(mode, workers, alpha, steps=600):
    """How far the centre ends from the mean of the places that the workers want to be at.

    Visitors of a server pull one after another: it comes to rest only where all want the same.
    """
    wanted = [5.0 + (worker if mode == "sync" else 0) for worker in range(workers)]

    def distance(model, wanted):
        return (model.weight - wanted).square().sum() / 2

    crew = Crew(
        Elastic(mode=mode, period=1, alpha=alpha), workers, Weight, distance, Sgd(lr=0.05)
    )  # which no `check` has seen
    crew.play([[place] * steps for place in wanted])
    return abs(crew.holder.weights[0].item() - sum(wanted) / workers)


BOUNDS = [("sync", n, 2 / (n + 1)) for n in (1, 2, 4, 8)] + [("async", n, 1.0) for n in (1, 3)]


@pytest.mark.parametrize(("mode", "workers", "bound"), BOUNDS)
def test_a_pull_just_below_the_bound_settles(mode, workers, bound):
    assert settled(mode, workers, 0.999 * bound) < 0.01  # it started 4 or more away


@pytest.mark.parametrize(("mode", "workers", "bound"), BOUNDS)
def test_a_pull_above_the_bound_swings_ever_wider(mode, workers, bound):
    assert settled(mode, workers, 1.05 * bound) > 1e6


@pytest.mark.parametrize(("mode", "workers", "bound"), BOUNDS)
def test_the_bound_itself_is_refused(mode, workers, bound):
    Elastic(mode=mode, alpha=math.nextafter(bound, 0)).check(workers)
    for alpha in (bound, 1.05 * bound, 0.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="elastic: alpha must be more than 0 and less than"):
            Elastic(mode=mode, alpha=alpha).check(workers)


def test_a_refusal_tells_the_bound_and_the_default():
    with pytest.raises(ValueError, match=r"2 / \(workers \+ 1\) = 0.2 for 9 .* = 0.1$"):
        small_run("elastic:alpha=0.2", 9)
    with pytest.raises(ValueError, match=r"alpha from beta=5 .* less than 1 for 4 .* = 0.225$"):
        small_run("elastic:mode=async,beta=5", 4)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 64, 1000])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_default_pull_is_permitted_for_any_number_of_workers(mode, workers):
    Elastic(mode=mode).check(workers)
    assert Elastic(mode=mode).pull(workers) == 0.9 / workers


def test_other_options_are_checked():
    with pytest.raises(ValueError, match="elastic: period must be 1 or more, not 0"):
        Elastic(period=0)
    with pytest.raises(ValueError, match="elastic: mode must be sync or async, not both"):
        Elastic(mode="both")


# -- statistics ------------------------------------------------------------------------------


def normalised(strategy, counts, momentum=None, wrap=lambda comm: comm):
    task = Normalised(train=2400, momentum=momentum)
    data = task.open()
    batches = iter([data.batch(slice(start, start + 16)) for start in range(0, 2400, 16)])
    crew = Crew(strategy, len(counts), task.model, data.loss, Sgd(lr=0.01), Cluster(), wrap=wrap)
    return crew, [[next(batches) for _ in range(count)] for count in counts], data.inputs


@pytest.mark.parametrize("counts", [(30, 30, 30), (5, 25, 0), (0, 1, 30), (21, 4, 13)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_statistics_are_the_mean_of_all_batches_however_they_were_dealt(mode, counts):
    crew, batches, inputs = normalised(Elastic(mode=mode, period=4), counts)
    answer = crew.play(batches).holder.named_answer()
    wanted = inputs[: 16 * sum(counts)].mean(0)
    torch.testing.assert_close(answer["0.running_mean"], wanted, atol=1e-5, rtol=1e-5)


class Watched:
    """A rank's communication that looks at its replica whenever it sends."""

    def __init__(self, comm, look):
        self._comm, self._look = comm, look

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def send(self, dst, data, tag=0, version=0):
        self._look(self._comm.rank, data)
        return self._comm.send(dst, data, tag, version)


def test_while_training_the_centre_s_statistics_lie_between_those_of_its_visitors():
    brought, after = [], []

    def look(rank, data):
        if rank == 2:
            after.append(tail(crew.replicas[2].weights))
        elif len(data):
            brought.append(tail(data))

    def tail(vector):
        return vector[crew.holder.layout.num_parameters : -1]

    strategy = Elastic(mode="async", period=1, alpha=0.75)
    crew, batches, _ = normalised(strategy, (20, 20), 0.1, lambda comm: Watched(comm, look))
    crew.play(batches)
    assert len(brought) == len(after) == 40
    assert torch.equal(after[0], brought[0]), "the first visitor's replace the initial ones"
    least, most = torch.stack(brought).amin(0), torch.stack(brought).amax(0)
    slack = 1e-5
    assert all(((least - slack <= t) & (t <= most + slack)).all() for t in after)


# -- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["elastic:period=3", "elastic:mode=async,period=3"])
def test_a_timing_only_run_takes_as_long_and_sends_as_much(strategy):
    run = small_run(strategy, 4, cluster=Cluster(jitter=0.3, stragglers=1))
    real, timed = play(run), play(run, timing_only=True)
    for one, other in zip(real.ranks, timed.ranks, strict=True):
        assert replace(one, digest=None) == replace(other, digest=None)


def test_a_straggler_holds_up_its_own_visits_only():
    """In the time that is stopped at, the others make as many steps as without it."""
    run = small_run(
        "elastic:mode=async,period=2", 4,
        task=Sized(train=10**6), stop=Stop(epochs=1, seconds=1.0),
    )  # fmt: skip

    def turns(strategy, stragglers):
        cluster = Cluster(sample_seconds=1e-3, stragglers=stragglers, straggle=5.0)
        slowed = replace(run, strategy=strategy, cluster=cluster)
        return [rank.turns for rank in play(slowed, timing_only=True).ranks[:4]]

    even, uneven = (turns(run.strategy, stragglers) for stragglers in (0, 1))
    assert min(uneven[:3]) > 0.95 * min(even)
    assert uneven[3] < 0.25 * even[3]
    # The control: all at once is as fast as the slowest.
    assert max(turns(Elastic(period=2), 1)) < 0.25 * min(even)
