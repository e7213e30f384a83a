"""What other tools are given can be read by them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from racing import events_of, straight, write_events

from regatta.exports import convert
from regatta.race.entries import VIRTUAL, Lane

LANE = Lane("ring", 2, 32)


@pytest.fixture
def run(tmp_path):
    home = tmp_path / "run"
    write_events(home, events_of(straight(20.0), LANE, seed=7, price=3.0))
    values = {
        "run": {"task": {"name": "speech"}, "optimiser": {"name": "sgd"}},
        "environment": {"machine": "x86_64", "cores": 2, "torch": "2.13"},
        "recipe": "speech",
        "regatta_run": 1,
        "world": "processes",
        "stops": [],
    }
    (home / "run.json").write_text(json.dumps(values))
    return home


def complaints(path, ruleset):
    """What MLPerf's own checker has to say, by key.

    Its rule sets permit names of benchmarks whose rules it does not ship, and it falls over them:
    what it had found until then is all that there is to find.
    """
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    logging.disable(logging.CRITICAL)
    fell_over = ""
    try:
        mlp_compliance.main(str(path), f"training_{ruleset}/common.yaml", checker)
    except FileNotFoundError as error:
        fell_over = Path(error.filename).name
        checker.not_overwritable.pop()  # that it does not find its own file
    finally:
        logging.disable(logging.NOTSET)
    return [*checker.overwritable, *checker.not_overwritable], fell_over


@pytest.mark.parametrize(
    ("ruleset", "benchmark", "not_shipped"),
    [
        ("3.1.0", "rnnt", ""),
        ("3.1.0", "resnet", ""),
        ("4.0.0", "resnet", ""),
        ("4.1.0", "rnnt", "open_rnnt.yaml"),
        ("4.1.0", "resnet", "open_resnet.yaml"),
    ],
)
def test_mlperfs_checker_has_no_complaint(run, tmp_path, ruleset, benchmark, not_shipped):
    convert(run, "mlperf", tmp_path / "result_0.txt", benchmark)
    assert complaints(tmp_path / "result_0.txt", ruleset) == ([], not_shipped)


@pytest.mark.parametrize("ruleset", ["3.1.0", "4.0.0", "4.1.0"])
def test_of_other_tasks_it_only_does_not_know_the_name(run, tmp_path, ruleset):
    convert(run, "mlperf", tmp_path / "result_0.txt")
    found, _ = complaints(tmp_path / "result_0.txt", ruleset)
    assert found == ["submission_benchmark"]


def test_the_checker_can_complain(run, tmp_path):
    path = tmp_path / "result_0.txt"
    convert(run, "mlperf", path, "rnnt")
    lines = [line for line in path.read_text().splitlines() if '"run_stop"' not in line]
    path.write_text("\n".join(lines) + "\n")
    found, _ = complaints(path, "4.1.0")
    assert found == ["run_stop"]


def mllog(path):
    return [json.loads(line.partition(" ")[2]) for line in path.read_text().splitlines()]


def test_mlperfs_clock_never_stops(run, tmp_path):
    """20 s of training and ten evaluations of half a second, the last of them timed as well."""
    convert(run, "mlperf", tmp_path / "log", "rnnt")
    lines = {line["key"]: line for line in mllog(tmp_path / "log")}
    assert lines["run_stop"]["time_ms"] - lines["run_start"]["time_ms"] == 25_000
    assert lines["run_stop"]["metadata"]["status"] == "success"
    assert lines["global_batch_size"]["value"] == 64
    assert lines["seed"]["value"] == 7
    assert lines["eval_accuracy"]["metadata"]["higher_is_better"] is True


def test_a_run_that_missed_the_target_was_aborted(tmp_path):
    write_events(tmp_path / "run", events_of(straight(None), LANE))
    convert(tmp_path / "run", "mlperf", tmp_path / "log", "rnnt")
    assert mllog(tmp_path / "log")[-1]["metadata"]["status"] == "aborted"


def test_virtual_time_says_so(tmp_path):
    write_events(tmp_path / "run", events_of(straight(20.0), Lane("ring", 2, 32, VIRTUAL)))
    convert(tmp_path / "run", "mlperf", tmp_path / "log")
    first = mllog(tmp_path / "log")[0]
    assert first["time_ms"] == 0
    assert mllog(tmp_path / "log")[-1]["metadata"]["clock"] == "virtual"


def test_a_trace_has_spans_of_every_rank(run, tmp_path):
    convert(run, "trace", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {(e["tid"], e["name"]) for e in spans} == {
        (rank, name) for rank in (0, 1) for name in ("computing", "waiting", "sending")
    }
    (waiting,) = (e for e in spans if e["tid"] == 1 and e["name"] == "waiting")
    assert (waiting["ts"], waiting["dur"]) == (500_000.0, 250_000.0)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        "rank 0, worker", "rank 1, worker",
    }  # fmt: skip
    assert sum(e["ph"] == "C" for e in events) == 4


def test_dawnbench_gets_hours_and_per_cent(run, tmp_path):
    about, curve = convert(run, "dawnbench", tmp_path / "entry").files
    values = json.loads(about.read_text())
    assert values["costPerHour"] == 3.0
    assert values["logFilename"] == curve.name
    head, *lines = curve.read_text().splitlines()
    assert head == "epoch\thours\ttop1Accuracy"
    epoch, hours, accuracy = map(float, lines[-1].split("\t"))
    assert (epoch, accuracy) == (4.0, 90.0)
    assert hours == pytest.approx(20 / 3600, abs=1e-7)


def test_tensorboard_reads_the_scalars(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = convert(run, "tensorboard", tmp_path / "board").files
    found = EventAccumulator(str(path.parent))
    found.Reload()
    scores = found.Scalars("evaluation/accuracy")
    assert len(scores) == 10
    assert scores[-1].value == pytest.approx(0.9)
    assert scores[-1].step == 4000
    assert found.Scalars("cores busy/rank 1")[0].value == 0.75


def test_what_could_not_be_read_is_named(run, tmp_path):
    path = run / "events.jsonl"
    path.write_text(path.read_text() + "no event\n")
    (complaint,) = convert(run, "trace", tmp_path / "t.json").complaints
    assert "is not an event" in complaint
    with pytest.raises(ValueError, match=r"events\.jsonl: No such file"):
        convert(tmp_path, "trace", tmp_path / "t.json")


def test_wrong_usage_is_named(run, tmp_path):
    with pytest.raises(ValueError, match="did you mean mlperf"):
        convert(run, "mlprf", tmp_path / "x")
    with pytest.raises(ValueError, match="--benchmark is for --to mlperf"):
        convert(run, "trace", tmp_path / "x", "rnnt")
    with pytest.raises(ValueError, match="cannot write to"):
        convert(run, "trace", tmp_path / "no" / "folder")
    with pytest.raises(ValueError, match="holds no run that can be converted"):
        convert(tmp_path / "nothing", "trace", tmp_path / "x")
