"""Events: a vocabulary that must not change by accident, and the figures read from it."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace

import pytest
from helpers import small_run

from regatta.config import Checkpointing, Stop
from regatta.events import (
    KINDS,
    Checkpointed,
    Died,
    Ended,
    Evaluated,
    Progress,
    RankEnded,
    Resumed,
    Sampled,
    Spans,
    Started,
    StoodStill,
    Tail,
    Usage,
    Warned,
    Writer,
    from_line,
    read,
    to_line,
)
from regatta.metrics import summarise
from regatta.runs import Plan, simulate

STARTED = Started(
    rank=0,
    time=0.0,
    world="virtual",
    strategy="ring",
    workers=2,
    ranks=2,
    minibatch=4,
    seed=1,
    metric="accuracy",
    higher_is_better=True,
    target=0.9,
    vector_bytes=24,
)


def progress(time):
    return Progress(
        rank=1, time=time, turns=3, samples=12, loss=0.5,
        computing=0.75, waiting=0.25, messages=4, bytes=96,
    )  # fmt: skip


def evaluated(time, accuracy, seconds=0.5):
    return Evaluated(
        rank=0, time=time + 10, training=time, samples=int(100 * time), epoch=1.0,
        seconds=seconds, results={"accuracy": accuracy, "loss": 1 - accuracy},
    )  # fmt: skip


def rank_ended(rank, role="worker", samples=200, computing=3.0, waiting=1.0, staleness=None):
    return RankEnded(
        rank=rank, time=5.0, role=role, turns=50, steps=50, samples=samples, computing=computing,
        waiting=waiting, messages=10, bytes=240, staleness=staleness or {}, digest="abc",
    )  # fmt: skip


ENDED = Ended(rank=0, time=15.0, training=4.0, reason="target", samples=400, results={"loss": 0.1})

ONE_OF_EACH = [
    STARTED,
    progress(1.0),
    evaluated(2.0, 0.5),
    Sampled(rank=0, time=2.0, turns=50, seconds=0.01, reference="a cat", hypothesis="a at"),
    Warned(rank=0, time=2.0, text="all frames are silence"),
    Checkpointed(rank=0, time=2.5, segment=1, path="000001"),
    Died(rank=1, time=2.75, role="worker", how="was killed by SIGKILL", then="restart", lost=0.25),
    StoodStill(rank=1, time=2.75, seconds=1.5, then="waited for"),
    Resumed(rank=0, time=3.0, segment=1),
    Usage(rank=0, time=3.0, interval=0.1, cpu=[0.5, 1.0], memory=1000),
    Spans(rank=0, time=3.0, kinds="cw", starts=[0.0, 0.5], ends=[0.5, 0.75]),
    rank_ended(0, staleness={0: 1, 12: 3}),
    ENDED,
]


# -- the vocabulary -------------------------------------------------------------------------


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.name)
def test_every_kind_survives_its_line(event):
    assert from_line(to_line(event)) == event
    assert "\n" not in to_line(event)


def test_there_is_one_of_each():
    assert {type(event) for event in ONE_OF_EACH} == set(KINDS.values())


# Fields may be added within a version; a change or removal is a new version.
SCHEMA = {
    "started": "rank time version world strategy workers ranks minibatch seed metric "
    "higher_is_better target vector_bytes last spec lr hosts worker_hosts price_per_hour "
    "train_samples "
    "eval_samples start",
    "progress": "rank time turns samples loss computing waiting messages bytes place",
    "evaluated": "rank time training samples epoch seconds results",
    "sampled": "rank time turns seconds reference hypothesis",
    "warned": "rank time text",
    "checkpointed": "rank time segment path",
    "died": "rank time role how then lost",
    "stood_still": "rank time seconds then",
    "resumed": "rank time segment target last since workers",
    "usage": "rank time interval cpu gpu memory",
    "spans": "rank time kinds starts ends",
    "rank_ended": "rank time role turns steps samples computing waiting messages bytes dropped "
    "staleness digest audio joules preempted",
    "ended": "rank time training reason samples results",
}


def test_the_schema_is_as_written_down():
    assert {name: " ".join(f.name for f in fields(kind)) for name, kind in KINDS.items()} == SCHEMA


VERSION_1 = """\
{"event":"started","rank":0,"time":0.0,"version":1,"world":"processes","strategy":"averaging",\
"workers":2,"ranks":2,"minibatch":64,"seed":0,"metric":"accuracy","higher_is_better":true,\
"target":null,"vector_bytes":400}
{"event":"progress","rank":1,"time":0.1,"turns":0,"samples":0,"loss":null,"computing":0.0,\
"waiting":0.0,"messages":0,"bytes":0}
{"event":"evaluated","rank":0,"time":2.0,"training":1.5,"samples":640,"epoch":1.0,"seconds":0.5,\
"results":{"accuracy":0.5,"loss":1.25}}
{"event":"checkpointed","rank":0,"time":2.25,"segment":1,"path":"000001"}
{"event":"rank_ended","rank":1,"time":3.0,"role":"worker","turns":5,"steps":5,"samples":320,\
"computing":1.0,"waiting":0.5,"messages":4,"bytes":1600,"dropped":0,"staleness":{"0":5},"digest":"0123abcd"}
{"event":"ended","rank":0,"time":3.0,"training":2.5,"reason":"budget","samples":640,\
"results":{"accuracy":0.5,"loss":1.25}}
"""


def test_a_file_of_version_1_is_still_read(tmp_path):
    (tmp_path / "events.jsonl").write_text(VERSION_1)
    events = read(tmp_path / "events.jsonl")
    assert [event.name for event in events] == [
        "started", "progress", "evaluated", "checkpointed", "rank_ended", "ended",
    ]  # fmt: skip
    assert events[0].target is None
    assert events[4].staleness == {0: 5}
    assert summarise(events).throughput == 320 / 2.5


def test_what_is_written_is_as_in_the_sample():
    """The other direction: today's writer makes the same lines, with what was added since."""
    for line in VERSION_1.splitlines():
        before, now = json.loads(line), json.loads(to_line(from_line(line)))
        assert {name: now[name] for name in before} == before
        assert list(now)[: len(before)] == list(before)


