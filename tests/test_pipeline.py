"""A model in stages: where it is cut, who computes what when, and that it learns the same."""

from __future__ import annotations

import itertools
import random
import weakref
from collections import namedtuple

import pytest
import torch
from helpers import Crew, Quadratic, Shard, Shift, built, play, play_from, small_run
from real import command, light_fuse, plan
from test_golden import log_of
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import regatta
from regatta import checkpoint, runs
from regatta.cluster import Cluster
from regatta.config import Run, Stop
from regatta.events import Checkpointed
from regatta.learn.body import Body
from regatta.learn.layers import even_bounds, split
from regatta.learn.layout import Layout
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.replica import Replica
from regatta.learn.stage import chunks
from regatta.race.entries import all_specs
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.pipeline import Pipeline, passes
from regatta.strategies.single import Single
from regatta.tasks.teacher import Teacher
from regatta.worlds.launch import RankFailed, launch
from regatta.worlds.processes import ProcessComm, connect, run_blocking

NEARLY_FREE = Cluster(sample_seconds=1.0, latency=1e-9, bandwidth=1e18)

# -- where a model is cut -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_stage_is_as_small_as_can_be(seed):
    draw = random.Random(seed)
    sizes = tuple(draw.choice([0, 1, 5, 9, 40]) for _ in range(8))
    for stages in range(1, 9):
        bounds = even_bounds(sizes, stages)
        assert len(bounds) == stages + 1
        assert bounds == tuple(sorted(set(bounds))), "every stage has a layer"
        every = itertools.combinations(range(1, 8), stages - 1)
        least = min(_largest(sizes, (0, *cuts, 8)) for cuts in every)
        assert _largest(sizes, bounds) == least


def _largest(sizes, bounds):
    return max(sum(sizes[a:b]) for a, b in itertools.pairwise(bounds))


def test_an_activation_stays_with_the_layer_before_it():
    assert even_bounds((144, 0, 272, 0, 51), 2) == (0, 2, 5)
    assert even_bounds((144, 0, 272, 0, 51), 3) == (0, 2, 4, 5)
    assert even_bounds((144, 0, 272, 0, 51), 5) == (0, 1, 2, 3, 4, 5)


def test_the_stages_together_are_the_model():
    model = deep()
    layout = Layout(model)
    for stages in range(1, 7):
        slices = split(model, layout, stages)
        assert [layer for part in slices for layer in part.layers] == list(model)
        assert sum(part.stretch.num_parameters for part in slices) == layout.num_parameters
        assert [b for part in slices for b in part.stretch.buffers] == layout.buffers
        vector = torch.zeros(layout.numel)
        for part in slices:
            part.stretch.paste(part.stretch.cut(layout.initial()), vector)
        assert torch.equal(vector[:-1], layout.initial()[:-1])


def deep():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 9), nn.ReLU(inplace=True),
        nn.Linear(9, 3),
    )  # fmt: skip


class Own(nn.Module):
    """Not sequential, but it tells its layers."""

    def __init__(self, backwards=False):
        super().__init__()
        self.head, self.tail = nn.Linear(6, 8), nn.Linear(8, 3)
        self.backwards = backwards

    def layers(self):
        return [self.tail, self.head] if self.backwards else [self.head, nn.Tanh(), self.tail]

    def forward(self, inputs):
        return self.tail(torch.tanh(self.head(inputs)))


