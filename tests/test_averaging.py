"""Averaging beyond the exam: outer optimisers, memories, bad models, and Kaldi's schedule."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from helpers import (
    Crew,
    Normalised,
    Pairs,
    Quadratic,
    Sized,
    built,
    permits,
    play,
    play_from,
    small_run,
)
from real import plan
from test_golden import Trace, Traced, traced_slope
from torch import nn

import regatta
from regatta import runs
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Evaluation, Stop
from regatta.data.order import Order
from regatta.learn.optimisers import Adam, Sgd
from regatta.runs import Plan, simulate
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.averaging import Averaging
from regatta.strategies.kaldi import Schedule, is_kept
from regatta.strategies.outer import BlockMomentum, CntkBlockMomentum, DiLoCo

MODES = [f"averaging:{mode}" for mode in Averaging.modes]
MOMENTUM = Sgd(lr=0.02, momentum=0.9)
ADAM = Adam(lr=0.01)


# -- golden traces --------------------------------------------------------------------------
# One weight starts at 1, a batch is its own gradient, the learning rate is 1: see test_golden.

BLOCKS = [[2, 2, 2, 2], [4, 4, 4, 4]]  # a block of 2 leads from w to w - 4 and w - 8: mean w - 6
THREE_ROUNDS = 4 * 1.0 + 3 * 0.75

TRACES = {
    # Both at -3, where rank 0 has no more to do: it does not hold rank 1 back from -5.
    "out of data at a meeting": Trace(
        Averaging(period=2),
        gradients=[[2, 2], [2, 2, 2]],
        seen=[[1, -1], [1, -1, -3]],
        final=-5,
        seconds=3 * 1.0 + 3 * 0.75,
    ),
    # G = -6: D = -6, W = -5. Again G = -6: D = 0.5 * -6 - 6 = -9, W = -14.
    "block momentum": Trace(
        Averaging(period=2, outer="bmuf"),
        gradients=BLOCKS,
        seen=[[1, -1, -5, -7], [1, -3, -5, -9]],
        final=-14,
        seconds=THREE_ROUNDS,
    ),
    # The second block starts from -5 + 0.5 * -6 = -8; the answer is W, not where it would go on.
    "block momentum, Nesterov": Trace(
        Averaging(period=2, outer="bmuf", nesterov=True),
        gradients=BLOCKS,
        seen=[[1, -1, -8, -10], [1, -3, -8, -12]],
        final=-14,
        seconds=THREE_ROUNDS,
    ),
    # v = 0.5 * 12 = 6: 1 - 6 - 3 = -8. v = 0.5 * 6 + 0.5 * 12 = 9: -8 - 9 - 4.5.
    "block momentum, CNTK": Trace(
        Averaging(period=2, outer="bmuf", nesterov=True, cntk_compat=True),
        gradients=BLOCKS,
        seen=[[1, -1, -8, -10], [1, -3, -8, -12]],
        final=-21.5,
        seconds=THREE_ROUNDS,
    ),
    # g = 6: b = 6, 1 - 0.5 * (6 + 3) = -3.5. g = 6: b = 3 + 6, -3.5 - 0.5 * (6 + 4.5).
    "DiLoCo": Trace(
        Averaging(period=2, outer="diloco", momentum=0.5, outer_lr=0.5),
        gradients=BLOCKS,
        seen=[[1, -1, -3.5, -5.5], [1, -3, -3.5, -7.5]],
        final=-8.75,
        seconds=THREE_ROUNDS,
    ),
    # Of ten minibatches rank 0 takes 2 and 2 alone. Then both take 2 at twice the rate, then 1: the
    # mean comes down by 8 and 4. The fifth meeting finds nothing; two numbers tell the position.
    "jobs": Trace(
        Averaging(period=2, jobs=1, final_lr=1.0),
        gradients=[[2, 2, 2, 2, 2], [2, 2, 2, 2, 2]],
        seen=[[1, -1, -3, -5, -7, -11, -15], [-7, -11, -15]],
        final=-19,
        seconds=(2 + 2 + 2 + 1) * 1.0 + 5 * 0.75 + 2 * (0.125 + 0.5),
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_trace(name):
    trace = TRACES[name]
    crew = Crew(trace.strategy, len(trace.gradients), Traced, traced_slope).play(trace.gradients)
    assert [replica.model.seen for replica in crew.replicas] == trace.seen
    assert crew.final == [[trace.final, 1.0]] * len(crew.replicas)
    assert crew.world.now == trace.seconds


# -- outer optimisers -----------------------------------------------------------------------


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_diloco_is_sgd_of_pytorch_on_outer_gradients():
    ways = drawn(12, 5)
    outer = DiLoCo(momentum=0.9, lr=0.7)
    base, momentum = drawn(5, seed=1), torch.zeros(5, dtype=torch.float64)
    weights = nn.Parameter(base.clone())
    oracle = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    for way in ways:
        base, momentum = outer.moved(base, momentum, base + way, models=3)
        weights.grad = -way
        oracle.step()
        torch.testing.assert_close(base, weights.detach())


@pytest.mark.parametrize("nesterov", [False, True])
def test_block_momentum_is_that_of_the_paper(nesterov):
    """Written down once more as the paper does, with the start of a block as state."""
    outer = BlockMomentum(momentum=0.75, lr=1.5, nesterov=nesterov)
    base = paper = paper_start = drawn(5, seed=1)
    momentum = paper_update = torch.zeros(5, dtype=torch.float64)
    for number in range(6):
        models = outer.start(base, momentum) + drawn(4, 5, seed=number)
        base, momentum = outer.moved(base, momentum, models.mean(0), models=4)
        paper_update = 0.75 * paper_update + 1.5 * (models.mean(0) - paper_start)
        paper = paper + paper_update
        paper_start = paper + 0.75 * paper_update if nesterov else paper
        torch.testing.assert_close(base, paper)
        torch.testing.assert_close(outer.start(base, momentum), paper_start)


def trained(options, task=None, workers=4, optimiser=None, turns=24, segments=1):
    """The crew after training on a quarter of the data each, in equal segments."""
    task = task or Quadratic(train=24 * 4 * workers)
    data = task.open()
    strategy = built(f"averaging:{options}") if isinstance(options, str) else options
    crew = Crew(strategy, workers, task.model, data.loss, optimiser or Sgd(lr=0.02))
    batches = [data.batch(slice(4 * n, 4 * n + 4)) for n in range(turns * workers)]
    for segment in range(segments):
        share = slice(turns * segment // segments, turns * (segment + 1) // segments)
        crew.play([batches[worker::workers][share] for worker in range(workers)])
    return crew


def weights_of(crew):
    return crew.holder.weights.clone()


def test_block_momentum_of_cntk_with_nesterov_is_classical_with_a_longer_step():
    cntk = trained("period=3,outer=bmuf,cntk_compat=true,nesterov=true")
    classical = trained("period=3,outer=bmuf,outer_lr=1.75")  # 1 + momentum, of 4 workers
    torch.testing.assert_close(weights_of(cntk), weights_of(classical))
    as_in_the_paper = trained("period=3,outer=bmuf,nesterov=true")
    assert not torch.allclose(weights_of(cntk), weights_of(as_in_the_paper), rtol=1e-2)


def test_block_momentum_of_cntk_sums_where_the_paper_averages():
    at_its_own_momentum = trained("period=3,outer=bmuf,cntk_compat=true")
    torch.testing.assert_close(
        weights_of(at_its_own_momentum), weights_of(trained("period=3,outer=bmuf"))
    )
    at_another = trained("period=3,outer=bmuf,cntk_compat=true,momentum=0.5")
    # (1 - 0.5) times the sum of 4 is twice the mean.
    twice = trained("period=3,outer=bmuf,momentum=0.5,outer_lr=2")
    torch.testing.assert_close(weights_of(at_another), weights_of(twice))
    assert CntkBlockMomentum(0.5, 1.0) != BlockMomentum(0.5, 1.0)


@pytest.mark.parametrize("momentum", ["", ",momentum=0"])
def test_block_momentum_without_momentum_is_plain_averaging_bit_for_bit(momentum):
    workers = 4 if momentum else 1  # the usual momentum of one worker is 0
    with_outer = trained(f"period=3,outer=bmuf{momentum}", workers=workers)
    assert with_outer.final == trained("period=3", workers=workers).final


OUTERS = [
    "period=3,outer=bmuf",
    "period=3,outer=bmuf,nesterov=true",
    "period=3,outer=bmuf,cntk_compat=true,nesterov=true",
    "period=3,outer=diloco",
]


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("options", OUTERS)
def test_statistics_are_averaged_and_never_extrapolated(options, segments):
    """They are the inputs' here, whatever the weights: as in plain averaging, to the bit."""
    several_blocks = {"task": Normalised(train=400), "segments": segments}
    plain, outer = trained("period=3", **several_blocks), trained(options, **several_blocks)
    learnt = plain.holder.layout.num_parameters
    assert outer.holder.weights[learnt:].tolist() == plain.holder.weights[learnt:].tolist()
    assert outer.holder.weights[:learnt].tolist() != plain.holder.weights[:learnt].tolist()


