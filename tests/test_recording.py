"""What is written down besides results: usage, stretches of time, energy, scores."""

from __future__ import annotations

import threading
import time

import pytest
from helpers import play, small_run

from regatta.comm import Timeline, Traffic
from regatta.config import Recording, Stop
from regatta.events import Progress, Spans
from regatta.meters import Joules, Meters
from regatta.metrics import summarise
from regatta.sampler import Sampler
from regatta.scores import Scores
from regatta.tasks import Metric
from regatta.tasks.teacher import LabelledVectors, Teacher


def test_a_timeline_keeps_the_first_and_is_emptied():
    timeline = Timeline(2)
    for n in range(3):
        timeline.note("c", n, n + 0.5)
    assert timeline.take() == ("cc", [0, 1], [0.5, 1.5])
    assert timeline.take() == ("", [], [])
    timeline.note("w", 5, 6)
    assert timeline.take() == ("", [], []), "its room is used up"


def test_traffic_notes_what_it_adds_up():
    traffic = Traffic(timeline=Timeline(10))
    traffic.computed(1.0, 3.0)
    traffic.waited(3.0, 3.5)
    traffic.sent(3.5, 3.6)
    assert (traffic.computing, traffic.waiting) == (2.0, 0.5)
    assert traffic.timeline.take() == ("cws", [1.0, 3.0, 3.5], [3.0, 3.5, 3.6])


def test_what_traffic_has_added_up_outlives_it_without_the_timeline():
    traffic = Traffic(messages=3, waiting=1.5, staleness={2: 4}, timeline=Timeline(1))
    again = Traffic()
    again.restore(traffic.state())
    assert (again.messages, again.waiting, again.staleness, again.timeline) == (
        3,
        1.5,
        {2: 4},
        None,
    )


def test_virtual_spans_add_up_to_what_traffic_says():
    played = play(small_run("ring", workers=3))
    for ended in played.ranks:
        spans = [e for e in played.events if isinstance(e, Spans) and e.rank == ended.rank]
        seconds = dict.fromkeys("cswe", 0.0)
        for event in spans:
            for kind, start, end in zip(event.kinds, event.starts, event.ends, strict=True):
                assert end >= start
                seconds[kind] += end - start
        assert seconds["c"] == pytest.approx(ended.computing, abs=1e-4)
        assert seconds["w"] == pytest.approx(ended.waiting, abs=1e-4)
        assert any("s" in event.kinds for event in spans)


def test_spans_can_be_left_out():
    run = small_run("ring", workers=3, recording=Recording(spans=0))
    played = play(run)
    assert not any(isinstance(e, Spans) for e in played.events)
    assert any(isinstance(e, Progress) for e in played.events)


@pytest.mark.parametrize("name", ["usage", "spans", "sentences"])
def test_recording_refuses_negative_numbers(name):
    with pytest.raises(ValueError, match=rf"recording\.{name}"):
        Recording(**{name: -1})


# -- usage ------------------------------------------------------------------------------------


class Clock:
    """A clock, and meters whose process was busy for a quarter of the time that it told last."""

    def __call__(self):
        self.told = time.perf_counter()
        return self.told

    def cpu_seconds(self):
        return 0.25 * self.told

    def gpu_share(self):
        return None

    def resident_bytes(self):
        return 123


def test_samples_come_ten_times_a_second_and_tell_how_busy_it_was():
    told, enough = [], threading.Event()

    def log(event):
        told.append(event)
        enough.set()

    clock = Clock()
    with Sampler(3, 0.02, clock, log, clock):
        assert enough.wait(20)
    first = told[0]
    assert (first.rank, first.memory, first.gpu) == (3, 123, None)
    assert len(first.cpu) == 20
    assert all(share == pytest.approx(0.25, abs=0.01) for share in first.cpu)
    assert first.interval == pytest.approx(0.02, rel=0.5)
    assert len(told[-1].cpu) <= 20


