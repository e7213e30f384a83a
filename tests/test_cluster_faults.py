"""What goes wrong in a virtual world, as its cluster says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import play, small_run
from hypothesis import given
from hypothesis import strategies as st
from real import command

from regatta.cluster import Cluster
from regatta.cluster.faults import Crash, Cut, CutLink, Slow, end_of_cuts, end_of_work, read_fault
from regatta.comm import Load, Phantom, WorldFailed
from regatta.worlds.virtual import VirtualWorld

SECOND = Load(samples=1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("slow rank=1 factor=3 from=2 to=5", Slow(1, 3.0, 2.0, 5.0)),
     ("crash rank=2 at=4", Crash(2, 4.0)), ("cut host=0 from=1 to=2.5", Cut(0, 1.0, 2.5)),
     ("cut link=up from=1 to=2", CutLink("up", 1.0, 2.0))],
)  # fmt: skip
def test_faults_are_read(text, fault):
    assert read_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "none of slow, crash, cut"), ("burn rank=1", "none of slow"),
     ("crash rank=1", "should be like 'crash rank=1 at=4'"), ("crash rank=x at=1", "like"),
     ("crash rank=1 at=1 at=2", "like"), ("crash rank=-1 at=1", "rank must not be negative"),
     ("slow rank=1 factor=0 from=1 to=2", "factor"), ("cut host=0 from=2 to=2", "later than from"),
     ("cut host=0 from=nan to=2", "from must not"), ("cut link=up from=2 to=1", "later than from"),
     ("cut host=0 link=up from=1 to=2", "like 'cut host=0 .* or 'cut link=")],
)  # fmt: skip
def test_nonsense_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        Cluster(faults=(text,))


def test_whom_there_is_not():
    slow, cut = "slow rank=9 factor=2 from=0 to=1", "cut host=2 from=0 to=1"
    for fault in ("crash rank=2 at=1", slow, cut):
        with pytest.raises(ValueError, match="there are 2"):
            VirtualWorld(2, Cluster(faults=(fault,)))


def test_links_of_equal_hosts_have_no_names():
    with pytest.raises(ValueError, match="only links of described hosts have names"):
        VirtualWorld(2, Cluster(faults=("cut link=up from=0 to=1",)))


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0.1, 5), st.floats(1, 8)).map(
            lambda t: Slow(0, t[2], t[0], t[0] + t[1])
        ),
        max_size=4,
    ),
    st.floats(0, 12),
    st.floats(0, 10),
)
def test_slow_work_is_as_much_work(slow, start, seconds):
    end = end_of_work(slow, start, seconds)
    steps = 4000  # the same, added up moment by moment
    width, done = (end - start) / steps, 0.0
    for n in range(steps):
        now, factor = start + (n + 0.5) * width, 1.0
        for each in slow:
            if each.since <= now < each.until:
                factor *= each.factor
        done += width / factor
    assert done == pytest.approx(seconds, abs=(2 * len(slow) + 1) * width + 1e-9)


def test_cuts_follow_one_another():
    assert end_of_cuts([Cut(0, 3.0, 4.0), Cut(0, 1.0, 3.0)], 2.0) == 4.0
    assert end_of_cuts([Cut(0, 1.0, 3.0)], 3.0) == 3.0


def times(cluster: Cluster, work, size: int = 2) -> list[float]:
    async def play(comm):
        await work(comm)
        return comm.now()

    return VirtualWorld(size, cluster).run(play)


ROUND = Cluster(sample_seconds=1.0, latency=0.0, bandwidth=1.0)


def test_a_slow_rank_is_slow_for_a_while():
    async def three(comm):
        for _ in range(3):
            await comm.compute(lambda: None, SECOND)

    cluster = replace(ROUND, faults=("slow rank=1 factor=2 from=1 to=2",))
    assert times(cluster, three) == [3.0, 3.5]  # in that second it does half a second's work


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_a_host_that_is_cut_off_sends_later(sharing):
    async def send(comm):
        if comm.rank == 0:
            await comm.compute(lambda: None, SECOND)
            await comm.send(1, Phantom(2))
        else:
            await comm.recv(0)

    cluster = replace(ROUND, sharing=sharing, faults=("cut host=0 from=0.5 to=4",))
    assert times(cluster, send)[1] == 6.0
    if sharing == "turns":
        receiving = replace(cluster, faults=("cut host=1 from=0.5 to=4",))
        assert times(receiving, send)[1] == 6.0


def test_sums_wait_for_a_host_that_is_cut_off():
    async def add(comm):
        await comm.all_reduce(Phantom(2))

    cluster = replace(ROUND, faults=("cut host=1 from=0 to=3",))
    assert times(cluster, add) == [5.0, 5.0]


def test_a_crash_ends_the_world_and_is_named():
    cluster = Cluster(sample_seconds=1.0, faults=("crash rank=1 at=3",))
    run = small_run("all-reduce", 3, cluster=cluster)
    with pytest.raises(WorldFailed, match=r"rank 1 crashed.*rank 0 waits for all-reduce"):
        play(run)


def test_a_crash_after_the_end_is_none():
    run = small_run("all-reduce", 3, cluster=Cluster(faults=("crash rank=1 at=1e9",)))
    assert len(play(run).ranks) == 3


def test_the_command_tells_of_a_crash(tmp_path):
    (tmp_path / "bad.toml").write_text('faults = ["crash rank=1 at=0.01"]\n')
    words = ["simulate", "teacher", "-s", "ring", "-n", "3", "--timing-only"]
    told = command(*words, "--cluster", "bad.toml", cwd=tmp_path)
    assert told.returncode == 1
    assert "rank 1 crashed" in told.stderr