@pytest.mark.parametrize("options", OUTERS)
def test_momentum_does_not_coast_while_nobody_learns(options):
    crew = trained(options)
    answer, momentum = crew.final, crew.holder.slot("momentum").tolist()
    assert any(momentum)
    for _ in range(3):
        crew.play([[]] * 4)
    assert crew.final == answer
    assert crew.holder.slot("momentum").tolist() == momentum


def test_nesterov_hands_the_base_over_and_goes_on_from_ahead():
    strategy = Averaging(period=2, outer="bmuf", nesterov=True)
    crew = Crew(strategy, 2, Traced, traced_slope).play([[2, 2], [4, 4]])
    assert crew.final == [[-5, 1]] * 2
    crew.play([[2, 2], [4, 4]])  # as if there had been no meeting: see the trace above
    assert crew.replicas[0].model.seen == [1, -1, -8, -10]
    assert crew.final == [[-14, 1]] * 2


@pytest.mark.parametrize("options", OUTERS)
def test_a_meeting_at_the_end_of_a_block_changes_nothing(options):
    whole, in_pieces = trained(options), trained(options, segments=4)  # 6 of 24 turns: 2 blocks
    assert whole.final == in_pieces.final
    assert set(in_pieces.holder.slots) == {"momentum"}, "the base is kept as the weights"