def test_what_is_left_is_told_when_it_ends():
    told = []
    clock = Clock()
    with Sampler(0, 30.0, clock, told.append, clock):
        pass
    assert [len(event.cpu) for event in told] == [1]


def test_without_an_interval_there_are_no_samples():
    told = []
    clock = Clock()
    with Sampler(0, 0.0, clock, told.append, clock):
        pass
    assert told == []


def test_meters_of_this_process():
    meters = Meters("cpu")
    before = meters.cpu_seconds()
    sum(range(300_000))
    assert meters.cpu_seconds() > before
    assert meters.resident_bytes() > 10_000_000
    assert meters.gpu_share() is None


# -- energy -----------------------------------------------------------------------------------


def zone(root, number, microjoules, most=1_000_000_000):
    path = root / f"intel-rapl:{number}"
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")


def test_energy_is_that_of_all_zones_since_the_first_look(tmp_path):
    zone(tmp_path, 0, 5_000_000)
    zone(tmp_path, 1, 7_000_000)
    joules = Joules(tmp_path, gpus=False)
    zone(tmp_path, 0, 6_500_000)
    zone(tmp_path, 1, 7_250_000)
    assert joules.look() == pytest.approx(1.75)


def test_a_counter_that_turned_over_goes_on(tmp_path):
    zone(tmp_path, 0, 999_000_000)
    joules = Joules(tmp_path, gpus=False)
    zone(tmp_path, 0, 2_000_000)
    assert joules.look() == pytest.approx(3.0)


def test_energy_that_cannot_be_read_is_not_measured(tmp_path):
    assert Joules(tmp_path, gpus=False).look() is None
    zone(tmp_path, 0, 1)
    joules = Joules(tmp_path, gpus=False)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("refused")
    assert joules.look() is None
    zone(tmp_path, 0, 5)
    assert joules.look() is None, "a gap is not made up for"


# -- scores -----------------------------------------------------------------------------------


def test_the_median_of_the_last_must_be_there():
    scores, stop = Scores(Metric("accuracy")), Stop(target=0.9, last=3)
    found = []
    for value in (0.95, 0.5, 0.91, 0.92):
        scores.take({"accuracy": value})
        found.append(scores.are_enough(stop))
    assert found == [False, False, True, True]


def test_less_may_be_better():
    scores, stop = Scores(Metric("error", higher_is_better=False)), Stop(target=0.1)
    assert scores.take({"error": 0.5})
    assert not scores.are_enough(stop)
    assert scores.take({"error": 0.1})
    assert scores.are_enough(stop)
    assert not scores.take({"error": 0.2})


def test_scores_outlive_the_process():
    scores, stop = Scores(Metric("accuracy")), Stop(target=0.9, last=2)
    scores.take({"accuracy": 0.95})
    again = Scores(Metric("accuracy"))
    again.restore(scores.state())
    again.take({"accuracy": 0.9})
    assert again.are_enough(stop)
    assert not again.take({"accuracy": 0.94})


def test_last_is_at_least_one():
    with pytest.raises(ValueError, match=r"stop\.last must be 1 or more"):
        Stop(last=0)


# -- speech -----------------------------------------------------------------------------------


class Spoken(LabelledVectors):
    def audio_seconds(self, indices):
        return 2.5 * len(indices)


class Speech(Teacher):
    def open(self):
        data = super().open()
        data.__class__ = Spoken
        return data


def test_speech_is_also_counted_in_seconds():
    task = Speech(train=256, dev=64, hidden=(8,))
    played = play(small_run("all-reduce", workers=2, task=task, minibatch=16))
    for ended in played.ranks:
        assert ended.audio == 2.5 * ended.samples
    summary = summarise(played.events)
    assert summary.audio_throughput == pytest.approx(2.5 * summary.throughput)


def test_what_is_no_speech_has_no_seconds_of_it():
    played = play(small_run("all-reduce", workers=2))
    assert summarise(played.events).audio_throughput is None