# -- reading --------------------------------------------------------------------------------


def test_fields_added_later_are_passed_over():
    line = json.loads(to_line(ENDED)) | {"mood": "good"}
    assert from_line(json.dumps(line)) == ENDED


def test_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(replace(STARTED, version=2)) + "\n")
    with pytest.raises(ValueError, match=r"events\.jsonl:1 .*version 2; this Regatta reads 1"):
        read(path)


def test_half_a_last_line_is_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(STARTED) + "\n" + to_line(ENDED)[:20])
    assert read(path) == [STARTED]


@pytest.mark.parametrize(
    "line", ["nonsense", '{"event":"other"}', '{"event":"ended"}', "{}", "3", "[]", "null"]
)
def test_a_line_that_is_no_event_is_named(tmp_path, line):
    path = tmp_path / "events.jsonl"
    path.write_text(f"{to_line(STARTED)}\n{line}\n{to_line(ENDED)}\n")
    with pytest.raises(ValueError, match=r"events\.jsonl:2 is not an event"):
        read(path)


def test_what_came_after_a_checkpoint_that_was_resumed_does_not_count(tmp_path):
    before, lost, again = progress(1.0), progress(2.5), progress(2.25)
    resumed = Resumed(rank=0, time=2.0, segment=1)
    path = tmp_path / "events.jsonl"
    write = Writer(path)
    for event in (STARTED, before, lost, resumed, again):
        write(event)
    write.close()
    assert read(path) == [STARTED, before, resumed, again]


def test_a_writer_without_a_file_remembers_and_tells():
    told = []
    write = Writer(None, told.append)
    write(STARTED)
    assert write.events == told == [STARTED]


