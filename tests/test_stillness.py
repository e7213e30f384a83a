"""Slow is not dead: who stands still is told by name, waited for, and given up only if asked."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import replace

import pytest
from helpers import play, small_run
from real import light_fuse, plan
from rich.console import Console

from regatta import runs
from regatta.cluster import Cluster
from regatta.display import Display, summary_lines
from regatta.events import Died, Progress, StoodStill, read
from regatta.metrics import summarise
from regatta.worlds import stillness
from regatta.worlds.stillness import Still, Stillness


def only(kind, events):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.real
@pytest.mark.parametrize("spec", ["all-reduce", "parameter-server"])
def test_who_stands_still_is_waited_for(spec, tmp_path):
    made = plan(tmp_path / "run", spec, 2, light_fuse(tmp_path, 1, 20, "stop"))

    def watch(events):
        if any(event.then == "waited for" for event in only(StoodStill, events)):
            os.kill(int((tmp_path / "fuse.burnt").read_text()), signal.SIGCONT)

    ended = runs.train(made, watch=watch)
    told = only(StoodStill, read(made.events))
    assert [(event.rank, event.then) for event in told] == [(1, "waited for"), (1, "went on")]
    assert told[1].seconds >= told[0].seconds >= stillness.TOLD_AFTER
    assert not only(Died, read(made.events))
    assert len(ended) == made.run.num_ranks
    assert runs.replay(made.folder).identical


@pytest.mark.real
@pytest.mark.parametrize(
    ("spec", "then"), [("all-reduce", "restart"), ("parameter-server", "go on")]
)
def test_who_is_given_up_has_died(spec, then, tmp_path):
    fuse = light_fuse(tmp_path, 1, 20, "stop")
    settings = ("death.silence=1.5", *(["death.then=restart"] if then == "restart" else []))
    made = plan(tmp_path / "run", spec, 2, (*fuse, *settings))
    runs.train(made)
    events = read(made.events)
    assert [event.then for event in only(StoodStill, events)][-1] == "given up"
    (death,) = only(Died, events)
    assert death.then == then
    assert death.how.startswith("stood still for ")
    assert runs.replay(made.folder).identical


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_time_that_nobody_looked_does_not_count(monkeypatch):
    """The launcher itself may have been stopped, together with everybody."""
    clock, stopped = Clock(), {7}
    monkeypatch.setattr(stillness, "time", clock)
    monkeypatch.setattr(stillness, "_is_stopped", stopped.__contains__)
    seen = Stillness({0: 5, 1: 7})
    assert seen.look() == [], "it was looked at just now"
    clock.now = 0.5
    assert seen.look() == [Still(1, 0.5, False)]
    clock.now = 3600.0
    assert seen.look() == [Still(1, 1.5, False)]
    stopped.clear()
    clock.now += 0.3
    assert seen.look() == [Still(1, 1.5, True)]
    clock.now += 0.3
    assert seen.look() == []


def test_this_process_is_not_stopped_and_no_process_neither():
    assert not stillness._is_stopped(os.getpid())
    assert not stillness._is_stopped(2**22 + 1)


# -- who is slow -----------------------------------------------------------------------------


def test_the_slowest_worker_is_named():
    cluster = Cluster(faults=("slow rank=2 factor=3 from=0 to=1e9",))
    summary = summarise(play(small_run("all-reduce", 4, cluster=cluster)).events)
    assert summary.slowest is not None
    assert summary.slowest.rank == 2
    assert summary.slowest.times == pytest.approx(3.0)
    assert any("rank 2 computed 3.00 times as long" in line for line in summary_lines(summary))


def test_equals_are_not_slow():
    assert summarise(play(small_run("all-reduce", 4)).events).slowest is None
    assert summarise(play(small_run("single")).events).slowest is None


def told(rank, time, computing):
    return Progress(
        rank=rank, time=time, turns=1, samples=10, loss=1.0, computing=computing, waiting=0.0,
        messages=0, bytes=0,
    )  # fmt: skip


def test_the_live_line_says_who_holds_up_the_others():
    text = io.StringIO()
    display = Display(Console(file=text, force_terminal=True, width=200), "run")
    display([told(0, 1.0, 0.5), told(1, 1.0, 0.5)])
    display([told(0, 2.0, 0.6), told(1, 2.0, 1.45)])
    assert display._held_up() == "the others wait for rank 1"
    display([told(0, 3.0, 1.5)])
    assert display._held_up() == ""
    display.close()


def test_stillness_is_shown():
    text = io.StringIO()
    event = StoodStill(rank=3, time=4.0, seconds=1.2, then="waited for")
    Display(Console(file=text, width=200), "run")([event, replace(event, then="went on")])
    assert "rank 3 has been stopped by a signal for 1.2 s: it is waited for" in text.getvalue()
    assert "rank 3 goes on, after 1.2 s" in text.getvalue()