def test_a_meeting_inside_a_block_makes_a_block_of_what_there_is():
    options = "period=3,outer=diloco"
    assert (
        trained(options, turns=4, segments=4).final
        == trained("period=1,outer=diloco", turns=4).final
    )


# -- what the workers' own optimisers remember ------------------------------------------------


def memory(replica):
    return replica.optimiser_state.tolist()


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAM])
def test_averaged_memories_are_equal_on_all_ranks(optimiser):
    crew = trained("period=3,state=averaged", optimiser=optimiser)
    assert any(memory(crew.holder)[:-2])
    assert all(memory(replica) == memory(crew.holder) for replica in crew.replicas)
    apart = trained("period=3", optimiser=optimiser)
    assert memory(apart.replicas[0]) != memory(apart.replicas[1])


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAM])
def test_an_averaged_memory_is_the_mean_of_those_that_learnt(optimiser):
    data = Quadratic().open()
    batch = data.batch(slice(0, 4))

    def crew(options, workers):
        return Crew(built(options), workers, Quadratic().model, data.loss, optimiser)

    alone = crew("averaging", 1).play([[batch, batch]])
    two_of_three = crew("averaging:state=averaged", 3).play([[batch, batch], [], [batch, batch]])
    for replica in two_of_three.replicas:  # rank 1 too, with the steps that Adam counts
        torch.testing.assert_close(replica.optimiser_state, alone.holder.optimiser_state)
    assert memory(alone.holder)[-2:] == [0.0 if optimiser is MOMENTUM else 2.0, 1.0]


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAM])
def test_reset_clears_memories_and_local_keeps_them(optimiser):
    reset = trained("period=3,state=reset", optimiser=optimiser)
    assert all(not any(memory(replica)[:-1]) for replica in reset.replicas)
    assert any(memory(trained("period=3", optimiser=optimiser).holder)[:-1])


