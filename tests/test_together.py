"""Sums that are not written: ranks that step alike share weights, and each steps a stripe."""

from functools import partial

import pytest
import torch
from helpers import Shard
from real import WIDE, light_fuse, plan
from test_resume import digests
from test_wires import play
from torch import nn

from regatta import recipes, runs
from regatta.comm import Unwritten
from regatta.learn.body import Body
from regatta.learn.layout import num_vector_bytes
from regatta.learn.optimisers import Adam, Sgd
from regatta.learn.replica import Replica
from regatta.worlds.adding import PIECE, pieces_of
from regatta.worlds.launch import RankFailed

pytestmark = pytest.mark.real
OPTIMISERS = {
    "plain": ("optimiser.momentum=0",),
    "momentum": ("optimiser.momentum=0.9", "optimiser.weight_decay=0.01"),
    "adam": ("optimiser=adam", "optimiser.lr=0.01"),
}
every_optimiser = pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
WHOLE = "bucket_bytes=0"


def test_each_of_two_ranks_has_several_pieces():
    numel = num_vector_bytes(recipes.load(WIDE).task.model()) // 4
    assert len(pieces_of(numel, numel, ranks=2, me=0)) > 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("numel", "head"), [(3 * PIECE, 3 * PIECE), (5000, 4900), (700, 1), (9, 9)]
)
def test_pieces_cover_everything_once(numel, head, ranks):
    pieces = [piece for me in range(ranks) for piece in pieces_of(numel, head, ranks, me)]
    covered = [n for piece in pieces for n in range(piece.start, piece.stop)]
    assert covered == list(range(numel))
    assert all(piece.stop <= head or piece.start >= head for piece in pieces)
    assert all(piece.stop - piece.start <= PIECE for piece in pieces)


@pytest.mark.parametrize("workers", [2, 3, 5])
@every_optimiser
def test_steps_of_stripes_replay(optimiser, workers, tmp_path):
    made = plan(tmp_path / "run", "all-reduce", workers, (*optimiser, WHOLE), WIDE)
    ended = runs.train(made)
    assert runs.replay(made.folder).identical
    assert len({e.digest for e in ended}) == 1


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("mode", ["period=3", "period=3,outer=bmuf", "period=2,state=averaged"])
def test_shared_means_replay(mode, workers, tmp_path):
    made = plan(tmp_path / "run", f"averaging:{mode}", workers, recipe=WIDE)
    runs.train(made)
    assert runs.replay(made.folder).identical


@pytest.mark.parametrize("setting", ["bucket_bytes=-1", "bucket_bytes=700000", "transport=sockets"])
def test_every_way_gives_the_same_weights(setting, tmp_path):
    folders = {name: tmp_path / name for name in ("stripes", "other way")}
    runs.train(plan(folders["stripes"], "all-reduce", 2, (WHOLE,), WIDE))
    runs.train(plan(folders["other way"], "all-reduce", 2, (setting,), WIDE))
    assert digests(folders["stripes"]) == digests(folders["other way"])


@every_optimiser
def test_a_run_that_died_goes_on_with_shared_weights(optimiser, tmp_path):
    settings = (*optimiser, WHOLE, "checkpointing.every=0.25")
    runs.train(plan(tmp_path / "whole", "all-reduce", 2, settings, WIDE))
    fuse = light_fuse(tmp_path, turn=11)
    broken = plan(tmp_path / "broken", "all-reduce", 2, settings + fuse, WIDE)
    with pytest.raises(RankFailed, match="SIGKILL"):
        runs.train(broken)
    runs.train(broken, resume=True)
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


# -- what one rank hands out, others must not write to ----------------------------------------


def _squares(model, batch):
    return model(batch).square().mean()


def _replica(comm, optimiser):
    torch.manual_seed(3)
    turns = [[torch.randn(4, 60) for _ in range(6)] for _ in range(comm.size)]
    return Replica(
        Body(nn.Linear(60, 40)), _squares, Shard(turns, comm.rank), comm, optimiser
    )  # fmt: skip


async def _keep(comm):
    """Everybody keeps the weights of every other turn, some in turn with others."""
    replica = _replica(comm, Sgd(lr=0.1, momentum=0.5))
    kept = []
    async for total in replica.reduced_by(comm.all_reduce, written=False):
        assert isinstance(total, Unwritten)
        if (replica.steps + comm.rank) % 2:
            kept.append((replica.weights, replica.weights.clone()))
        replica.step(total, of=int(total[-1]))
    shared = replica.vector.data_ptr() if not comm.rank else 0
    return [bool((held == copy).all()) for held, copy in kept], replica.vector.tolist(), shared


def test_weights_that_were_handed_out_stay_as_they_were():
    told = play(3, _keep)
    assert [len(kept) for kept, *_ in told] == [3, 3, 3]
    assert all(all(kept) for kept, *_ in told)
    assert told[0][1] == told[1][1] == told[2][1]


async def _share(comm):
    replica = _replica(comm, Adam(lr=0.1))
    async for total in replica.reduced_by(comm.all_reduce, written=False):
        replica.step(total, of=int(total[-1]))
    replica.vector[0] = replica.vector[0] + 1.0 if comm.rank == 0 else replica.vector[0]
    first = torch.tensor([float(comm.rank == 0)])
    await comm.all_reduce(first)  # after this, everybody sees what the first has written
    return replica.vector[0].item()


def test_ranks_hold_one_copy_of_their_weights():
    told = play(3, _share)
    assert told[0] == told[1] == told[2]


async def _change_ways(comm, unwritten):
    replica = _replica(comm, Sgd(lr=0.1, momentum=0.5))
    turn = 0
    async for gradient in replica:
        total = await comm.all_reduce(gradient, written=turn not in unwritten)
        replica.step(total, of=int(total[-1]))
        turn += 1
    return replica.vector.tolist()


def test_ways_may_change_from_turn_to_turn():
    """As they do while it is found out whether sums in buckets pay."""
    told = [play(3, partial(_change_ways, unwritten=turns)) for turns in ((), (0, 2, 3), (1, 4))]
    assert all(weights == told[0][0] for ranks in told for weights in ranks)


async def _look(comm, numel):
    total = await comm.all_reduce(torch.ones(numel), written=False)
    with pytest.raises(IndexError, match="not written"):
        total[0]
    count = float(total[-1])
    mean = total.use(
        lambda piece, here, vectors: torch.div(piece, count, out=vectors[0][here]),
        lambda: [torch.zeros(numel)], vectors=1, head=numel,
    )  # fmt: skip
    return count, mean[0].tolist()


@pytest.mark.parametrize("numel", [1001, 5000])  # the shorter leaves some ranks without a piece
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_unwritten_sum_knows_its_count_alone(ranks, numel):
    for count, mean in play(ranks, partial(_look, numel=numel)):
        assert count == ranks
        assert mean == [1.0] * numel