def test_a_tail_gives_whole_new_lines_once(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(to_line(STARTED) + "\n")
    tail = Tail(path)  # from the present end
    assert tail() == []
    line = to_line(ENDED)
    with path.open("a") as file:
        file.write(line[:10])
        file.flush()
        assert tail() == []
        file.write(line[10:] + "\n")
    assert tail() == [ENDED]
    assert tail() == []


def test_a_simulation_on_disk_leaves_no_file_open(tmp_path):
    """A race of many runs would otherwise run out of them."""
    run = small_run("ring", 5, stop=Stop(epochs=0.5), checkpointing=Checkpointing())
    before = len(os.listdir("/proc/self/fd"))
    simulate(run, Plan("teacher", run, tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


# -- figures --------------------------------------------------------------------------------


def a_run(*scores, ended=ENDED, started=STARTED):
    ranks = [rank_ended(0, staleness={0: 1, 1: 1}), rank_ended(1, staleness={1: 1, 4: 1})]
    server = rank_ended(2, role="server", samples=0, computing=100.0, waiting=100.0)
    return [started, *scores, *ranks, server, ended]


def test_a_summary():
    summary = summarise(a_run(evaluated(1.0, 0.5), evaluated(2.0, 0.9), evaluated(3.0, 0.8)))
    assert summary.time_to_target == 2.0  # the first that reaches it, on the training clock
    assert summary.interpolated_time == pytest.approx(2)
    assert (summary.final, summary.best) == (0.8, 0.9)
    assert (summary.seconds, summary.samples, summary.throughput) == (4.0, 400, 100.0)
    assert summary.waiting_share == 0.25  # of the workers alone
    assert summary.evaluation_seconds == 1.5
    assert (summary.messages, summary.bytes) == (30, 720)
    assert (summary.mean_staleness, summary.max_staleness) == (1.5, 4)
    assert summary.p95_staleness == 4
    assert sum(summary.staleness.values()) > 0
    assert (summary.strategy, summary.workers, summary.reason) == ("ring", 2, "target")


def test_a_target_that_was_missed_or_not_set():
    missed = a_run(evaluated(1.0, 0.5))
    assert summarise(missed).time_to_target is None
    unset = a_run(evaluated(1.0, 0.95), started=replace(STARTED, target=None))
    assert summarise(unset).time_to_target is None


def test_a_metric_whose_less_is_more():
    started = replace(STARTED, metric="loss", higher_is_better=False, target=0.25)
    scores = [evaluated(1.0, 0.5), evaluated(2.0, 0.75), evaluated(3.0, 0.7)]
    summary = summarise(a_run(*scores, ended=replace(ENDED, results={}), started=started))
    assert summary.time_to_target == 2.0
    assert summary.best == 0.25
    assert summary.final == pytest.approx(0.3)


def test_the_final_result_is_that_of_the_answer():
    """Which is the best model, where a run had patience."""
    ended = replace(ENDED, reason="patience", results={"accuracy": 0.9})
    scores = [evaluated(1.0, 0.5), evaluated(2.0, 0.9), evaluated(3.0, 0.8)]
    assert summarise(a_run(*scores, ended=ended)).final == 0.9
    assert summarise([STARTED, *scores]).final == 0.8  # it was broken off


def test_a_run_without_scores_or_ages():
    ended = replace(ENDED, training=0.0)
    summary = summarise([STARTED, rank_ended(0, computing=0.0, waiting=0.0), ended])
    assert (summary.best, summary.final, summary.mean_staleness) == (None, None, None)
    assert (summary.throughput, summary.waiting_share) == (0.0, 0.0)


def test_a_run_that_has_not_ended_is_broken_off():
    summary = summarise([STARTED, evaluated(2.0, 0.5)])
    assert (summary.reason, summary.final) == ("broken off", 0.5)
    assert summary.time_to_target is None


def test_a_run_that_has_not_even_begun_has_no_summary():
    with pytest.raises(ValueError, match="no event that says how the run started"):
        summarise([evaluated(2.0, 0.5)])