@pytest.mark.parametrize("optimiser", [Sgd(lr=0.02), MOMENTUM, ADAM])
@pytest.mark.parametrize("state", ["local", "averaged", "reset"])
def test_resuming_is_exact_whatever_becomes_of_memories(state, optimiser, tmp_path):
    run = small_run(
        Averaging(period=4, state=state, outer="diloco"),
        3,
        task=Normalised(),
        optimiser=optimiser,
        checkpointing=Checkpointing(every=0.25, keep=100),
    )
    ended, _ = simulate(run, Plan("teacher", run, tmp_path))
    saved = sorted((tmp_path / "checkpoints").glob("0*"))
    assert len(saved) == 8
    for path in (saved[0], saved[5]):
        assert play_from(run, resume_from=path).digests == [rank.digest for rank in ended]


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [
        (Sgd(lr=0.02), "period=1"),
        (MOMENTUM, "period=1,state=averaged"),
        (MOMENTUM, "period=1"),  # the mean of momenta is the momentum of the mean
    ],
)
@pytest.mark.parametrize("task", [Quadratic(train=400), Normalised(train=400)])
def test_averaging_every_minibatch_is_all_reduce(optimiser, options, task):
    averaged = weights_of(trained(options, task, optimiser=optimiser))
    summed = weights_of(trained(AllReduce(), task, optimiser=optimiser))
    torch.testing.assert_close(averaged, summed, rtol=1e-4, atol=1e-5)


def test_the_comparison_with_all_reduce_notices_a_lost_memory():
    reset = weights_of(trained("period=1,state=reset", optimiser=MOMENTUM))
    summed = weights_of(trained(AllReduce(), optimiser=MOMENTUM))
    assert not torch.allclose(reset, summed, rtol=1e-2)


@pytest.mark.parametrize(("optimiser", "vectors"), [(Sgd(lr=0.02), 0), (MOMENTUM, 1), (ADAM, 2)])
def test_memories_are_exchanged_where_there_are_any(optimiser, vectors):
    crew = trained("period=3,state=averaged", optimiser=optimiser)
    stated = crew.strategy.exchange(4, 24, crew.holder.layout)
    messages, nbytes = crew.exchanged
    meetings = 4 * 8 if vectors else 0  # not after the last, which found nothing
    assert messages == stated.messages + meetings
    assert nbytes == stated.nbytes + meetings * 4 * (
        vectors * crew.holder.layout.num_parameters + 2
    )


# -- models that are far worse ----------------------------------------------------------------


def poisoned(options, poison, at=range(24), optimiser=None):
    """Four workers learn; what rank 2 is to learn is poisoned in some of its turns."""
    data = Quadratic(train=24 * 16).open()
    batches = [[data.batch(slice(16 * n + 4 * w, 16 * n + 4 * w + 4)) for n in range(24)]
               for w in range(4)]  # fmt: skip
    for turn in at:
        inputs, targets = batches[2][turn]
        batches[2][turn] = (inputs, targets * poison)
    strategy = built(f"averaging:period=4,{options}")
    crew = Crew(strategy, 4, Quadratic().model, data.loss, optimiser or Sgd(lr=0.05))
    crew.play(batches)
    return crew, crew.holder.look(data.evaluate)["loss"]


