"""The same fault in both worlds, a real one and one that a cluster says: it has the same fate."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
from helpers import built
from real import light_fuse, plan

from regatta import runs
from regatta.cluster import Cluster
from regatta.events import Checkpointed, Died, RankEnded, Resumed, StoodStill, read
from regatta.folders import Plan
from regatta.strategies import registry
from regatta.strategies.fate import GO_ON, SHRINK

OFTEN = ("checkpointing.every=0.25", "stop.epochs=1.5")
DETERMINISTIC = [name for name, kind in registry().items() if kind().deterministic]
SHRINKING = [name for name in DETERMINISTIC if SHRINK in built(name).fates["worker"].choices]
FREE = ["parameter-server", "parameter-server:mode=sync,backup=1", "elastic:mode=async", "gossip"]
# A turn takes a second; to send and to merge takes next to nothing.
EVERY_SECOND = Cluster(sample_seconds=1 / 16, latency=1e-6, bandwidth=1e12, merge_bandwidth=1e12)


def only(kind, events):
    return [event for event in events if isinstance(event, kind)]


def simulated(run, folder, *faults: str):
    """The run in the virtual world; where all its ranks ended, and what was told."""
    run = replace(run, cluster=replace(EVERY_SECOND, faults=faults))
    told: list = []
    ended, _ = runs.simulate(run, Plan("faulty", run, folder), watch=told.extend)
    return {e.rank: e.digest for e in ended if e is not None}, told


def crash_in(segment: int, rank: int, run, folder) -> str:
    """As a cluster says it: halfway from the checkpoint that begins this segment to the next."""
    _, told = simulated(run, folder)
    times = {saved.segment: saved.time for saved in only(Checkpointed, told)}
    return f"crash rank={rank} at={(times[segment] + times[segment + 1]) / 2}"


def fates(events):
    return [(death.rank, death.role, death.then) for death in only(Died, events)]


def both_die(name: str, workers: int, then: str, folder):
    """A kill, and a crash in the same segment: how both end, and what was told of them."""
    settings = (*OFTEN, *([f"death.then={then}"] if then else []))
    victim = workers - 1
    real = plan(folder / "real", name, workers, settings + light_fuse(folder, victim, 20))
    ended = {e.rank: e.digest for e in runs.train(real)}
    told = read(real.events)
    resumed = [event.segment for event in only(Resumed, told)]
    segment = resumed[0] if resumed else 2
    crash = crash_in(segment, victim, real.run, folder / "undisturbed")
    again, told_again = simulated(real.run, folder / "virtual", crash)
    assert [e.segment for e in only(Resumed, told)] == [
        e.segment for e in only(Resumed, told_again)
    ]
    assert fates(told) == fates(told_again) != []
    return ended, again


@pytest.mark.real
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_all_begin_again_in_both_worlds(name, tmp_path):
    ended, again = both_die(name, 1 if name == "single" else 2, "restart", tmp_path)
    assert ended == again


@pytest.mark.real
@pytest.mark.parametrize("name", SHRINKING)
def test_the_others_begin_again_in_both_worlds(name, tmp_path):
    ended, again = both_die(name, 3, "shrink", tmp_path)
    assert len(ended) == 2 + built(name).num_servers
    assert ended == again


@pytest.mark.real
@pytest.mark.parametrize("spec", FREE)
def test_the_others_go_on_in_both_worlds(spec, tmp_path):
    """By other chances, so to other weights; but they are the same who go on."""
    workers = 3
    ended, again = both_die(spec, workers, "", tmp_path)
    assert built(spec).fates["worker"].usual == GO_ON
    assert ended.keys() == again.keys() == set(range(workers + built(spec).num_servers)) - {2}
    assert len(set(ended.values())) == len(set(again.values())) == 1


@pytest.mark.real
@pytest.mark.parametrize("name", ["all-reduce", "averaging", "ring"])
def test_who_is_slow_or_cut_off_is_waited_for_in_both_worlds(name, tmp_path):
    real = plan(tmp_path / "real", name, 2, OFTEN + light_fuse(tmp_path, 1, 20, "stop"))

    def wake(events):
        if only(StoodStill, events):
            os.kill(int((tmp_path / "fuse.burnt").read_text()), signal.SIGCONT)

    ended = {e.rank: e.digest for e in runs.train(real, watch=wake)}
    assert only(StoodStill, read(real.events))
    undisturbed, told = simulated(real.run, tmp_path / "undisturbed")
    slow, told_slow = simulated(real.run, tmp_path / "slow", "slow rank=1 factor=9 from=3 to=40")
    cut, told_cut = simulated(real.run, tmp_path / "cut", "cut host=1 from=3 to=40")
    assert ended == undisturbed == slow == cut
    assert not only(Died, told_slow + told_cut)
    last = [only(RankEnded, events)[-1].time for events in (told, told_slow, told_cut)]
    assert last[1] > last[0] + 20
    assert last[2] > last[0] + 20