class Outside(nn.Sequential):
    """Has a weight that is no layer's."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.Linear(8, 3))
        self.scale = nn.Parameter(torch.ones(1))

    def layers(self):
        return [self[0], self[1]]


class Residual(nn.Sequential):
    """Sequential by name only."""

    def forward(self, inputs):
        return inputs + super().forward(inputs)


def tied():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(nn.Linear(6, 8), first, second, nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "stages", "says"),
    [
        (nn.Linear(6, 3), 1, "Linear is no nn.Sequential: give it a method layers()"),
        (Residual(nn.Linear(6, 6)), 1, "Residual is no nn.Sequential"),
        (deep(), 7, "the model has 6 for 7 workers: use --workers 6 or fewer"),
        (Own(backwards=True), 2, "in the order in which the model defines them"),
        (Outside(), 2, "some belong to no layer"),
        (tied(), 4, "to several"),
    ],
)
def test_what_cannot_be_split_is_refused_with_a_remedy(model, stages, says):
    with pytest.raises(ValueError, match="use ") as error:
        split(model, Layout(model), stages)
    assert says in str(error.value)


def test_what_can_be_split_is_found():
    nested = nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3))
    for model in (nested, Own()):
        assert [len(part.layers) for part in split(model, Layout(model), 3)] == [1, 1, 1]
    model = tied()  # two stages keep the two layers together, or cannot
    assert [len(part.layers) for part in split(model, Layout(model), 1)] == [4]


# -- schedules ------------------------------------------------------------------------------


def _written(order):
    return " ".join(f"{way[0].upper()}{number}" for way, number in order)


def test_schedules_read_as_in_the_papers():
    assert _written(passes("gpipe", 0, 2, 3)) == "F0 F1 F2 B0 B1 B2"
    assert _written(passes("1f1b", 0, 3, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert _written(passes("1f1b", 1, 3, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert _written(passes("1f1b", 2, 3, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert _written(passes("1f1b", 0, 5, 2)) == "F0 F1 B0 B1"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 4), (3, 1), (3, 2), (4, 4), (5, 20)])
def test_every_micro_batch_goes_there_and_back_once(schedule, stages, count):
    for stage in range(stages):
        order = passes(schedule, stage, stages, count)
        assert len(order) == len(set(order)) == 2 * count
        holds, most = 0, 0
        for way, number in order:
            assert way == "forward" or order.index(("forward", number)) < order.index((way, number))
            holds += 1 if way == "forward" else -1
            most = max(most, holds)
        assert most == (count if schedule == "gpipe" else min(stages - stage, count))


class Watched(nn.Linear):
    """Counts which of its outputs are still held by somebody."""

    def __init__(self):
        super().__init__(3, 3)
        self.outputs, self.most = [], 0

    def forward(self, inputs):
        output = super().forward(inputs)
        self.outputs = [ref for ref in self.outputs if ref() is not None]
        self.outputs.append(weakref.ref(output))
        self.most = max(self.most, len(self.outputs))
        return output


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_holds_no_more_than_its_schedule_says(schedule):
    def four():
        return nn.Sequential(*[Watched() for _ in range(4)])

    crew = Crew(Pipeline(schedule, micro=2), 4, four, squared_error, Sgd(lr=0.01))
    crew.play([[(torch.randn(4, 3), torch.randn(4, 3))] * 2 for _ in range(4)])
    # The last stage's output goes into the loss, and is held by nobody but the graph.
    most = [crew.replicas[stage].model[stage].most for stage in range(3)]
    assert most == ([8, 8, 8] if schedule == "gpipe" else [4, 3, 2])


def squared_error(model, batch):
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("stages", [2, 4])
def test_the_bubble_is_as_the_papers_say(schedule, micro, stages):
    def equal():
        return nn.Sequential(*[Shift(number) for number in range(stages)])

    crew = Crew(Pipeline(schedule, micro), stages, equal, cluster=NEARLY_FREE)
    crew.play_counts([3] * stages)
    count = stages * micro
    for comm in crew.world.comms:
        idle = 1 - comm.traffic.computing / crew.world.now
        assert idle == pytest.approx((stages - 1) / (count + stages - 1), abs=0.005)


def test_a_stage_takes_its_share_of_a_turn():
    """All stages together take the time of the whole model, a third of it forward."""
    crew = Crew(Pipeline(), 2, deep, squared_error, Sgd(lr=0.01), NEARLY_FREE)
    crew.play([[samples(4)], [samples(4)]])
    first, last = (comm.traffic.computing for comm in crew.world.comms)
    assert first + last == pytest.approx(2.0)  # minibatches of a sample, as shards say
    assert first / last == pytest.approx((56 + 16) / (81 + 30))  # parameters


def samples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randn(count, 3, generator=generator)


# -- the same as without stages -------------------------------------------------------------


def trained(strategy, shards, model=deep, loss=squared_error, optimiser=None):
    crew = Crew(strategy, len(shards), model, loss, optimiser or Sgd(lr=0.1, momentum=0.9))
    return crew.play(shards).holder.weights


def shards_of(*counts, size=6):
    return [[samples(size, 100 * w + n) for n in range(c)] for w, c in enumerate(counts)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("optimiser", [Sgd(lr=0.1, momentum=0.9), Adam(lr=0.01)])
@pytest.mark.parametrize("counts", [(4, 4), (3, 3, 3), (2, 2, 2, 2, 2), (0, 3, 1), (4, 0, 1)])
def test_it_learns_what_all_reduce_learns(schedule, optimiser, counts):
    shards = shards_of(*counts)
    ours = trained(Pipeline(schedule), shards, optimiser=optimiser)
    torch.testing.assert_close(ours, trained(AllReduce(), shards, optimiser=optimiser))
    shards[2 % len(counts)][0] = samples(6, seed=999)  # and not what it would from other data
    other = trained(AllReduce(), shards, optimiser=optimiser)
    assert not torch.allclose(ours, other, atol=1e-3)


def without_norm():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("micro", [2, 3, 7])
def test_pieces_of_a_minibatch_weigh_as_much_as_their_samples(micro):
    """Seven samples in two pieces are three and four."""
    shards = shards_of(3, 2, size=7)
    ours = trained(Pipeline(micro=micro), shards, without_norm)
    torch.testing.assert_close(ours, trained(AllReduce(), shards, without_norm))


def test_statistics_of_pieces_are_averaged():
    def norm():
        return nn.Sequential(nn.BatchNorm1d(6, momentum=1.0, affine=False), nn.Linear(6, 3))

    batch = samples(8)
    crew = Crew(Pipeline(micro=2), 2, norm, squared_error).play([[batch], [batch]])
    kept = crew.holder.named_answer()
    halves = batch[0].split(4)
    torch.testing.assert_close(kept["0.running_mean"], batch[0].mean(0))
    torch.testing.assert_close(kept["0.running_var"], sum(half.var(0) for half in halves) / 2)


def with_dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_one_worker_with_dropout_is_plain_bit_for_bit():
    shards = shards_of(5)
    ours, plain = (trained(s, shards, with_dropout) for s in (Pipeline(), Single()))
    assert torch.equal(ours, plain)


class Masks(nn.Dropout):
    def __init__(self):
        super().__init__(0.5)
        self.seen = []

    def forward(self, inputs):
        output = super().forward(torch.ones_like(inputs))
        self.seen.append(tuple(output.flatten().tolist()))
        return inputs * output


def test_every_micro_batch_and_stage_has_its_own_dropout():
    def model():
        return nn.Sequential(nn.Linear(6, 8), Masks(), nn.Linear(8, 8), Masks(), nn.Linear(8, 3))

    crew = Crew(Pipeline(micro=2), 2, model, squared_error).play(shards_of(3, 3, size=8))
    first, last = crew.replicas
    masks = first.model[1].seen + last.model[3].seen
    assert len(masks) == len(set(masks)) == 2 * 3 * 2 * 2


# -- layers of all kinds --------------------------------------------------------------------


class Shared(nn.Sequential):
    """One layer, applied twice; its weights are learnt with both."""

    def __init__(self):
        again = nn.Linear(8, 8)
        super().__init__(nn.Linear(6, 8), again, nn.Tanh(), again, nn.Tanh(), nn.Linear(8, 3))


class Twice(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.scale = self.shift = nn.Parameter(torch.ones(8))

    def forward(self, inputs):
        return inputs * self.scale + self.shift


def two_names():
    return nn.Sequential(nn.Linear(6, 8), Twice(), nn.Linear(8, 3))


def frozen():
    model = without_norm()
    model[0].weight.requires_grad = False
    return model


def no_weights_at_the_ends():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Linear(8, 3), nn.Identity())


def writing_in_place():
    inner = (nn.Linear(6, 8), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(8, 8))
    return nn.Sequential(*inner, nn.ReLU(inplace=True), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "workers"),
    [
        (Shared, 2), (Shared, 3), (frozen, 3), (frozen, 5), (no_weights_at_the_ends, 4), (Own, 3),
        (tied, 2), (two_names, 3), (writing_in_place, 3), (writing_in_place, 4),
        (writing_in_place, 6),
    ],
)  # fmt: skip
def test_layers_of_all_kinds_learn_the_same(model, workers):
    shards = shards_of(*[3] * workers)
    ours = trained(Pipeline(), shards, model)
    torch.testing.assert_close(ours, trained(AllReduce(), shards, model))


def test_whole_numbers_may_go_from_stage_to_stage():
    def model():
        return nn.Sequential(nn.Flatten(), nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))

    def loss(model, batch):
        return cross_entropy(model(batch["words"]), batch["label"])

    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(5, (6, 2), generator=generator)
        return {"words": words, "label": torch.randint(3, (6,), generator=generator)}

    shards = [[batch(10 * worker + n) for n in range(3)] for worker in range(4)]
    ours = trained(Pipeline(micro=2), shards, model, loss)
    torch.testing.assert_close(ours, trained(AllReduce(), shards, model, loss))


def test_a_batch_of_another_size_is_announced():
    shards = [[samples(size, size) for size in sizes] for sizes in ((4, 4, 6), (4, 5, 6))]
    crew = Crew(Pipeline(), 2, without_norm, squared_error).play(shards)
    sizes_seen = [4, 4, 4, 5, 6, 6]
    changes = 1 + sum(a != b for a, b in itertools.pairwise(sizes_seen))
    stated = Pipeline().exchange(2, 3, crew.holder.layout).messages
    assert crew.exchanged[0] == stated - 1 + changes
    torch.testing.assert_close(crew.holder.weights, trained_plain(AllReduce(), shards))


def trained_plain(strategy, shards):
    return trained(strategy, shards, without_norm, optimiser=Sgd(lr=1.0))


def test_the_bytes_are_those_of_activations_shapes_and_weights():
    crew = Crew(Pipeline(), 3, deep, squared_error).play(shards_of(4, 4, 4, size=6))
    layout = crew.holder.layout
    stages = split(crew.holder.model, layout, 3)
    assert [len(stage.layers) for stage in stages] == [3, 2, 1]
    activations = 4 * 3 * 6 * (8 + 9) * 4  # turns, minibatches, samples, widths, bytes
    shapes = (2 + 2) * 8
    assert crew.exchanged[1] == 2 * activations + shapes + 3 * layout.nbytes


# -- losses and batches of all kinds --------------------------------------------------------


def _no_call(model, batch):
    return batch[0].sum()


def _two_calls(model, batch):
    return model(batch[0]).sum() + model(batch[0]).sum()


def _looks_inside(model, batch):
    return squared_error(model, batch) + sum(p.square().sum() for p in model.parameters())


@pytest.mark.parametrize(
    ("loss", "error", "says"),
    [
        (_no_call, ValueError, "must call the model, and this one does not"),
        (_two_calls, ValueError, "must call the model once, and this one does 2 times"),
        (_looks_inside, AttributeError, "asks for its 'parameters'"),
    ],
)
def test_a_loss_that_cannot_be_split_is_refused(loss, error, says):
    with pytest.raises(error, match=says):
        trained(Pipeline(), shards_of(1, 1), loss=loss)


def test_a_layer_that_gives_no_tensor_is_named():
    def model():
        return nn.Sequential(nn.LSTM(6, 8), nn.Linear(8, 3))

    with pytest.raises(ValueError, match="ends with LSTM, which gives a tuple"):
        trained(Pipeline(), shards_of(1, 1), model)


def test_batches_of_all_kinds_are_cut_along_their_samples():
    Named = namedtuple("Named", "inputs names")
    batch = {"pair": Named(torch.arange(5), [torch.arange(5.0), None]), "factor": 3}
    pieces = chunks(batch, 2)
    assert [share for _, share in pieces] == [0.4, 0.6]
    first, second = (piece for piece, _ in pieces)
    assert first["pair"].inputs.tolist() == [0, 1]
    assert second["pair"].names[0].tolist() == [2, 3, 4]
    assert second["pair"].names[1] is None
    assert second["factor"] == 3
    assert chunks(2.0, 1) == [(2.0, 1.0)]


@pytest.mark.parametrize(
    "batch", [2.0, torch.zeros(1, 3), torch.tensor(1.0), (torch.zeros(4), torch.zeros(6))]
)
def test_batches_that_cannot_be_cut_are_refused(batch):
    with pytest.raises(ValueError, match="use micro=1, or a smaller micro"):
        chunks(batch, 2)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("pipeline:schedule=zero", "pipeline: schedule must be gpipe or 1f1b, not zero"),
        ("pipeline:micro=0", "pipeline: micro must be 1 or more, not 0"),
    ],
)
def test_wrong_options_are_refused(spec, says):
    with pytest.raises(ValueError, match=says):
        built(spec)


def test_a_minibatch_smaller_than_its_pieces_is_refused():
    with pytest.raises(ValueError, match="use micro=4 or less, or a larger minibatch"):
        Run(strategy=Pipeline(micro=5), minibatch=4)


# -- whole runs -----------------------------------------------------------------------------


def test_the_log_of_a_pipeline():
    """Shifts of 0, 1/8 and 2/8 here, of 3/8 and 4/8 there; both workers' minibatches are a 1.

    Forward takes 0.2 s here and 0.133 s there, backward twice that; 4 bytes take 0.25 s.
    """
    batch = torch.ones(1, 1)
    assert log_of(Pipeline(), [[batch], [batch]]) == [
        "0.000 rank 0 sends nothing v0 to 1",  # there is a turn
        "0.125 rank 1 takes nothing v0 from 0",
        "0.200 rank 0 sends 1 v0 to 1",  # the shape, 1 x 1, in 16 bytes
        "0.200 rank 0 sends 1.375 v0 to 1",
        "0.400 rank 0 sends 1.375 v0 to 1",  # of the same shape
        "1.325 rank 1 takes 1 v0 from 0",
        "1.575 rank 1 takes 1.375 v0 from 0",
        "1.975 rank 1 sends 1 v0 to 0",  # there and back; the loss is the output
        "1.975 rank 1 takes 1.375 v0 from 0",
        "2.350 rank 0 takes 1 v0 from 1",
        "2.375 rank 1 sends 1 v0 to 0",
        "2.750 rank 0 takes 1 v0 from 1",
        "3.150 rank 0 sends nothing v0 to 1",  # that was all
        "3.275 rank 1 takes nothing v0 from 0",
    ]


SMALL = Teacher(inputs=8, hidden=(16, 16), classes=3, train=256, dev=64)


@pytest.mark.parametrize("spec", ["pipeline", "pipeline:schedule=gpipe", "pipeline:micro=2"])
@pytest.mark.parametrize("workers", [1, 3, 5])
def test_timing_only_takes_the_same_time_and_messages(spec, workers):
    run = small_run(spec, workers, task=SMALL)
    computed, timed = play(run).ranks, play(run, timing_only=True).ranks
    for one, other in zip(computed, timed, strict=True):
        for name in ("time", "turns", "steps", "messages", "bytes", "computing", "waiting"):
            assert getattr(one, name) == pytest.approx(getattr(other, name)), name


def test_a_stop_by_the_clock_ends_all_stages_at_the_same_turn():
    whole = play(small_run("pipeline", 3, task=SMALL)).ranks
    half = whole[0].time / 2
    ended = play(small_run("pipeline", 3, task=SMALL, stop=Stop(epochs=2, seconds=half))).ranks
    assert len({rank.turns for rank in ended}) == len({rank.digest for rank in ended}) == 1
    assert 0 < ended[0].turns < whole[0].turns


def test_only_the_first_stage_asks_whether_to_go_on():
    """A stage that stopped by itself would leave the others waiting."""
    asked = itertools.count()
    played = play_from(small_run("pipeline", 3, task=SMALL), interrupted=lambda: next(asked) >= 4)
    assert [rank.turns for rank in played.ranks] == [4, 4, 4]


class NormalisedLater(Quadratic):
    def model(self):
        return nn.Sequential(nn.Linear(self.inputs, 1), nn.BatchNorm1d(1), Shift(1))


def test_ranks_that_share_a_model_count_for_themselves(tmp_path):
    """BatchNorm's counter is no part of the vector: only the stage that has the layer counts."""
    run = small_run("pipeline", 2, task=NormalisedLater(), stop=Stop(epochs=1))
    played = play_from(run, folder=tmp_path)
    path = next(e.path for e in played.events if isinstance(e, Checkpointed))
    folder, name = tmp_path / "checkpoints" / path, "local.1.num_batches_tracked"
    counted = [int(checkpoint.load_rank(folder, rank)[0][name]) for rank in range(2)]
    assert counted == [0, 2 * played.ranks[0].turns]


