"""A rank dies, and the others go on: in both worlds, and what it has left to do is done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from helpers import Pairs, Quadratic, built, every_spec, play, small_run
from real import light_fuse, plan
from torch import nn

from regatta import choices, runs
from regatta.choices import Beside, Recorder, Replayer
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Stop
from regatta.death import Death
from regatta.engine import Surroundings
from regatta.events import Checkpointed, Died, Ended, Evaluated, RankEnded, Resumed, Writer, read
from regatta.folders import Crew, Plan, read_stored
from regatta.playing import play_crews
from regatta.strategies.fate import GO_ON

FREE = [spec for spec in every_spec() if built(spec).fates["worker"].usual == GO_ON]
EVERY_SECOND = Cluster(sample_seconds=0.25, latency=1e-3, bandwidth=1e9, merge_bandwidth=1e9)


def only(kind, events):
    return [event for event in events if isinstance(event, kind)]


class Counted(Pairs):
    """Data that know how often each sample was learnt from."""

    seen: ClassVar[Counter[int]] = Counter()

    def batch(self, indices):
        self.seen.update(indices.tolist())
        return super().batch(indices)


@dataclass(frozen=True)
class Watched(Quadratic):
    """The quadratic, and what becomes of its data."""

    name: ClassVar[str] = "watched"

    def open(self) -> Counted:
        Counted.seen.clear()
        data = super().open()
        return Counted(data.inputs, data.targets)


def crashing(
    spec: str, *crashes: tuple[int, float], workers: int = 4, task_of: Any = None, **changes: Any
):
    """240 samples, 4 a minibatch: 15 turns of a second an epoch, for four workers."""
    faults = tuple(f"crash rank={rank} at={at}" for rank, at in crashes)
    cluster = replace(EVERY_SECOND, faults=faults)
    return small_run(spec, workers, task=task_of or Watched(), cluster=cluster, **changes)


# -- virtual ---------------------------------------------------------------------------------


@pytest.mark.parametrize("saves", [0.0, 0.5])
@pytest.mark.parametrize("spec", FREE)
def test_the_others_go_on_and_learn(spec, saves):
    run = crashing(spec, (2, 17.3), stop=Stop(epochs=6), checkpointing=Checkpointing(every=saves))
    played = play(run)
    dead = {death.rank for death in only(Died, played.events)}
    assert 2 in dead
    assert all(death.then == "go on" for death in only(Died, played.events))
    ended = [rank for rank in played.ranks if rank is not None]
    assert {rank.rank for rank in ended} == set(range(run.num_ranks)) - dead
    assert len({rank.digest for rank in ended}) == 1, "those who are left end alike"
    untrained = Quadratic().open().evaluate(nn.Linear(4, 1))["loss"]
    assert played.losses[-1] < untrained / 100
    assert only(Ended, played.events)[0].reason == "budget"


@pytest.mark.parametrize("spec", ["parameter-server", "elastic:mode=async", "gossip"])
def test_what_the_dead_have_left_is_done_by_the_others(spec):
    play(crashing(spec, (2, 9.3), stop=Stop(epochs=2)))
    seen = Counted.seen
    again = {sample for sample, times in seen.items() if times > 2}
    assert min(seen.values()) == 2, "every sample twice in two epochs"
    assert len(again) == 4, "but for the minibatch in which the worker died"


def test_two_deaths_in_two_segments():
    run = crashing(
        "parameter-server", (0, 4.3), (3, 20.3), stop=Stop(epochs=4),
        checkpointing=Checkpointing(every=0.5),
    )  # fmt: skip
    played = play(run)
    ended = [rank for rank in played.ranks if rank is not None]
    assert [rank.rank for rank in ended] == [1, 2, 4]
    turns = sum(rank.turns for rank in ended)
    assert turns + 4 + 20 >= 4 * 60 - 1, "what the second had taken over itself may be left out"
    assert min(Counted.seen.values()) >= 3


def test_another_worker_evaluates_when_the_first_is_dead():
    run = crashing("gossip", (0, 20.3), stop=Stop(epochs=4))
    played = play(run)
    who = [event.rank for event in only(Evaluated, played.events)]
    assert who == [0, 1, 1, 1]
    assert only(Ended, played.events)[0].rank == 1


def test_scores_outlive_who_found_them():
    """Patience counts evaluations of the first worker, too."""
    run = crashing("gossip", (0, 20.3), stop=Stop(epochs=4, patience=3))
    best = min(play(run).losses)
    ended = only(Ended, play(run).events)[0]
    assert ended.results["loss"] == best


def test_without_a_server_all_begin_again():
    run = crashing("parameter-server", (4, 9.3), checkpointing=Checkpointing(every=0.5))
    played = play(run)
    assert [(death.rank, death.then) for death in only(Died, played.events)] == [(4, "restart")]
    assert only(Resumed, played.events)
    assert len(only(RankEnded, played.events)) == 5


def test_without_any_worker_all_begin_again():
    run = crashing("parameter-server", (0, 9.3), (1, 9.4), workers=2)
    played = play(run)
    assert [death.then for death in only(Died, played.events)] == ["go on", "restart"]
    assert len(only(RankEnded, played.events)) == 3


def test_a_team_dies_together():
    played = play(crashing("parameter-server:mode=mixed,group=2", (3, 9.3)))
    assert [(d.rank, d.how) for d in only(Died, played.events)] == [
        (2, "lost rank 3 of its team"), (3, "crashed"),
    ]  # fmt: skip
    assert [rank.rank for rank in played.ranks if rank is not None] == [0, 1, 4]


def test_a_team_with_the_holder_of_the_answer_begins_again_whoever_of_it_dies():
    played = play(crashing("parameter-server:mode=mixed,group=2,servers=2", (1, 9.3)))
    assert [(d.rank, d.then) for d in only(Died, played.events)] == [(1, "restart")]
    assert len(only(RankEnded, played.events)) == 6


def test_the_run_may_ask_for_less():
    run = replace(crashing("gossip", (2, 9.3)), death=Death("restart"))
    assert [death.then for death in only(Died, play(run).events)] == ["restart"]
    with pytest.raises(RuntimeError, match="rank 2 crashed"):
        play(replace(run, death=Death("stop")))


def with_links_that_are_shared(run):
    return replace(run, cluster=replace(run.cluster, sharing="fair", bandwidth=40.0))


@pytest.mark.parametrize("spec", FREE)
def test_messages_of_the_dead_leave_nobody_waiting(spec):
    """Links so slow that some are always under way."""
    for at in (3.11, 8.83, 12.47):
        ended = [r for r in play(with_links_that_are_shared(crashing(spec, (1, at)))).ranks if r]
        assert len({rank.digest for rank in ended}) == 1


@pytest.mark.parametrize("saves", [0.0, 0.5])
@pytest.mark.parametrize("spec", FREE)
def test_a_simulated_death_replays(spec, saves, tmp_path):
    run = crashing(spec, (2, 17.3), checkpointing=Checkpointing(every=saves))
    run = replace(run, task=Quadratic(), cluster=replace(run.cluster, jitter=0.3))
    runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    assert choices.read(tmp_path / "run" / "choices.jsonl")
    again = replayed(run, tmp_path / "run")
    ended = only(RankEnded, read(tmp_path / "run" / "events.jsonl"))
    assert {e.rank: e.digest for e in ended} == again


def replayed(run, folder):
    """`runs.replay` opens recipes; here the run is at hand."""
    recorded, log = choices.read(folder / "choices.jsonl"), Writer(None)
    around = Surroundings("virtual", run.task.open(), log, lambda: log.events)
    undisturbed = replace(run, cluster=replace(run.cluster, faults=()))
    ranks = tuple(range(run.num_ranks))
    crews = [
        Crew(crew["segment"], tuple(crew["members"]), tuple(crew["hosts"]))
        for crew in read_stored(folder)["crews"]
    ] or [Crew(0, ranks, ranks)]
    again = play_crews(undisturbed, around, lambda rank: Replayer(recorded, rank), crews)
    dead = {rank for n, rank, kind in recorded if kind == "died" and n >= crews[-1].segment}
    return {e.rank: e.digest for e in again if e is not None and e.rank not in dead}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("at", [3.11, 8.83, 17.42])
def test_whoever_of_a_gossip_dies_it_replays(rank, at, tmp_path):
    """Who answers others has met more chance than who asks; who asked it may wait in vain."""
    run = replace(crashing("gossip", (rank, at)), task=Quadratic())
    run = replace(run, cluster=replace(run.cluster, jitter=0.3, bandwidth=60.0))
    runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    ended = only(RankEnded, read(tmp_path / "run" / "events.jsonl"))
    assert {e.rank: e.digest for e in ended} == replayed(run, tmp_path / "run")


def test_what_was_not_written_yet_is_found_beside(tmp_path):
    path = tmp_path / "choices.jsonl"
    dies = Recorder(path, 3, mortal=True)
    dies.begin(2)
    for source in range(300):
        dies.note("poll", source - 1)
        dies.note("recv", -2 - source)
    Beside.recover(path, 3)
    recorded = choices.read(path)
    assert recorded[2, 3, "poll"] == [source - 1 for source in range(300)]
    assert recorded[2, 3, "recv"] == [-2 - source for source in range(300)]
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]
    Beside.recover(path, 3)  # there is nothing more to be found
    assert choices.read(path) == recorded


def test_what_was_just_written_is_not_written_twice(tmp_path, monkeypatch):
    """A kill between the record and the note that it is there."""
    path = tmp_path / "choices.jsonl"
    dies = Recorder(path, 3, mortal=True)
    dies.begin(2)
    for source in (5, 6, 7):
        dies.note("recv", source)
    dies.flush()
    dies.note("poll", 1)
    dies.note("recv", 8)
    monkeypatch.setattr(Beside, "clear", lambda self: None)
    dies.flush()
    recorded = choices.read(path)
    Beside.recover(path, 3)
    assert choices.read(path) == recorded == {(2, 3, "recv"): [5, 6, 7, 8], (2, 3, "poll"): [1]}


def test_deaths_that_others_wrote_down_are_not_its_own_record(tmp_path):
    path = tmp_path / "choices.jsonl"
    dies = Recorder(path, 3, mortal=True)
    dies.begin(2)
    dies.note("recv", 5)
    other = Recorder(path, 1)
    other.begin(2)
    other.bury(3, 4)
    Beside.recover(path, 3)
    assert choices.read(path) == {(2, 3, "recv"): [5], (2, 3, "died"): [4]}


def test_who_dies_before_it_notes_anything_leaves_nothing(tmp_path):
    Beside.path_of(tmp_path / "choices.jsonl", 3).touch()
    Beside.recover(tmp_path / "choices.jsonl", 3)
    assert not list(tmp_path.iterdir())


def test_what_ends_well_leaves_nothing_beside(tmp_path):
    path = tmp_path / "choices.jsonl"
    lives = Recorder(path, 0, mortal=True)
    lives.note("poll", 1)
    assert len(list(tmp_path.iterdir())) == 2
    lives.close()
    broken_off = Recorder(path, 1, mortal=True)
    broken_off.note("poll", 1)
    choices.forget_from(path, 5)
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]
    assert choices.read(path) == {(0, 0, "poll"): [1]}


# -- real ------------------------------------------------------------------------------------

REAL = [
    ("parameter-server", 3, 1), ("parameter-server:servers=2", 3, 2),
    ("parameter-server:mode=sync,backup=1", 3, 1), ("parameter-server:max_staleness=4", 3, 0),
    ("parameter-server:mode=mixed,group=2", 4, 3), ("elastic:mode=async,period=2", 3, 0),
    ("gossip", 4, 0), ("gossip", 4, 1), ("gossip", 3, 2),
]  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("saves", [0.0, 0.25])
@pytest.mark.parametrize(("spec", "workers", "victim"), REAL)
def test_real_ranks_go_on_and_replay(spec, workers, victim, saves, tmp_path):
    settings = (f"checkpointing.every={saves}", *light_fuse(tmp_path, victim, 20))
    made = plan(tmp_path / "run", spec, workers, settings)
    ended = runs.train(made)
    events = read(made.events)
    dead = {death.rank for death in only(Died, events)}
    assert victim in dead
    assert all(death.then == "go on" for death in only(Died, events))
    assert {e.rank for e in ended} == set(range(made.run.num_ranks)) - dead
    assert len({e.digest for e in ended}) == 1
    assert runs.replay(made.folder).identical


@pytest.mark.real
def test_an_exception_is_a_death_as_well(tmp_path):
    made = plan(tmp_path / "run", "gossip", 3, light_fuse(tmp_path, 1, 20, "raise"))
    ended = runs.train(made)
    (death,) = only(Died, read(made.events))
    assert "the batch was cursed" in death.how
    assert [e.rank for e in ended] == [0, 2]
    assert runs.replay(made.folder).identical


# -- the dead come back ----------------------------------------------------------------------

REJOINED = Death(rejoin=True)
OFTEN = Checkpointing(every=0.5)


@pytest.mark.parametrize("spec", FREE)
def test_who_died_rejoins_after_the_next_checkpoint(spec):
    run = crashing(
        spec, (2, 17.3), stop=Stop(epochs=6), checkpointing=Checkpointing(every=0.5),
        death=REJOINED,
    )  # fmt: skip
    played = play(run)
    assert {death.then for death in only(Died, played.events)} == {"go on"}
    (again,) = only(Resumed, played.events)
    assert again.since is None or again.time - again.since < 0.1, "beginning again costs nothing"
    ended = [rank for rank in played.ranks if rank is not None]
    assert [rank.rank for rank in ended] == list(range(run.num_ranks)), "all are there in the end"
    assert len({rank.digest for rank in ended}) == 1
    alone = next(rank for rank in play(replace(run, death=Death())).ranks if rank.rank == 0)
    assert ended[0].turns < alone.turns, "the others have less to do again"


def test_beginning_again_for_the_dead_takes_time():
    run = crashing(
        "gossip", (2, 17.3), stop=Stop(epochs=4), checkpointing=Checkpointing(every=0.5),
        death=REJOINED,
    )  # fmt: skip
    slow = replace(run, cluster=replace(run.cluster, restart_seconds=100.0))
    at_once, later = (only(Resumed, play(each).events)[0] for each in (run, slow))
    assert later.time == pytest.approx(at_once.time + 100)
    assert later.time - later.since == pytest.approx(100, abs=0.1)
    assert only(Ended, play(slow).events)[0].time > 100


def test_who_dies_again_and_again_is_brought_back_so_often_as_allowed():
    crashes = tuple((2, at) for at in (4.3, 20.3, 36.3))
    run = crashing(
        "parameter-server", *crashes, stop=Stop(epochs=6),
        checkpointing=Checkpointing(every=0.5), death=Death(rejoin=True, restarts=2),
    )  # fmt: skip
    played = play(run)
    assert len(only(Died, played.events)) == 3
    assert len(only(Resumed, played.events)) == 2
    assert [r.rank for r in played.ranks if r is not None] == [0, 1, 3, 4]


@pytest.mark.parametrize("rank", [0, 2])
def test_who_dies_while_all_save_rejoins_or_has_not_saved(rank, tmp_path):
    """The first of them publishes the checkpoint; the others may end before that is done."""
    first = "crash rank=1 at=3.3"
    run = crashing("gossip", task_of=Quadratic(), stop=Stop(epochs=2), death=REJOINED,
                   checkpointing=OFTEN)  # fmt: skip

    def disturbed(folder, *faults):
        crashes = replace(run, cluster=replace(run.cluster, jitter=0.3, faults=(first, *faults)))
        runs.simulate(crashes, Plan("teacher", crashes, folder))
        events = read(folder / "events.jsonl")
        ended = {e.rank: e.digest for e in only(RankEnded, events)}
        assert ended == replayed(crashes, folder)
        return tuple(sorted(ended)), tuple(e.segment for e in only(Resumed, events)), events

    *_, events = disturbed(tmp_path / "alone")
    (saved,) = (e.time for e in only(Checkpointed, events) if e.segment == 1)
    outcomes = {
        tuple(disturbed(tmp_path / f"at{step}", f"crash rank={rank} at={saved + step * 1e-3}")[:2])
        for step in range(-8, 9)
    }
    assert len(outcomes) > 1, "before it was saved, and after"


def test_nobody_waits_in_vain_for_a_checkpoint():
    with pytest.raises(ValueError, match=r"set checkpointing\.every"):
        play(small_run("gossip", 2, death=REJOINED))


def test_nobody_rejoins_what_goes_on_with_nobody_missing():
    with pytest.raises(ValueError, match="--rejoin"):
        small_run("all-reduce", 2, death=REJOINED)
    with pytest.raises(ValueError, match="--rejoin"):
        small_run("gossip", 2, death=Death("stop", rejoin=True))


@pytest.mark.real
@pytest.mark.parametrize(("spec", "workers", "victim"), REAL)
def test_real_ranks_are_rejoined_and_replay(spec, workers, victim, tmp_path):
    settings = ("checkpointing.every=0.25", "death.rejoin=true", *light_fuse(tmp_path, victim, 20))
    made = plan(tmp_path / "run", spec, workers, settings)
    ended = runs.train(made)
    events = read(made.events)
    assert victim in {death.rank for death in only(Died, events)}
    assert all(death.then == "go on" for death in only(Died, events))
    assert only(Resumed, events), "all have begun again"
    assert {e.rank for e in ended} == set(range(made.run.num_ranks))
    assert len({e.digest for e in ended}) == 1
    assert runs.replay(made.folder).identical
