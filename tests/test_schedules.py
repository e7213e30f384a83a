"""Learning rates in the course of a run: by formula, by hand, and alike wherever they must be."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from helpers import Quadratic, built, layers_for, play, play_from, small_run
from hypothesis import given
from hypothesis import strategies as st

from regatta import checkpoint, config, recipes
from regatta.choices import Replayer
from regatta.config import Run, Stop
from regatta.data.order import Order, mixed_seed
from regatta.fingerprint import weights_digest
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.schedules import Decay, Fixed, Halving, Hold, Kaldi, Moment, Scaling
from regatta.pace import Pace
from regatta.strategies.averaging import Averaging

UNEVEN = Halving(theta=0.2)  # on the quadratic below: enough gain at first, too little later


def moment(epochs=0.0, planned=10.0, minibatches=0.0):
    return Moment(epochs, planned, minibatches)


# -- formulas -------------------------------------------------------------------------------


@given(st.floats(0, 100), st.integers(0, 10_000))
def test_schedules_by_formula(epochs, minibatches):
    at = moment(epochs, 20.0, minibatches)
    assert Fixed().rate(at) == Halving().rate(at) == 1.0
    assert Decay(by=0.01).rate(at) == 1 / (1 + 0.01 * minibatches)
    assert Decay(by=0.01, form="exponential").rate(at) == pytest.approx(
        math.exp(minibatches * math.log(0.99))
    )
    assert Kaldi(final=0.2).rate(at) == pytest.approx(0.2 ** min(1, epochs / 20))


def test_kaldi_ends_at_its_final_rate_and_stays_there():
    assert Kaldi(final=0.1).rate(moment(0)) == 1.0
    assert Kaldi(final=0.1).rate(moment(5)) == pytest.approx(math.sqrt(0.1))
    assert Kaldi(final=0.1).rate(moment(10)) == Kaldi(final=0.1).rate(moment(15)) == 0.1


def test_hold_stays_then_falls_in_a_straight_line():
    hold = Hold(until=0.6, final=0.2)
    rates = [hold.rate(moment(epochs)) for epochs in (0, 3, 6, 7, 8, 10, 15)]
    assert rates == pytest.approx([1, 1, 1, 0.8, 0.6, 0.2, 0.2])


def test_scaling_follows_workers_or_samples():
    assert Scaling().rate(3, workers=8, growth=4) == 1.0
    assert Scaling("workers").rate(0, workers=8, growth=4) == 8.0
    assert Scaling("samples").rate(0, workers=8, growth=4) == 32.0
    assert Scaling("samples").rate(0, workers=1, growth=0.5) == 0.5


def test_a_warm_up_rises_in_a_straight_line():
    warm = Scaling("workers", warm_up=2.0)
    rates = [warm.rate(epochs, workers=5, growth=1) for epochs in (0, 0.5, 1, 1.5, 2, 3)]
    assert rates == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ((5.0,), 1.0),  # the first has nothing to be compared with
        ((5.0, 4.0, 3.0), 1.0),
        ((5.0, 4.75), 1.0),  # exactly enough
        ((5.0, 4.76), 0.5),
        ((5.0, 6.0, 5.0), 0.5),  # what was lost and won again is gain, too
        ((5.0, 5.0, 5.0, 4.0, 3.9), 0.125),
        ((5.0, math.nan, 5.0), 0.25),
    ],
)
def test_halving_by_scores_of_a_loss(scores, found):
    run = small_run("single", schedule=Halving(theta=0.25))
    pace = Pace(run, Order(240, 4, 1, 0), alone=False, planned=2.0)
    for score in scores:
        pace.hear(score)
    assert pace.found == found


def test_halving_by_scores_where_more_is_better():
    run = Run(schedule=Halving(theta=0.01, factor=0.25))
    assert run.task.metric.higher_is_better
    pace = Pace(run, Order(240, 4, 1, 0), alone=False, planned=2.0)
    found = []
    for score in (0.5, 0.6, 0.605, 0.7, 0.6):
        pace.hear(score)
        found.append(pace.found)
    assert found == [1, 1, 0.25, 0.25, 0.0625]
    other = Pace(run, Order(240, 4, 1, 0), alone=False, planned=2.0)
    other.restore(json.loads(json.dumps(pace.state())))
    other.hear(0.7)
    assert other.found == 0.0625


# -- configuration --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("schedule=halving:factor=1", "halving: factor must be between 0 and 1"),
        ("schedule=halving:factor=0", "halving: factor must be between 0 and 1"),
        ("schedule=decay:by=1", "decay: by must be from 0 to less than 1"),
        ("schedule=decay:by=-1", "decay: by must be from 0 to less than 1"),
        ("schedule=decay:form=linear", "decay: form must be inverse or exponential"),
        ("schedule=kaldi:final=0", "kaldi: final must be more than 0"),
        ("schedule=hold:until=1", "hold: until must be from 0 to less than 1"),
        ("schedule=hold:final=-1", "hold: final must be 0 or more"),
        ("schedule=halves", "did you mean halving"),
        ("schedule.theta=1", "theta"),
        ("scaling.by=worker", "scaling.by must be none, workers or samples"),
        ("scaling.warm_up=1", "set scaling.by first"),
        ("early_minibatches=0,4", "early_minibatches must be 1 or more"),
        ("early_minibatches=4,x", "early_minibatches='4,x': expected a value"),
        ("stop.patience=-1", "stop.patience must be 0 or more"),
    ],
)
def test_wrong_values_are_refused_by_name(setting, complaint):
    with pytest.raises(ValueError, match=complaint):
        config.assign(Run(), [setting])


@pytest.mark.parametrize(
    "changes", [{"schedule": Decay()}, {"schedule": Halving()}, {"scaling": Scaling("workers")}]
)
def test_jobs_have_rates_of_their_own(changes):
    with pytest.raises(
        ValueError, match="jobs=1 has a learning-rate schedule and a scaling of its own"
    ):
        small_run(Averaging(jobs=1), 2, **changes)
    assert small_run(Averaging(), 2, **changes)


def test_every_minibatch_must_suit_the_strategy():
    with pytest.raises(ValueError, match="micro=3 pieces cannot be cut from a minibatch of 2"):
        small_run("pipeline:micro=3", 2, early_minibatches=(2,))


def test_a_run_with_a_schedule_is_read_back_as_it_was():
    settings = [
        "schedule=halving:theta=0.01", "scaling.by=samples", "scaling.warm_up=0.5",
        "early_minibatches=32,64", "stop.patience=3",
    ]  # fmt: skip
    base = recipes.load("teacher")
    run = config.assign(base, settings)
    assert run.early_minibatches == (32, 64)
    assert run.schedule == Halving(theta=0.01)
    assert config.from_json(json.loads(json.dumps(config.to_json(run))), base) == run
    assert config.assign(run, ["early_minibatches=", "schedule=fixed"]).early_minibatches == ()


# -- one worker, against plain PyTorch ------------------------------------------------------


def by_hand(run, rate, after=lambda gain: 1.0):
    """A loop without Regatta's engine: the digest of its weights, and the rates that it took.

    `rate(turn, epochs)` multiplies the learning rate; so does what `after` makes of the gain of
    every evaluation.
    """
    data = run.task.open()
    torch.manual_seed(mixed_seed(run.seed))
    model = run.task.model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=run.optimiser.lr, momentum=run.optimiser.momentum
    )
    turn, found, last, rates = 0, 1.0, None, []
    for epoch in range(int(run.stop.epochs)):
        early = run.early_minibatches
        minibatch = early[epoch] if epoch < len(early) else run.minibatch
        generator = torch.Generator().manual_seed(mixed_seed(run.seed, epoch))
        shuffled = torch.randperm(data.train_samples, generator=generator)
        batches = data.train_samples // minibatch
        for number in range(batches):
            rates.append(found * rate(turn, epoch + number / batches))
            for group in optimizer.param_groups:
                group["lr"] = run.optimiser.lr * rates[-1]
            optimizer.zero_grad()
            chosen = shuffled[number * minibatch : (number + 1) * minibatch]
            data.loss(model, data.batch(chosen)).backward()
            optimizer.step()
            turn += 1
        score = data.evaluate(model)["loss"]
        found *= 1.0 if last is None else after(last - score)
        last = score
    plain = torch.cat([*(p.detach().reshape(-1) for p in model.parameters()), torch.ones(1)])
    return weights_digest(plain), rates


def schedule_cases():
    per_epoch = 120 / 4
    yield "fixed", {}, lambda turn, epochs: 1.0
    yield "decay", {"schedule": Decay(by=0.02)}, lambda turn, epochs: 1 / (1 + 0.02 * turn)
    yield (
        "exponential",
        {"schedule": Decay(by=0.02, form="exponential")},
        lambda turn, epochs: 0.98**turn,
    )
    yield "kaldi", {"schedule": Kaldi(0.3)}, lambda turn, epochs: 0.3 ** (turn / per_epoch / 4)
    yield "early", {"early_minibatches": (3, 24)}, lambda turn, epochs: 1.0
    yield (
        "early decay",
        {"early_minibatches": (3, 24), "schedule": Decay(by=0.01)},
        lambda turn, epochs: 1 / (1 + 0.01 * turn),
    )
    yield (
        "early kaldi",
        {"early_minibatches": (3, 24), "schedule": Kaldi(0.3)},
        lambda turn, epochs: 0.3 ** (epochs / 4),
    )
    yield (
        "early scaled",
        {"early_minibatches": (2, 8), "scaling": Scaling("samples", warm_up=1.0)},
        lambda turn, epochs: 1.0 if epochs < 1 else 4.0 if epochs < 2 else 2.0,
    )


@pytest.mark.parametrize(
    ("changes", "rate"), [pytest.param(c, r, id=name) for name, c, r in schedule_cases()]
)
@pytest.mark.parametrize(
    ("strategy", "momentum"),
    [("single", 0.0), ("single", 0.9), ("averaging", 0.9), ("ring:chunks=3", 0.0)],
)
def test_one_worker_is_a_plain_loop_bit_for_bit(strategy, changes, rate, momentum):
    run = small_run(
        strategy, task=Quadratic(train=120), optimiser=Sgd(lr=0.01, momentum=momentum),
        stop=Stop(epochs=4), **changes,
    )  # fmt: skip
    assert set(play(run).digests) == {by_hand(run, rate)[0]}


@pytest.mark.parametrize("early", [(), (3, 24)])
@pytest.mark.parametrize("strategy", ["single", "parameter-server", "pipeline", "elastic"])
def test_one_worker_halves_as_a_plain_loop_does(strategy, early):
    strategy = built(strategy)
    run = small_run(
        strategy, schedule=UNEVEN, early_minibatches=early, optimiser=Sgd(lr=0.004, momentum=0.5),
        task=Quadratic(layers=layers_for(strategy)), stop=Stop(epochs=7),
    )  # fmt: skip
    digest, rates = by_hand(run, lambda turn, epochs: 1.0, UNEVEN.after)
    assert {1.0, 0.5, 0.25} <= set(rates)
    assert rates == sorted(rates, reverse=True)
    if not strategy.unlike_plain:
        assert set(play(run).digests) == {digest}
    else:
        assert play(run).digests != [digest]


def test_a_fixed_rate_takes_no_detour(monkeypatch):
    monkeypatch.setattr(Pace, "__call__", lambda *_: pytest.fail("a fixed rate was asked for"))
    played = play(small_run("all-reduce", 2, early_minibatches=(2,)))
    monkeypatch.undo()
    assert played.digests == play(small_run("all-reduce", 2, early_minibatches=(2,))).digests


# -- many workers ---------------------------------------------------------------------------


def answer_of(run, folder):
    play_from(run, folder=folder)
    saved = checkpoint.newest(folder / "checkpoints") / checkpoint.ANSWER
    return checkpoint.load_answer(saved)[0]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": Decay(by=0.05)},
        {"schedule": Kaldi(0.05)},
        {"schedule": Halving(theta=1e9)},
        {"schedule": Decay(by=0.05), "early_minibatches": (2, 8)},
        {"early_minibatches": (8, 2), "scaling": Scaling("samples")},
    ],
)
def test_workers_that_sum_are_one_with_all_their_samples(changes, workers, tmp_path):
    together = small_run(
        "all-reduce", workers, optimiser=Sgd(lr=0.01, momentum=0.5), stop=Stop(epochs=4), **changes
    )
    lr = 0.01 * workers if "scaling" in changes else 0.01  # one worker scales by no workers
    alone = replace(
        together, strategy=built("single"), workers=1, optimiser=Sgd(lr=lr, momentum=0.5),
        minibatch=4 * workers,
        early_minibatches=tuple(workers * size for size in together.early_minibatches),
    )  # fmt: skip
    found = [answer_of(run, tmp_path / run.strategy.name) for run in (together, alone)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    fixed = {"schedule": Fixed(), "scaling": Scaling()}
    other = answer_of(replace(together, **fixed), tmp_path / "fixed")
    assert not torch.allclose(other["weight"], found[0]["weight"], rtol=1e-3)


@pytest.fixture
def steps(monkeypatch):
    """Every step of a run: its rank, what it steps, the version before it, and its rate."""
    taken = []
    ask = Pace.__call__

    def noted(pace, part):
        rate = ask(pace, part)
        taken.append((part.comm.rank, part.span, part.version, rate))
        return rate

    monkeypatch.setattr(Pace, "__call__", noted)
    return taken


TOGETHER = [
    "all-reduce", "all-reduce:compress=int8", "all-reduce:compress=power-sgd/1",
    "parameter-server", "parameter-server:servers=2", "parameter-server:mode=sync,servers=2",
    "parameter-server:mode=sync,backup=1", "parameter-server:mode=mixed,group=2",
    "parameter-server:damp=staleness", "ring", "ring:chunks=3", "ring:group=2,chunks=2",
    "ring:compress=int8,chunks=2", "pipeline", "pipeline:micro=2",
]  # fmt: skip
APART = ["averaging", "averaging:period=4,outer=bmuf", "averaging:drop=1", "elastic:period=2",
         "elastic:mode=async", "gossip", "gossip:compress=int8"]  # fmt: skip


@pytest.mark.parametrize("spec", TOGETHER)
def test_who_steps_together_goes_by_the_gradients_in_the_weights(spec, steps):
    play(small_run(spec, 3, schedule=Decay(by=0.03), stop=Stop(epochs=1)))
    servers = built(spec).num_servers
    assert {rank for rank, *_ in steps} <= set(range(3, 6) if servers else range(3))
    used = 40 if "backup" in spec else 60
    assert used - 4 <= max(version for _, _, version, _ in steps) < used
    for _, _, version, rate in steps:
        assert rate == 1 / (1 + 0.03 * (version / 3))


@pytest.mark.parametrize("spec", APART)
def test_who_steps_apart_goes_by_its_own_steps(spec, steps):
    play(small_run(spec, 3, schedule=Decay(by=0.03), stop=Stop(epochs=1.5)))
    for worker in range(3):
        rates = [rate for rank, _, _, rate in steps if rank == worker]
        assert rates == [1 / (1 + 0.03 * step) for step in range(30)]
    assert len(steps) == 90


def test_a_rank_that_stops_early_changes_no_rate_of_one_rank_alone(steps, tmp_path):
    """Chance ends the stream of rank 1 in turn 7, of rank 2 in turn 4; then the run goes on."""
    run = small_run("all-reduce", 3, schedule=Decay(by=0.03), stop=Stop(epochs=2))
    recorded = {(0, 1, "stop"): [7], (0, 2, "stop"): [4]}
    play_from(run, lambda rank: Replayer(recorded, rank), folder=tmp_path)
    assert {version for _, _, version, _ in steps} >= {0, 3, 12, 14, 16, 18, 20, 21, 22}
    saved = checkpoint.newest(tmp_path / "checkpoints")
    resumed = play_from(run, resume_from=saved)
    assert len(set(resumed.digests)) == 1
    of_version = {}
    for rank, _, version, rate in steps:
        of_version.setdefault(version, {})[rank] = rate
    for version, rates in of_version.items():
        assert rates == dict.fromkeys(range(3), 1 / (1 + 0.03 * (version / 3)))
    assert max(of_version) >= 117


def test_planned_ends_where_the_run_was_first_planned_to(steps):
    play(small_run("single", schedule=Kaldi(0.1), stop=Stop(epochs=9, samples=480)))
    assert len(steps) == 120
    assert steps[60][3] == pytest.approx(math.sqrt(0.1))


def test_a_schedule_also_drives_adam():
    """Twice the rate from half the learning rate is the same rate."""
    run = small_run("all-reduce", 2, optimiser=Adam(lr=0.04))
    scaled = replace(run, optimiser=Adam(lr=0.02), scaling=Scaling("workers"))
    assert play(run).digests == play(scaled).digests