def test_a_race_of_all_leaves_it_ashore_where_it_cannot_start():
    run = small_run("single", task=SMALL)
    assert "pipeline" in all_specs(run, [5])
    assert "pipeline" not in all_specs(run, [5, 6])
    assert "pipeline" not in all_specs(small_run("single"), [2])


# -- real processes -------------------------------------------------------------------------


@pytest.mark.real
def test_a_stop_by_chance_replays(tmp_path):
    made = plan(tmp_path / "run", "pipeline", 3, ("stop.epochs=1000", "stop.seconds=0.5"))
    ended = runs.train(made)
    assert len({e.turns for e in ended}) == 1
    assert ended[0].turns < 21_000
    assert runs.replay(made.folder).identical


@pytest.mark.real
@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_stage_ends_the_world(rank, tmp_path):
    """The middle stage computes no loss, where the fuse sits."""
    made = plan(tmp_path / "run", "pipeline", 3, light_fuse(tmp_path, rank=rank, turn=5))
    with pytest.raises(RankFailed, match=f"rank {rank} was killed by SIGKILL"):
        runs.train(made)


@pytest.mark.real
@pytest.mark.parametrize("verb", ["train", "simulate"])
def test_too_many_workers_are_refused_in_one_line(verb, tmp_path):
    done = command(verb, "teacher", "-s", "pipeline", "-n", "6", "-o", tmp_path / "run")
    assert done.returncode == 2
    assert "use --workers 5 or fewer" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("regatta:")]
    assert len(errors) == 1
    assert list(tmp_path.iterdir()) == [], "something was left behind"