def steps_dropped(crew):
    return [comm.traffic.dropped for comm in crew.world.comms]


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e4])
@pytest.mark.parametrize("outer", ["", ",outer=bmuf,momentum=0.5", ",outer=diloco,momentum=0.5"])
def test_a_poisoned_worker_spoils_no_mean(poison, outer):
    crew, loss = poisoned(f"drop=50{outer}", poison)
    assert loss < 1.0
    assert steps_dropped(crew) == [0, 0, 24, 0]
    assert crew.computed == crew.used == 4 * 24
    _, without = poisoned(f"drop=none{outer}", poison)
    assert not without < 1.0, "the control: it is poison indeed"


@pytest.mark.parametrize("optimiser", [Sgd(lr=0.02, momentum=0.5), Adam(lr=0.1)])
@pytest.mark.parametrize("state", ["local", "averaged", "reset"])
def test_who_was_poisoned_once_comes_back(state, optimiser):
    """Its optimiser would remember NaN for ever."""
    crew, _ = poisoned(f"drop=50,state={state}", math.nan, at=[5], optimiser=optimiser)
    assert steps_dropped(crew) == [0, 0, 4, 0]
    assert all(torch.isfinite(replica.optimiser_state).all() for replica in crew.replicas)


def root_of_zero(model, batch):
    """A loss of 0 whose gradient is not a number."""
    return (batch * model.weight.sum()).sqrt()


def test_weights_that_are_no_numbers_are_dropped_though_their_loss_is_one():
    batches = [[1.0], [0.0]]
    crew = Crew(Averaging(drop=1.0), 2, loss=root_of_zero).play(batches)
    assert crew.final == [[0.5, 1.0]] * 2  # 1 less the slope of a root at 1
    without = Crew(Averaging(), 2, loss=root_of_zero).play(batches)
    assert math.isnan(without.final[0][0])


def test_if_all_are_poisoned_all_contribute():
    data = Quadratic().open()
    inputs, targets = data.batch(slice(0, 4))
    crew = Crew(Averaging(drop=1.0), 2, Quadratic().model, data.loss)
    crew.play([[(inputs, targets * math.nan)]] * 2)
    assert steps_dropped(crew) == [0, 0]
    assert math.isnan(crew.final[0][0])


def test_who_has_learnt_nothing_is_not_the_best():
    """Rank 0 has no data, and so no loss; the model that is kept is one that was trained."""
    crew = Crew(Averaging(drop=0.5), 3).play([[], [2.0], [5.0]])  # losses 2 and 5
    assert crew.final == [[-1.0, 1.0]] * 3
    assert steps_dropped(crew) == [0, 0, 1]


@pytest.mark.parametrize(
    ("scores", "drop", "kept"),
    [
        ([1.0, 1.5, 2.1], 1.0, [0, 1]),
        ([1.0, 2.0, math.inf], 1.0, [0, 1]),
        ([math.nan, 3.0, 4.5], 1.0, [1]),
        ([math.nan, math.inf, math.nan], 1.0, [0, 1, 2]),
        ([2.0, 1.0, 1.0], None, [1]),
        ([math.nan, 7.0, 9.0], None, [1]),
        ([-3.0, -1.0, -2.5], 1.0, [0, 2]),
    ],
)
def test_who_is_kept(scores, drop, kept):
    assert [rank for rank in range(3) if is_kept(rank, scores, drop)] == kept


# -- Kaldi's schedule -------------------------------------------------------------------------


def test_jobs_grow_linearly():
    schedule = Schedule(first=1, last=8, period=10, planned=10 * 9 * 8)  # 2 x 72 / 9 = 16
    assert [schedule.jobs(it) for it in range(18)] == [
        1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8, 8,
    ]  # fmt: skip
    iterations = schedule.since(0)
    assert [next(iterations).start for _ in range(4)] == [0, 10, 20, 40]
    inside = next(schedule.since(25))
    assert (inside.number, inside.jobs, inside.start, inside.stop) == (2, 2, 20, 40)


