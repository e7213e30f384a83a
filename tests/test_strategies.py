"""The exam that every strategy of the registry takes; a new one is enrolled by existing.

Every question is a function that asserts. Below the exam stand strategies that are wrong on
purpose: each must fail its question, so that the questions are known to be able to fail.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from helpers import (
    Crew,
    Normalised,
    Quadratic,
    built,
    every_spec,
    layers_for,
    permits,
    play,
    play_from,
    small_run,
    strategies_for,
)
from torch import nn

from regatta import choices
from regatta.choices import Replayer
from regatta.cluster import Cluster
from regatta.comm import Deadlock
from regatta.config import Checkpointing, Stop
from regatta.data.order import Order, mixed_seed
from regatta.events import Checkpointed, Evaluated, RankEnded
from regatta.events import read as read_events
from regatta.fingerprint import weights_digest
from regatta.learn.optimisers import Sgd
from regatta.runs import Plan, simulate
from regatta.strategies import Strategy, registry
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.averaging import Averaging
from regatta.strategies.base import Exchange
from regatta.strategies.parameter_server import ParameterServer
from regatta.strategies.ring import Ring

SIZES = (1, 2, 3, 5)
JITTERY = Cluster(jitter=0.5)  # so that messages come in ever another order

every_strategy = pytest.mark.parametrize("name", every_spec())
every_strategy_and_size = pytest.mark.parametrize(("name", "workers"), strategies_for(*SIZES))
every_deterministic_strategy_and_size = pytest.mark.parametrize(
    ("name", "workers"),
    [(name, n) for name, n in strategies_for(*SIZES) if built(name).deterministic],
)


# -- learning -------------------------------------------------------------------------------


def check_learns(strategy: Strategy, workers: int) -> None:
    losses = play(small_run(strategy, workers, stop=Stop(epochs=6))).losses
    untrained = Quadratic().open().evaluate(nn.Linear(4, 1))["loss"]
    assert losses[-1] < untrained / 100
    assert losses[-1] < max(losses[0], untrained / 1000)  # below, few digits may be the limit


@every_strategy_and_size
def test_learns_a_quadratic(name, workers):
    check_learns(built(name), workers)


def check_one_worker_is_plain(strategy: Strategy) -> None:
    run = small_run(strategy, 1, optimiser=Sgd(lr=0.02, momentum=0.9), stop=Stop(epochs=2))
    data = run.task.open()
    order = Order(data.train_samples, run.minibatch, 1, run.seed)
    torch.manual_seed(mixed_seed(run.seed))
    model = run.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for turn in range(2 * order.batches_per_epoch):
        optimizer.zero_grad()
        data.loss(model, data.batch(order.indices(0, turn))).backward()
        optimizer.step()
    plain = torch.cat([*(p.detach().reshape(-1) for p in model.parameters()), torch.ones(1)])
    assert set(play(run).digests) == {weights_digest(plain)}


@every_strategy
def test_one_worker_is_plain_sgd_bit_for_bit_or_says_why_not(name):
    strategy = built(name)
    if not permits(strategy, 1):
        pytest.skip("not for one worker")
    if "power-sgd" in name:
        pytest.skip("this model has no matrix that could be made thinner")
    if strategy.unlike_plain:
        with pytest.raises(AssertionError):  # so the reason is needed
            check_one_worker_is_plain(strategy)
    else:
        check_one_worker_is_plain(strategy)


def check_all_end_alike(strategy: Strategy, workers: int) -> None:
    assert len(set(play(small_run(strategy, workers)).digests)) == 1


@every_strategy_and_size
def test_every_rank_ends_with_the_same_weights(name, workers):
    check_all_end_alike(built(name), workers)


# -- exchange -------------------------------------------------------------------------------


def check_exchange(strategy: Strategy, workers: int, turns: int) -> None:
    crew = Crew(strategy, workers).play_counts([turns] * workers)
    stated = strategy.exchange(workers, turns, crew.holder.layout)
    messages, nbytes = crew.exchanged
    assert messages == stated.messages
    assert nbytes == stated.nbytes if stated.is_all else nbytes > stated.nbytes


@pytest.mark.parametrize("turns", [0, 1, 7, 24])
@every_strategy_and_size
def test_messages_and_bytes_are_as_stated(name, workers, turns):
    check_exchange(built(name), workers, turns)


UNEVEN = [
    (0, 0, 0),
    (0, 2, 3), (2, 0, 3), (3, 2, 0),
    (0, 0, 4), (0, 4, 0), (4, 0, 0),
    (1, 2, 25), (25, 1, 2), (2, 25, 1),
]  # fmt: skip


async def _left_behind(comm):
    return await comm.poll()


def check_uneven(strategy: Strategy, *segments: tuple[int, ...]) -> None:
    workers = len(segments[0])
    crew = Crew(strategy, workers)
    for counts in segments:
        crew.play_counts(counts)
    assert crew.computed == crew.used == sum(map(sum, segments))
    assert all(weights == crew.final[0] for weights in crew.final)
    assert crew.world.run(_left_behind) == [None] * crew.world.size  # no message is in flight


@pytest.mark.parametrize("counts", UNEVEN)
@pytest.mark.parametrize("name", [name for name, workers in strategies_for(3) if workers == 3])
def test_uneven_and_empty_shards_end(name, counts):
    check_uneven(built(name), counts)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("name", [name for name, _ in strategies_for(1)])
def test_one_shard_ends(name, count):
    check_uneven(built(name), (count,))


# After a meeting the roles start again; an interrupt may then leave some workers without a turn.
@pytest.mark.parametrize("counts", UNEVEN)
@pytest.mark.parametrize("name", [name for name, workers in strategies_for(3) if workers == 3])
def test_uneven_and_empty_shards_end_in_a_second_segment(name, counts):
    check_uneven(built(name), (2, 2, 2), counts)


def test_staleness_in_a_ring_is_workers_minus_one():
    crew = Crew(Ring(), 5).play([[2.0] * 20] * 5)
    ages = Counter()
    for comm in crew.world.comms:
        ages.update(comm.traffic.staleness)
    # Only the first lap is younger: every worker had the initial model.
    assert ages == {0: 1, 1: 1, 2: 1, 3: 1, 4: 96}


# -- chance ---------------------------------------------------------------------------------


def check_straggler_is_harmless(strategy: Strategy, workers: int) -> None:
    even = small_run(strategy, workers, cluster=Cluster())
    uneven = replace(even, cluster=Cluster(stragglers=1, straggle=5.0))
    assert play(even).digests == play(uneven).digests


@every_deterministic_strategy_and_size
def test_a_straggler_changes_no_weights(name, workers):
    check_straggler_is_harmless(built(name), workers)


def check_repeatable(strategy: Strategy, workers: int) -> None:
    run = small_run(strategy, workers, cluster=JITTERY)
    first, second = play(run), play(run)
    assert first.digests == second.digests
    assert first.comparable_events == second.comparable_events


@every_strategy_and_size
def test_a_simulation_repeats_itself(name, workers):
    check_repeatable(built(name), workers)


def check_timing_only(strategy: Strategy, workers: int) -> None:
    run = small_run(strategy, workers, cluster=JITTERY, stop=Stop(epochs=1))
    played = [play(run, timing_only=timing_only).ranks for timing_only in (False, True)]
    computed, timed = ([(r.messages, r.bytes, r.turns) for r in ranks] for ranks in played)
    assert timed == computed
    ends = [[r.time for r in ranks] for ranks in played]
    assert ends[1] == pytest.approx(ends[0], rel=1e-6)


@pytest.mark.parametrize(("name", "workers"), strategies_for(3))
def test_timing_only_takes_the_same_time_messages_and_bytes(name, workers):
    check_timing_only(built(name), workers)


# -- statistics -----------------------------------------------------------------------------


def _normalised_crew(strategy: Strategy, workers: int, momentum: float | None = 0.1) -> Crew:
    task = Normalised(train=2400, layers=layers_for(strategy), momentum=momentum)
    data = task.open()
    crew = Crew(strategy, workers, task.model, data.loss, Sgd(lr=0.01), Cluster())
    batches = [data.batch(slice(start, start + 16)) for start in range(0, 2400, 16)]
    return crew.play([batches[30 * worker : 30 * (worker + 1)] for worker in range(workers)])


def check_buffers(strategy: Strategy, workers: int) -> None:
    answer = _normalised_crew(strategy, workers).holder.named_answer()
    inputs = Normalised(train=2400).open().inputs
    # The initial ones are 0 and 1.
    torch.testing.assert_close(answer["0.running_mean"], inputs.mean(0), atol=0.5, rtol=0)
    torch.testing.assert_close(answer["0.running_var"], inputs.var(0), atol=1.2, rtol=0)


@every_strategy_and_size
def test_the_holder_has_the_statistics_of_the_data(name, workers):
    check_buffers(built(name), workers)


@every_strategy_and_size
def test_without_momentum_statistics_are_the_mean_of_all_batches(name, workers):
    crew = _normalised_crew(built(name), workers, momentum=None)
    answer = crew.holder.named_answer()
    inputs = Normalised(train=2400).open().inputs[: 30 * 16 * workers]
    # Batches are of one size, so the mean of their means is the mean of all that were used.
    drops = any(comm.traffic.dropped for comm in crew.world.comms)
    near = 0.2 if drops else 1e-4
    torch.testing.assert_close(answer["0.running_mean"], inputs.mean(0), atol=near, rtol=0)


def ulps_apart(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.view(torch.int32) - other.view(torch.int32)).abs().max())


@pytest.mark.parametrize("workers", [2, 3, 5, 7])
@pytest.mark.parametrize("strategy", [AllReduce(), Averaging(period=1)])
def test_the_mean_of_equal_replicas_is_that_replica(strategy, workers):
    data = Normalised().open()

    def trained(count):
        crew = Crew(strategy, count, Normalised().model, data.loss, Sgd(lr=0.01))
        return crew.play([[data.batch(slice(0, 16))]] * count).holder.weights

    assert ulps_apart(trained(workers), trained(1)) <= workers


# -- resuming -------------------------------------------------------------------------------


def check_resume(strategy: Strategy, workers: int, folder) -> None:
    run = small_run(
        strategy,
        workers,
        task=Normalised(layers=layers_for(strategy)),
        optimiser=Sgd(lr=0.002, momentum=0.9),
        checkpointing=Checkpointing(every=0.25, keep=100),
        cluster=JITTERY,
    )
    simulate(run, Plan("teacher", run, folder))
    events = read_events(folder / "events.jsonl")
    undisturbed = _outcome(e for e in events if isinstance(e, RankEnded))
    saved = [folder / "checkpoints" / e.path for e in events if isinstance(e, Checkpointed)]
    assert all(math.isfinite(e.results["loss"]) for e in events if isinstance(e, Evaluated))
    assert len(saved) == 8  # two epochs of four quarters
    chance = None
    if not strategy.deterministic:
        recorded = choices.read(folder / "choices.jsonl")
        chance = lambda rank: Replayer(recorded, rank)  # noqa: E731
    for path in (saved[0], saved[4], saved[6]):
        resumed = play_from(run, chance, resume_from=path)
        assert _outcome(resumed.ranks) == undisturbed


def _outcome(ranks) -> dict[int, tuple]:
    return {r.rank: (r.digest, r.turns, r.steps, r.staleness) for r in ranks}


@every_strategy_and_size
def test_resuming_is_exact(name, workers, tmp_path):
    check_resume(built(name), workers, tmp_path)


@every_deterministic_strategy_and_size
def test_saving_changes_no_weights(name, workers, tmp_path):
    """A folder to save to changes the clock, and so what a strategy leaves to chance alone."""
    run = small_run(name, workers, checkpointing=Checkpointing(every=0.5, keep=9))
    ended, _ = simulate(run, Plan("teacher", run, tmp_path))
    assert [r.digest for r in ended] == play(run).digests


# -- strategies that are wrong, to see that the exam notices ---------------------------------
# They derive from finished strategies, not from Strategy itself, which would enrol them.


class Halving(AllReduce):
    """Takes half of every step."""

    async def worker(self, comm, replica):
        async for total in replica.reduced_by(comm.all_reduce):
            replica.step(total / (2 * int(total[-1])), of=int(total[-1]))


class Ascending(AllReduce):
    """Takes every step in the wrong direction."""

    async def worker(self, comm, replica):
        async for total in replica.reduced_by(comm.all_reduce):
            replica.step(-total / int(total[-1]))


class Solitary(AllReduce):
    """Never meets anybody."""

    async def worker(self, comm, replica):
        async for gradient in replica:
            replica.step(gradient)


class Understated(AllReduce):
    """Forgets the last round in what it states."""

    def exchange(self, workers, turns, vector):
        return Exchange(workers * turns, workers * turns * vector.nbytes)


class Deserting(AllReduce):
    """Leaves with its last gradient, whoever still waits."""

    async def worker(self, comm, replica):
        async for gradient in replica:
            replica.step(replica.mean(await comm.all_reduce(gradient)), of=comm.size)


class Littering(AllReduce):
    """Leaves a message behind that nobody takes."""

    async def worker(self, comm, replica):
        await super().worker(comm, replica)
        await comm.send((comm.rank + 1) % comm.size, replica.nothing)


class Losing(ParameterServer):
    """Its server answers every third gradient without using it."""

    async def server(self, comm, replica):
        replica.step = _every_third_time_nothing(replica.step)
        await super().server(comm, replica)


def _every_third_time_nothing(step):
    calls = Counter()

    def sometimes(*arguments, **named):
        calls["all"] += 1
        if calls["all"] % 3:
            step(*arguments, **named)

    return sometimes


class Moody(AllReduce):
    """Steps by a random length."""

    async def worker(self, comm, replica):
        async for total in replica.reduced_by(comm.all_reduce):
            replica.step(random.random() * total / int(total[-1]), of=int(total[-1]))


class Forgetful(AllReduce):
    """Puts the initial statistics back after every step."""

    async def worker(self, comm, replica):
        start = replica.layout.num_parameters
        initial = replica.weights.clone()
        async for total in replica.reduced_by(comm.all_reduce):
            replica.step(total / int(total[-1]), of=int(total[-1]))
            weights = replica.weights.clone()
            weights[start:-1] = initial[start:-1]
            replica.load(weights)


@dataclass(frozen=True)
class Secretive(AllReduce):
    """Counts its steps where no checkpoint looks."""

    taken: ClassVar[Counter] = Counter()

    async def worker(self, comm, replica):
        async for total in replica.reduced_by(comm.all_reduce):
            self.taken[comm.rank] += 1
            replica.step(total / (int(total[-1]) * self.taken[comm.rank]), of=int(total[-1]))


def test_the_exam_notices_what_does_not_learn():
    with pytest.raises(AssertionError):
        check_learns(Ascending(), 2)


def test_the_exam_notices_what_is_not_plain_sgd():
    with pytest.raises(AssertionError):
        check_one_worker_is_plain(Halving())


def test_the_exam_notices_what_ends_with_different_weights():
    with pytest.raises(AssertionError):
        check_all_end_alike(Solitary(), 2)


def test_the_exam_notices_a_wrong_formula():
    with pytest.raises(AssertionError):
        check_exchange(Understated(), 2, turns=7)


def test_the_exam_notices_who_leaves_early():
    check_uneven(Deserting(), (2, 2, 2))
    with pytest.raises(Deadlock):
        check_uneven(Deserting(), (2, 3, 2))


def test_the_exam_notices_a_message_left_behind():
    with pytest.raises(AssertionError):
        check_uneven(Littering(), (2, 2, 2))


def test_the_exam_notices_lost_gradients():
    with pytest.raises(AssertionError):
        check_uneven(Losing(), (2, 2, 2))


def test_the_exam_notices_what_a_straggler_changes():
    with pytest.raises(AssertionError):
        check_straggler_is_harmless(ParameterServer(), 2)


def test_the_exam_notices_hidden_chance():
    with pytest.raises(AssertionError):
        check_repeatable(Moody(), 2)


def test_the_exam_notices_lost_statistics():
    with pytest.raises(AssertionError):
        check_buffers(Forgetful(), 2)


def test_the_exam_notices_state_that_is_not_saved(tmp_path):
    with pytest.raises(AssertionError):
        check_resume(Secretive(), 2, tmp_path)


def test_without_the_recorded_choices_a_resumed_server_differs(tmp_path):
    """So the replay in `check_resume` is what makes it exact."""

    class Unrecorded(ParameterServer):
        deterministic = True  # a lie: no choices are replayed

    with pytest.raises(AssertionError):
        check_resume(Unrecorded(), 5, tmp_path)


def test_wrong_strategies_are_not_enrolled():
    assert all(cls.__module__.startswith("regatta.strategies") for cls in registry().values())


def test_some_strategies_permit_one_worker_only():
    assert not permits(built("single"), 2)
    assert permits(built("single"), 1)