@pytest.mark.real
def test_a_loop_of_ones_own_cannot_join_it():
    model = without_norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="brings whole gradients: use `regatta train RECIPE"):
        regatta.join("pipeline", model, optimizer)
    with regatta.join("all-reduce", model, optimizer) as crew:  # it has left no world behind
        assert crew.workers == 1


def _ours_and_theirs(rank, size, init_method, schedule, kind):
    """One update's gradients of this rank's stage: ours, and those of torch's pipelining."""
    from torch.distributed import pipelining

    torch.set_num_threads(1)
    connect(rank, size, init_method)
    shards = shards_of(1, 1, size=8)
    torch.manual_seed(3)
    model = without_norm()
    own = split(model, Layout(model), size)[rank]
    stage = pipelining.PipelineStage(own.layers, rank, size, torch.device("cpu"))
    peer = getattr(pipelining, kind)(stage, n_microbatches=4, loss_fn=mse_loss)
    inputs, targets = (torch.cat([shard[0][part] for shard in shards]) for part in (0, 1))
    peer.step(inputs) if rank == 0 else peer.step(target=targets)
    theirs = torch.cat([p.grad.reshape(-1) for p in own.layers.parameters()])

    comm = ProcessComm({})
    replica = Replica(Body(model), squared_error, Shard(shards, rank), comm, Sgd(lr=1.0))
    before = own.stretch.cut(replica.weights)
    run_blocking(Pipeline(schedule, micro=2).worker(comm, replica))
    ours = before - own.stretch.cut(replica.weights)
    comm.close()
    return ours[:-1].tolist(), theirs.tolist()


@pytest.mark.real
@pytest.mark.parametrize(
    ("schedule", "kind"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")]
)
def test_gradients_are_those_of_torch_distributed_pipelining(schedule, kind):
    for ours, theirs in launch(2, _ours_and_theirs, (schedule, kind)):
        assert max(map(abs, theirs)) > 0.01
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