@pytest.mark.parametrize("position", [0, 7])
@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_an_iteration_is_dealt_out_whole(jobs, position):
    iteration = next(Schedule(jobs, jobs, period=4, planned=100).since(position))
    dealt = [n for worker in range(6) for n in iteration.dealt_to(worker, position)]
    assert sorted(dealt) == list(range(position, iteration.stop))
    shares = [len(iteration.dealt_to(worker, position)) for worker in range(jobs)]
    assert max(shares) - min(shares) <= 1


def test_the_learning_rate_falls_and_grows_with_the_jobs():
    schedule = Schedule(first=2, last=4, period=5, planned=60)
    for iteration in schedule.since(0):
        if iteration.start >= 60:
            break
        wanted = iteration.jobs * 0.01 ** (iteration.start / 60)
        assert schedule.rate(iteration, 0.01) == pytest.approx(wanted)
    assert schedule.rate(next(schedule.since(0)), 0.01) == 2.0


def test_steps_are_made_at_the_rate_of_the_schedule():
    """Gradients of 1 bring a weight down by every iteration's rate times the steps of a job."""
    crew = Crew(Averaging(period=2, jobs=1, final_lr=0.1), 3).play([[1.0] * 8] * 3)
    schedule = Schedule(first=1, last=3, period=2, planned=24)
    came_down = 0.0
    for iteration in schedule.since(0):
        shares = [len(range(iteration.start + job, min(24, iteration.stop), iteration.jobs))
                  for job in range(iteration.jobs)]  # fmt: skip
        had_some = [share for share in shares if share]
        if not had_some:
            break
        came_down += schedule.rate(iteration, 0.1) * sum(had_some) / len(had_some)
    assert came_down > 5, "it is more than the start was away from 0"
    assert crew.final[0][0] == pytest.approx(1 - came_down, rel=1e-5)


def test_statistics_of_jobs_weigh_all_minibatches_alike():
    """A layer without momentum: in few jobs or many, each observation counts once."""
    task = Normalised(train=360, momentum=None)
    crew = trained("jobs=1,period=6", task, workers=3, turns=30)  # equal shares in each iteration
    seen = crew.holder.named_answer()["0.running_mean"]
    torch.testing.assert_close(seen, task.open().inputs.mean(0), atol=1e-5, rtol=0)


def test_the_best_job_of_the_first_iteration_is_kept_alone():
    crew = Crew(Averaging(period=1, jobs=2, final_lr=1.0), 2).play([[3.0], [2.0]])
    assert crew.final == [[1 - 2 * 2.0, 1.0]] * 2  # a loss of 2 beats one of 3; the rate is 2
    assert steps_dropped(crew) == [1, 0]


class Noted(Pairs):
    used: ClassVar[list] = []

    def batch(self, indices):
        self.used.append(tuple(indices.tolist()))
        return super().batch(indices)


@dataclass(frozen=True)
class Watched(Quadratic):
    """Knows which minibatches were used."""

    def open(self):
        data = super().open()
        Noted.used.clear()
        return Noted(data.inputs, data.targets)


def all_minibatches(run):
    order = Order(run.task.train, run.minibatch, run.workers, run.seed)
    turns = round(run.stop.epochs * order.batches_per_epoch)
    return Counter(
        tuple(order.indices(worker, turn).tolist())
        for worker in range(run.workers)
        for turn in range(turns)
    )


SCHEDULES = [
    "jobs=1",
    "jobs=1,period=3",
    "jobs=2,period=4,drop=1",
    "jobs=5,period=7",
    "jobs=1,period=1",
]


