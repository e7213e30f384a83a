"""Measuring a machine, and a cluster made of what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from helpers import Sized, play, small_run
from hypothesis import given
from hypothesis import strategies as st
from real import command

from regatta.cluster import Cluster
from regatta.cluster.curve import checked_curve, on_curve
from regatta.cluster.explain import Job, explained, sources_in
from regatta.cluster.probe import Measured, as_toml, fitted
from regatta.cluster.recorded import recorded
from regatta.comm import Load
from regatta.config import Stop
from regatta.events import RankEnded, Spans
from regatta.probing import probe
from regatta.resolve import load_cluster
from regatta.worlds.virtual import VirtualWorld

NBYTES = 4_000_000


def measured(workers: int = 2, slower: float = 1.25) -> Measured:
    """Gradients of 1 ms and 0.1 ms a sample, slower by a quarter where both compute."""
    alone = {m: [1e-3 + 1e-4 * m] * 10 for m in (8, 32)}
    together = {m: [[[slower * s for s in alone[m]]] * workers] * 2 for m in alone}  # two starts
    return Measured(
        nbytes=NBYTES,
        alone=alone,
        together=together,
        steps=[[slower * 1e-3] * 10] * workers,
        gathers=[[slower * 0.5e-3] * 10] * workers,
        merges=[[slower * 2e-3] * 10] * workers,
        exchanges=[[slower * 1e-3 + 4e-3] * 10] * workers,
        messages=[(n, 20e-6 + n / 5e9) for n in (4096, 65536, NBYTES)],
        sums=[(n, 1e-4 + n / 1e9) for n in (4096, 65536, NBYTES)],
    )


class TestFit:
    def test_what_was_measured_is_charged(self):
        cluster = fitted(measured(), devices=2).cluster
        for rank in range(2):
            seconds = cluster.computing(rank, workers=2)
            assert seconds(Load(samples=8)) == pytest.approx(1.25 * 1.8e-3)
            assert seconds(Load(samples=20)) == pytest.approx(1.25 * 3e-3)  # between
            assert seconds(Load(stepped=NBYTES)) == pytest.approx(1.25e-3)
            assert seconds(Load(nbytes=NBYTES)) == pytest.approx(2.5e-3)
            assert seconds(Load(gathered=NBYTES)) == pytest.approx(0.625e-3)
        assert cluster.computing(0, workers=1)(Load(samples=8)) == pytest.approx(1.8e-3)
        assert cluster.all_reduce(NBYTES, 2, hosts=1) == pytest.approx(4e-3)
        assert cluster.local_latency == pytest.approx(20e-6, rel=0.01)
        assert cluster.local_bandwidth == pytest.approx(5e9, rel=0.01)
        assert (cluster.jitter, cluster.pauses) == (0, 0)

    def test_workers_keep_their_own_pace(self):
        found = measured()
        slow = {
            m: [[fast, [1.5 * s for s in late]] for fast, late in starts]
            for m, starts in found.together.items()
        }
        cluster = fitted(replace(found, together=slow), devices=2).cluster
        fast, late = (cluster.computing(rank, 2)(Load(samples=8)) for rank in range(2))
        assert late / fast == pytest.approx(1.5)
        assert cluster.uneven == pytest.approx(0, abs=1e-9)

    def test_what_a_start_has_by_luck_stays_with_a_run(self):
        """Workers that are by turns the slower one have no pace of their own, but uneven ones."""
        found, count = measured(), 40
        times = [[[1.04e-3] * 9, [0.96e-3] * 9], [[0.96e-3] * 9, [1.04e-3] * 9]] * (count // 2)
        told = fitted(replace(found, together={8: times}, alone={8: [1e-3]}), 2).cluster
        assert told.paces == pytest.approx((1, 1))
        assert told.jitter == pytest.approx(0, abs=1e-9)
        # Half of what they lie apart is what a normal spread of these makes one wait in the mean.
        slower = [
            max(replace(told, jitter_seed=s).computing(r, 2)(Load(samples=8)) for r in (0, 1))
            for s in range(2000)
        ]
        assert fmean(slower) == pytest.approx(1.04e-3, rel=0.005)

    def test_interruptions_are_pauses_and_no_jitter(self):
        found = measured()
        some = [*found.together[8][0][0][:-1], 1.0]
        told = fitted(replace(found, together={8: [[some, some]]}, alone={8: found.alone[8]}), 2)
        assert told.cluster.pauses == pytest.approx(0.1)
        assert told.cluster.pause_seconds == pytest.approx(1.0, rel=0.01)
        assert told.cluster.jitter == 0

    def test_workers_wait_for_each_other_as_long_as_measured(self):
        """Rare slow gradients cost a barrier less than their squares say."""
        found = measured()
        base, late = found.together[8][0][0][0], 1.8
        own = [
            [base * (late if n % 20 == worker else 1.0) for n in range(400)] for worker in (0, 1)
        ]
        cluster = fitted(replace(found, together={8: [own]}, alone={8: own[0]}), 2).cluster
        free = {"sum_bandwidth": 1e15, "sum_latency": 0.0, "gather_bandwidth": 0.0}
        cluster = replace(cluster, step_bandwidth=0.0, **free)
        task, stop = Sized(8, train=2 * 8 * 2000), Stop(epochs=1)
        run = small_run("all-reduce", 2, task=task, minibatch=8, stop=stop, cluster=cluster)
        rank = play(run, timing_only=True).ranks[0]
        measured_step = base * (1 + 2 * 0.05 * (late - 1))
        assert rank.time / rank.turns == pytest.approx(measured_step, rel=0.02)

    def test_what_slows_all_workers_at_once_is_no_jitter(self):
        found = measured()
        drifting = [1e-3 * (1 + 0.5 * (n % 2)) for n in range(100)]
        told = fitted(replace(found, together={8: [[drifting] * 2]}, alone={8: drifting}), 2)
        assert told.cluster.jitter == 0
        alone = replace(measured(1), together={8: [[drifting]]}, alone={8: drifting})
        assert fitted(alone, 1).cluster.jitter > 0.3

    def test_gradients_cost_their_mean(self):
        found = measured()
        skewed = [1e-3] * 80 + [1.5e-3] * 20
        told = fitted(replace(found, together={8: [[skewed] * 2]}, alone={8: skewed}), 2)
        assert told.cluster.curve == ((8, pytest.approx(1.1e-3)),)

    def test_what_could_not_be_told_is_said(self):
        alone = replace(measured(workers=1), exchanges=[], messages=[], sums=[])
        told = fitted(alone, devices=1)
        assert "one worker" in " ".join(told.remarks)
        assert told.cluster.sum_bandwidth == 0
        hidden = replace(measured(), exchanges=[[1e-3]] * 2)
        assert "bandwidth of sums" in " ".join(fitted(hidden, 2).remarks)
        assert fitted(hidden, 2).cluster.all_reduce(NBYTES, 2, hosts=1) < 1e-6

    def test_a_file_of_it_is_the_same_cluster(self, tmp_path):
        told = fitted(measured(), devices=2)
        (tmp_path / "here.toml").write_text(as_toml(told, "a machine"))
        again = load_cluster(str(tmp_path / "here.toml"))
        for name in set(told.sources) - {"curve"}:
            assert getattr(again, name) == pytest.approx(getattr(told.cluster, name), rel=1e-5)
        for read, written in zip(again.curve, told.cluster.curve, strict=True):
            assert read == pytest.approx(written, rel=1e-5)


class TestCurve:
    @given(
        st.lists(st.floats(1, 1000), min_size=2, max_size=6, unique=True),
        st.floats(0, 1),
        st.floats(1e-6, 1),
        st.floats(1, 2000),
    )
    def test_a_line_is_a_line(self, sizes, fixed, slope, samples):
        curve = checked_curve([(n, fixed + slope * n) for n in sizes])
        assert on_curve(curve, samples) == pytest.approx(fixed + slope * samples, rel=1e-4)

    def test_it_goes_through_its_points_and_never_below_zero(self):
        curve = checked_curve([(64, 3.0), (8, 1.0), (32, 1.5)])
        assert [on_curve(curve, n) for n in (8, 32, 48, 64)] == [1.0, 1.5, 2.25, 3.0]
        steep = checked_curve([(10, 0.1), (20, 2.0)])
        assert on_curve(steep, 1) == 0.0

    def test_one_point_is_a_speed(self):
        assert on_curve(((10.0, 2.0),), 5) == 1.0

    @pytest.mark.parametrize(
        ("points", "said"),
        [([(0, 1)], "more than 0"), ([(1, -1)], "more than 0"), ([(1, 1), (1, 2)], "twice"),
         ([(1, 2, 3)], "pairs")],
    )  # fmt: skip
    def test_nonsense(self, points, said):
        with pytest.raises(ValueError, match=said):
            Cluster(curve=points)


# -- what the virtual clock makes of it ----------------------------------------------------------


def seconds_of(work, cluster: Cluster) -> float:
    world = VirtualWorld(1, cluster)

    async def play(comm):
        await work(comm)
        return comm.now()

    return world.run(play)[0]


def test_a_step_outside_of_computing_makes_the_next_computing_longer():
    cluster = Cluster(sample_seconds=1.0, step_bandwidth=10.0)

    async def two_turns(comm):
        for _ in range(2):
            await comm.compute(lambda: None, Load(samples=1))
            comm.owe(5)

    assert seconds_of(two_turns, cluster) == 2.5  # the last step is not waited for
    assert seconds_of(two_turns, replace(cluster, step_bandwidth=0.0)) == 2.0


def test_a_step_inside_of_computing_is_part_of_it():
    cluster = Cluster(sample_seconds=1.0, step_bandwidth=10.0, merge_bandwidth=5.0)

    async def merge(comm):
        await comm.compute(lambda: comm.owe(5), Load(nbytes=5))
        await comm.compute(lambda: None, Load(samples=1))

    assert seconds_of(merge, cluster) == 2.0


class TestDevices:
    cluster = Cluster(devices=2, per_host=2)

    def test_more_ranks_than_devices_are_refused(self):
        with pytest.raises(ValueError, match=r"3 ranks and 2 devices.*--oversubscribe"):
            VirtualWorld(3, self.cluster)
        with pytest.raises(ValueError, match="colocated"):
            VirtualWorld(3, self.cluster, workers=2)
        VirtualWorld(3, self.cluster, workers=2, shares=[0])

    def test_who_may_share_shares(self):
        cluster = replace(self.cluster, oversubscribe=True)
        assert cluster.hosts(2, [None]) == [0, 0, 0]
        assert cluster.placed(2, [None, None, 1]) == [0, 1, 1]
        world = VirtualWorld(4, cluster)

        async def play(comm):
            await comm.compute(lambda: None, Load(samples=10_000))
            return comm.now()

        assert world.run(play) == [1.0, 1.0, 2.0, 2.0]  # one after the other

    def test_the_command_says_so(self, tmp_path):
        (tmp_path / "two.toml").write_text("devices = 2\n")
        words = ["simulate", "teacher", "-s", "all-reduce", "-n", "4", "--timing-only"]
        told = command(*words, "--cluster", "two.toml", cwd=tmp_path)
        assert told.returncode == 2
        assert "--oversubscribe" in told.stderr
        told = command(*words, "--cluster", "two.toml", "--oversubscribe", cwd=tmp_path)
        assert told.returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("curve = 3", "must be like"), ("curve = [[1, true]]", "must be like"),
     ("paces = [[1]]", "must be like"), ("paces = [0.0]", "paces"), ("devices = -1", "devices"),
     ("oversubscribe = 1", "true or false"), ("sum_bandwidth = -2.0", "sum_bandwidth")],
)  # fmt: skip
def test_files_that_make_no_sense(tmp_path, text, said):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        load_cluster(str(tmp_path / "bad.toml"))


# -- from a run's events -------------------------------------------------------------------------


def ended(rank: int, role: str = "worker") -> RankEnded:
    return RankEnded(
        rank=rank, time=1.0, role=role, turns=4, steps=4, samples=40, computing=1.0, waiting=0.1,
        messages=4, bytes=400,
    )  # fmt: skip


def spans(rank: int, kinds: str, lengths: list[float]) -> Spans:
    starts = [float(n) for n in range(len(kinds))]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    return Spans(rank=rank, time=0.0, kinds=kinds, starts=starts, ends=ends)


class TestRecorded:
    def test_sums_are_told_by_who_comes_last(self):
        events = [
            spans(0, "cwcw", [0.2, 0.05, 0.2, 0.01]), ended(0),
            spans(1, "cwcw", [0.4, 0.01, 0.4, 0.03]), ended(1),
        ]  # fmt: skip
        told = recorded(events, minibatch=10, devices=2, sums=True)
        assert told.cluster.paces == pytest.approx((2 / 3, 4 / 3))
        assert told.cluster.curve == ((10, pytest.approx(0.3)),)
        assert told.cluster.sum_bandwidth == pytest.approx(100 / 0.01)
        assert "fixed part" in told.remarks[0]

    def test_merges_are_told_from_gradients(self):
        events = [spans(0, "ccccc", [0.2, 0.01, 0.21, 0.01, 0.2]), ended(0)]
        told = recorded(events, minibatch=10, devices=2, sums=False)
        assert told.cluster.merge_bandwidth == pytest.approx(100 / 0.01)
        assert told.cluster.curve == ((10, pytest.approx(0.2)),)
        assert "sums could not be told" in told.remarks[-1]

    def test_a_server_merges(self):
        events = [
            spans(0, "cc", [0.2, 0.2]),
            ended(0),
            spans(1, "cc", [0.02] * 2),
            ended(1, "server"),
        ]
        told = recorded(events, minibatch=10, devices=2, sums=False)
        assert told.cluster.merge_bandwidth == pytest.approx(100 / 0.02)

    def test_nothing_to_tell(self):
        with pytest.raises(ValueError, match="no worker"):
            recorded([], 10, 2, True)
        with pytest.raises(ValueError, match="no spans"):
            recorded([ended(0)], 10, 2, True)


# -- for real ------------------------------------------------------------------------------------


@pytest.mark.real
def test_a_machine_is_measured():
    from regatta.recipes import load

    found = probe(load("teacher"), 2, (16, 512), seconds=0.1)
    assert set(found.alone) == set(found.together) == {16, 512}
    starts = [start for starts in found.together.values() for start in starts]
    for times in (found.steps, found.merges, found.exchanges, *starts):
        assert len(times) == 2
        assert all(seconds > 0 for own in times for seconds in own)
    assert all(found.gathers)
    assert max(n for n, _ in found.sums) == found.nbytes
    cluster = fitted(found, devices=2).cluster
    assert cluster.sum_bandwidth > 0
    assert cluster.computing(0, 2)(Load(samples=512)) > cluster.computing(0, 2)(Load(samples=16))
    assert torch.get_num_threads() >= 1


@pytest.mark.real
def test_the_command_writes_a_cluster_that_simulates(tmp_path):
    words = ["probe", "teacher", "--seconds", "0.02", "--explain", "-o", "here.toml"]
    told = command(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "GB/s" in told.stdout
    assert "a sum of 2 workers: sum_latency + " in told.stdout
    assert "/ gather_bandwidth" in told.stdout
    words = ["simulate", "teacher", "-s", "all-reduce", "-n", "2", "--timing-only", "--json"]
    told = command(*words, "--cluster", "here.toml", cwd=tmp_path)
    assert json.loads(told.stdout)["throughput"] > 0


@pytest.mark.real
def test_a_run_tells_too(tmp_path):
    words = ["train", "teacher", "-s", "all-reduce", "-n", "2", "--set", "stop.epochs=1"]
    assert command(*words, "-o", "run", cwd=tmp_path).returncode == 0
    told = command("probe", "--from", "run", "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["cluster"]["sum_bandwidth"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [(["probe"], "--from RUN"), (["probe", "teacher", "-o", "x.json"], ".toml"),
     (["probe", "teacher", "--minibatch", "a"], "32,64,128"),
     (["probe", "teacher", "-n", "512"], "--workers"), (["probe", "--from", "."], "holds no run"),
     (["probe", "teacher", "--seconds", "0"], "more than 0")],
)  # fmt: skip
def test_wrong_words(tmp_path, words, said):
    told = command(*words, cwd=tmp_path)
    assert told.returncode == 2
    assert said in told.stderr


# -- explained -----------------------------------------------------------------------------------


class TestExplained:
    job = Job(workers=8, hosts=2, minibatch=32, nbytes=4_000_000)

    def test_figures_are_those_that_are_charged(self):
        cluster = Cluster(per_host=4, step_bandwidth=8e9, jitter=0.3)
        lines = list(explained(cluster, self.job, {"bandwidth": "a leaflet"}))
        told = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
        assert told["a gradient of worker 0"].endswith("= 3.2 ms")
        assert told["a step"].endswith("= 500 us")
        assert told["a merge"].endswith("= 400 us")
        assert told["a message between hosts"].endswith("= 325 us")
        seconds = cluster.all_reduce(4_000_000, 8, 2)
        assert told["a sum of 8 workers"].endswith(f"= {1e6 * seconds:.3g} us")
        assert "    bandwidth = 1.25e+10: a leaflet" in lines
        assert "    sample_seconds = 0.0001: the default" in lines
        assert "    jitter = 0.3: as given" in lines

    def test_memory_that_is_shared(self):
        cluster = Cluster(per_host=8, sum_bandwidth=4e9, curve=((32, 0.5),))
        lines = "\n".join(explained(cluster, replace(self.job, hosts=1)))
        assert "sum_latency + 4,000,000 / sum_bandwidth = 1 ms" in lines
        assert "curve at 32 samples = 500 ms" in lines
        assert "between hosts" not in lines

    def test_sources_stand_beside_values(self):
        text = "# a machine\nbandwidth = 1e9  # Table 2\nper_host: 4 # told\nlatency = 1e-6\n"
        assert sources_in(text) == {"bandwidth": "Table 2", "per_host": "told"}

    def test_the_command(self, tmp_path):
        words = ["simulate", "teacher", "-s", "all-reduce", "-n", "4", "--timing-only"]
        told = command(*words, "--cluster", "campos", "--explain", cwd=tmp_path)
        assert "Table 2: four of a host train" in told.stdout
