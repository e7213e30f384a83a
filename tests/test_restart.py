"""A rank dies, and all begin again from the last checkpoint: in both worlds, with one outcome."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest
from helpers import Quadratic, built, every_spec, layers_for, permits, play, small_run
from real import RECIPE, command, light_fuse, plan

from regatta import runs
from regatta.cluster import Cluster
from regatta.config import Checkpointing, Stop
from regatta.death import Death
from regatta.events import Checkpointed, Died, Evaluated, RankEnded, Resumed, Started, read
from regatta.folders import Plan
from regatta.metrics import summarise
from regatta.race.outcome import of_run
from regatta.report.deaths import deaths as table_of_deaths
from regatta.strategies import registry
from regatta.worlds.launch import RankFailed

OFTEN = ("checkpointing.every=0.25", "stop.epochs=1.5")
RESTART = ("death.then=restart",)
DETERMINISTIC = [name for name, kind in registry().items() if kind().deterministic]


def only(kind, events):
    return [event for event in events if isinstance(event, kind)]


# -- real ------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_run_that_began_again_ends_as_if_undisturbed(name, how, tmp_path):
    workers = 1 if name == "single" else 2
    whole = plan(tmp_path / "whole", name, workers, OFTEN)
    fuse = light_fuse(tmp_path, workers - 1, 25, how)
    broken = plan(tmp_path / "broken", name, workers, OFTEN + RESTART + fuse)
    digests = {e.rank: e.digest for e in runs.train(whole)}
    seen = []
    assert {e.rank: e.digest for e in runs.train(broken, watch=seen.extend)} == digests
    assert runs.replay(broken.folder).identical
    check_told(read(broken.events), workers - 1, how)
    assert only(Died, seen) == only(Died, read(broken.events)), "who watches is told"


def check_told(events, rank, how):
    (death,), (again,) = only(Died, events), only(Resumed, events)
    assert (death.rank, death.then, death.role) == (rank, "restart", "worker")
    assert {"kill": "SIGKILL", "raise": "cursed"}[how] in death.how
    assert again.segment > 0, "there was a checkpoint"
    times = [e.time for e in events if isinstance(e, Evaluated)]
    assert times == sorted(times)
    segments = [e.segment for e in only(Checkpointed, events)]
    assert segments == sorted(set(segments)), "every checkpoint counts once"
    summary = summarise(events)
    assert summary.deaths == 1
    assert summary.lost_seconds == death.lost


@pytest.mark.real
def test_an_asynchronous_run_that_began_again_replays_as_a_whole(tmp_path):
    settings = OFTEN + RESTART + light_fuse(tmp_path, 1, 35)
    made = plan(tmp_path / "run", "parameter-server", 2, settings)
    runs.train(made)
    assert only(Died, read(made.events))
    assert runs.replay(made.folder).identical


def killing(rank):
    """Watches a run, and kills one of its ranks when a checkpoint counts for the first time."""
    killed = []

    def watch(events):
        if not killed and only(Checkpointed, events):
            (victim,) = (
                child for child in psutil.Process().children(recursive=True)
                if child.name() == f"regatta rank {rank}"
            )  # fmt: skip
            victim.kill()
            killed.append(victim.pid)

    return watch


@pytest.mark.real
@pytest.mark.parametrize(
    "spec",
    [
        "parameter-server",
        "parameter-server:servers=2",
        "elastic:mode=async,period=2",
        "parameter-server:mode=sync",
    ],
)
def test_a_server_that_was_killed_is_brought_back(spec, tmp_path):
    settings = ("checkpointing.every=0.25", "stop.epochs=8")
    made = plan(tmp_path / "run", spec, 2, settings + RESTART)
    server = made.run.num_ranks - 1
    ended = runs.train(made, watch=killing(server))
    events = read(made.events)
    (death,) = only(Died, events)
    assert (death.rank, death.role, death.then) == (server, "server", "restart")
    assert only(Resumed, events)[0].segment > 0
    assert [rank.rank for rank in ended] == list(range(made.run.num_ranks))
    assert runs.replay(made.folder).identical
    if built(spec).deterministic:
        whole = runs.train(plan(tmp_path / "whole", spec, 2, settings))
        assert [rank.digest for rank in ended] == [rank.digest for rank in whole]


@pytest.mark.real
def test_where_nothing_was_saved_it_begins_anew(tmp_path):
    whole = plan(tmp_path / "whole", "all-reduce", 2, ("stop.epochs=1",))
    settings = ("stop.epochs=1", *RESTART, *light_fuse(tmp_path, 1, 25))
    broken = plan(tmp_path / "broken", "all-reduce", 2, settings)
    digests = {e.digest for e in runs.train(whole)}
    assert {e.digest for e in runs.train(broken)} == digests
    events = read(broken.events)
    assert len(only(Started, events)) == 1
    assert len(only(Evaluated, events)) == len(only(Evaluated, read(whole.events)))
    assert only(Died, events)[0].lost >= 0
    assert runs.replay(broken.folder).identical


@pytest.mark.real
def test_not_more_often_than_it_may(tmp_path):
    fuse = light_fuse(tmp_path, 0, 9)
    limit = ("task.again=true", "death.restarts=2")
    made = plan(tmp_path / "run", "all-reduce", 2, OFTEN + RESTART + fuse + limit)
    with pytest.raises(RankFailed, match="rank 0 was killed by SIGKILL"):
        runs.train(made)
    followed = [death.then for death in only(Died, read(made.events))]
    assert followed == ["restart", "restart", "stop"]


@pytest.mark.real
def test_an_error_that_comes_again_is_no_accident(tmp_path):
    fuse = light_fuse(tmp_path, 1, 9, "raise")
    limit = ("task.again=true", "death.restarts=1000")
    made = plan(tmp_path / "run", "all-reduce", 2, RESTART + fuse + limit)
    with pytest.raises(RankFailed, match="the batch was cursed"):
        runs.train(made)
    assert [death.then for death in only(Died, read(made.events))] == ["restart", "stop"]


@pytest.mark.real
def test_the_command_begins_again_and_tells(tmp_path):
    fuse = [word for setting in light_fuse(tmp_path, 1, 25) for word in ("--set", setting)]
    out = tmp_path / "run"
    words = ["train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", out, "--set", OFTEN[0]]
    done = command(*words, *fuse, "--on-death", "restart", "--restarts", "1")
    assert done.returncode == 0, done.stderr
    assert "rank 1 (worker) was killed by SIGKILL" in done.stdout
    assert "resumed at" in done.stdout
    assert "died: 1 rank" in done.stdout
    assert "was killed by SIGKILL" in table_of_deaths(of_run(out)).rows[0]
    again = command("watch", out)
    assert "was killed by SIGKILL" in again.stdout


# -- virtual ---------------------------------------------------------------------------------

EVERY_SECOND = Cluster(sample_seconds=0.25, latency=0.0, bandwidth=1e12, merge_bandwidth=1e12)


def crashing(spec, workers, **changes):
    """A quadratic whose turns take a second each, with a checkpoint every 15 of them or so."""
    strategy = built(spec)
    return small_run(
        strategy,
        workers,
        task=Quadratic(layers=layers_for(strategy)),
        cluster=EVERY_SECOND,
        checkpointing=Checkpointing(every=0.5),
        **changes,
    )


def crashed(run, *times, seconds=0.0, then="restart", rank=0):
    faults = tuple(f"crash rank={rank} at={time}" for time in times)
    cluster = replace(run.cluster, faults=faults, restart_seconds=seconds)
    return replace(run, cluster=cluster, death=Death(then))


@pytest.mark.parametrize("spec", every_spec())
def test_virtual_ranks_begin_again_too(spec):
    workers = 1 if spec == "single" else 3
    if not permits(built(spec), workers):
        pytest.skip("not for three workers")
    run = crashing(spec, workers)
    whole = play(replace(run, death=Death("restart")))
    if not built(spec).deterministic:
        assert len(set(play(crashed(run, 22.5)).digests)) == 1
        return
    assert play(crashed(run, 22.5)).digests == whole.digests


def test_the_clock_pays_for_what_is_lost():
    run = crashing("single", 1)  # 60 turns of a second an epoch
    told = []
    ended, standing = runs.simulate(crashed(run, 40.25, 75.5, seconds=7.0), watch=told.extend)
    first, second = only(Died, standing)
    # The checkpoint of second 30 is taken up at 47.25; at 75.5 the next is not saved yet.
    assert (first.time, first.lost) == (40.25, 10.25)
    assert (second.time, second.lost) == (75.5, 28.25)
    assert ended[0].time == 75.5 + 7 + 90
    assert [e.time for e in only(Resumed, told)] == [47.25, 82.5]
    assert [e.since for e in only(Resumed, told)] == [30.0, 30.0]
    assert summarise(standing).lost_seconds == 38.5


def test_a_timing_only_run_begins_again():
    run = crashing("averaging:period=4,outer=diloco", 3)
    whole, broken = play(run, True), play(crashed(run, 12.5, seconds=1.0), True)
    assert broken.ranks[0].turns == whole.ranks[0].turns
    assert broken.ranks[0].time == pytest.approx(whole.ranks[0].time + 1.0 + 2.5)


def test_a_virtual_run_in_a_folder_replays(tmp_path):
    run = crashed(crashing("parameter-server", 3), 12.5)
    made = Plan("teacher", run, tmp_path / "run")
    runs.simulate(run, made)
    assert only(Died, read(made.events))
    assert len(only(RankEnded, read(made.events))) == 4
    stored = [e.segment for e in only(Checkpointed, read(made.events))]
    assert stored == sorted(set(stored))


def test_who_must_not_begin_again_stops():
    with pytest.raises(RuntimeError, match="rank 0 crashed"):
        play(crashed(crashing("all-reduce", 3), 5.0, then="stop"))


def test_more_crashes_than_restarts():
    run = crashed(crashing("all-reduce", 3, stop=Stop(epochs=1)), 1.5, 2.5, 3.5, 4.5)
    with pytest.raises(RuntimeError, match="rank 0 crashed"):
        play(run)


@pytest.mark.parametrize("said", ["then=never", "restarts=-1", "silence=-1"])
def test_nonsense_is_refused(said):
    name, _, value = said.partition("=")
    with pytest.raises(ValueError, match=f"death.{name}"):
        Death(**{name: value if name == "then" else int(value)})