@pytest.mark.parametrize("every", [1.0, 0.25, 0.1])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("options", SCHEDULES)
def test_every_minibatch_is_used_once_however_often_ranks_meet(options, workers, every):
    strategy = built(f"averaging:{options}")
    if not permits(strategy, workers):
        pytest.skip("more jobs than workers")
    run = small_run(strategy, workers, task=Watched(), evaluation=Evaluation(every=every))
    assert sum(rank.turns for rank in play(run).ranks) == sum(all_minibatches(run).values())
    assert Counter(Noted.used) == all_minibatches(run)


@pytest.mark.parametrize("turns", [0, 1, 7, 24])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("options", SCHEDULES)
def test_the_schedule_exchanges_what_is_stated(options, workers, turns):
    """More schedules than the exam has modes: what tells positions and losses is counted too."""
    strategy = built(f"averaging:{options}")
    if not permits(strategy, workers):
        pytest.skip("more jobs than workers")
    crew = Crew(strategy, workers).play([[2.0] * turns] * workers)
    stated = strategy.exchange(workers, turns, crew.holder.layout)
    assert crew.exchanged == (stated.messages, stated.nbytes)
    assert crew.computed == workers * turns


def test_later_workers_train_less_and_all_meet():
    ended = play(small_run("averaging:jobs=1,period=3", 5)).ranks
    turns = [rank.turns for rank in ended]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] > 2 * turns[4] > 0
    assert len({rank.digest for rank in ended}) == 1


@pytest.mark.parametrize("seconds", [0.003, 0.011, 0.02])
@pytest.mark.parametrize("options", ["jobs=1,period=3", "jobs=2,period=4"])
def test_after_a_stop_by_chance_no_minibatch_is_used_twice(options, seconds, tmp_path):
    uneven = Cluster(jitter=0.5, sample_seconds=1e-4)
    stopped = small_run(
        f"averaging:{options}",
        3,
        task=Watched(),
        cluster=uneven,
        stop=Stop(epochs=2, seconds=seconds),
    )
    ended, _ = simulate(stopped, Plan("teacher", stopped, tmp_path))
    used = Counter(Noted.used)
    whole = replace(stopped, stop=Stop(epochs=2))
    assert 0 < used.total() < all_minibatches(whole).total(), "it was stopped on its way"
    assert used.total() == sum(rank.turns for rank in ended)
    saved = max((tmp_path / "checkpoints").glob("0*"))
    resumed = play_from(whole, resume_from=saved)
    used.update(Noted.used)
    assert max(used.values()) == 1
    # What a rank that stopped early left lying is all that is missing.
    missing = all_minibatches(whole).total() - used.total()
    assert missing <= 2 * (3 + built(f"averaging:{options}").period)
    assert len(set(resumed.digests)) == 1


@pytest.mark.real
def test_jobs_stopped_by_the_clock_replay_identically(tmp_path):
    made = plan(
        tmp_path / "run", "averaging:jobs=1,period=4,drop=5", 3,
        ("stop.epochs=1000", "stop.seconds=0.5"),
    )  # fmt: skip
    ended = runs.train(made)
    assert len({rank.digest for rank in ended}) == 1
    assert runs.replay(made.folder).identical


# -- timing only ------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", [Sgd(), MOMENTUM, ADAM])
@pytest.mark.parametrize("name", MODES)
def test_timing_only_exchanges_what_the_real_run_does(name, optimiser):
    run = small_run(name, 3, task=Normalised(), optimiser=optimiser)
    real, timed = play(run), play(run, timing_only=True)
    assert [(r.turns, r.steps, r.messages, r.bytes, r.time) for r in timed.ranks] == [
        (r.turns, r.steps, r.messages, r.bytes, r.time) for r in real.ranks
    ]


@pytest.mark.parametrize("name", MODES)
def test_many_ranks_only_take_time(name):
    run = small_run(name, 64, task=Sized(train=64 * 4 * 12), stop=Stop(epochs=1))
    assert sum(rank.turns for rank in play(run, timing_only=True).ranks) == 64 * 12


# -- a person's own loop ------------------------------------------------------------------------


def joined(strategy, optimizer=torch.optim.SGD, turns=7, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    data = Quadratic().open()
    chosen = optimizer(model.parameters(), lr=0.05, **options)
    with regatta.join(strategy, model, chosen) as crew:
        for turn in range(turns):
            chosen.zero_grad()
            data.loss(model, data.batch(slice(4 * turn, 4 * turn + 4))).backward()
            crew.step()
    return model, chosen


def test_outer_optimisers_serve_a_joined_loop():
    plain, _ = joined("averaging:period=2")
    for options in ("outer=bmuf,nesterov=true,momentum=0.5", "outer=diloco"):
        model, _ = joined(f"averaging:period=2,{options}")
        assert not torch.allclose(model.weight, plain.weight)
        assert torch.isfinite(model.weight).all()


def test_a_joined_optimiser_forgets_when_it_is_told_to():
    model, optimizer = joined("averaging:period=2,state=reset", momentum=0.9)
    assert not optimizer.state
    kept, optimizer = joined("averaging:period=2", momentum=0.9)
    assert optimizer.state
    assert not torch.allclose(model.weight, kept.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("state=averaged", "use state=local or state=reset"),
        ("drop=1", "leave out drop"),
        ("jobs=1", "nobody can deal them"),
    ],
)
def test_what_a_joined_loop_cannot_do_is_refused(options, message):
    try:
        with pytest.raises(RuntimeError, match=message):
            joined(f"averaging:period=2,{options}")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


# -- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("period=0", "period must be 1 or more, not 0"),
        ("outer=adam", "outer must be one of none, bmuf, diloco, not adam"),
        ("state=global", "state must be one of local, averaged, reset, not global"),
        ("outer=bmuf,momentum=1", "momentum must be from 0 to less than 1, not 1.0"),
        ("outer=bmuf,momentum=-0.1", "momentum must be from 0 to less than 1, not -0.1"),
        ("outer=diloco,outer_lr=0", "outer_lr must be more than 0, not 0.0"),
        ("momentum=0.9", "use outer=bmuf or outer=diloco"),
        ("outer_lr=0.7", "use outer=bmuf or outer=diloco"),
        ("nesterov=true", "nesterov is for outer=bmuf"),
        ("outer=diloco,nesterov=true", "nesterov is for outer=bmuf"),
        ("cntk_compat=true", "cntk_compat is for outer=bmuf"),
        ("outer=diloco,cntk_compat=true", "cntk_compat is for outer=bmuf"),
        ("drop=0", "drop must be more than 0, not 0.0"),
        ("drop=nan", "drop must be more than 0, not nan"),
        ("jobs=0", "jobs must be 1 or more, not 0"),
        ("jobs=1,final_lr=0", "final_lr must be more than 0, not 0.0"),
        ("final_lr=0.5", "add jobs"),
        ("jobs=1,outer=bmuf", "leave out outer=bmuf"),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(ValueError, match=r"^averaging: ") as refused:
        built(f"averaging:{options}")
    assert message in str(refused.value)


def test_more_jobs_than_workers_are_refused():
    with pytest.raises(ValueError, match="use jobs=2 or --workers 3"):
        small_run("averaging:jobs=3", 2)
    assert permits(built("averaging:jobs=3"), 3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("outer=diloco", "outer"),
        ("outer=bmuf,momentum=0.5", "outer"),
        ("outer=bmuf,outer_lr=0.5", "outer"),
        ("state=reset", "forgets"),
        ("jobs=1", "falls"),
        ("outer=bmuf", ""),
        ("jobs=1,final_lr=1", ""),
        ("drop=1,state=averaged", ""),
    ],
)
def test_what_makes_one_worker_unlike_plain(options, why):
    told = built(f"averaging:{options}").unlike_plain
    assert why in told
    assert bool(told) == bool(why)
