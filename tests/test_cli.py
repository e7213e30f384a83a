"""The command line: bad input gets one clear line and leaves nothing behind."""

import json
import os
import socket

import pytest
from real import RECIPE, command

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "teacher", "-s", "al-reduce"], "did you mean all-reduce?"),
        (["train", "teacher", "-s", "averaging:perod=3"], "did you mean period?"),
        (["train", "teacher", "-s", "averaging:period=0"], "period must be 1 or more"),
        (["train", "teacher", "-s", "averaging:period=x"], "expected a value of type int"),
        (["train", "techer"], "did you mean teacher?"),
        (["train", "nowhere.py:run"], "nowhere.py does not exist"),
        (["train", "teacher", "-s", "ring", "-n", "0"], "workers must be 1 or more"),
        (["train", "teacher", "--set", "stop.epoch=3"], "did you mean epochs?"),
        (["train", "teacher", "--set", "minibatch"], "not of the form name=value"),
        (["train", "teacher", "-s", "single", "-n", "2"], "use --workers 1"),
        (["train", "teacher", "--from", "nowhere"], "nowhere does not exist: name"),
        (["train", "teacher", "--resume"], "--resume needs --out"),
        (["train", "teacher", "--device", "tpu"], "device must be cpu or cuda"),
        (["simulate", "teacher", "-s", "ring", "--cluster", "etherne"], "did you mean ethernet"),
        (["simulate", "teacher", "-s", "ring", "-n", "5000"], "use fewer workers"),
        (["race", "teacher", "--strategies", "single,bring"], "did you mean ring?"),
        (["bench", "virtal"], "did you mean virtual?"),
        (["clusters", "cmpos"], "did you mean campos?"),
        (["replay", "nowhere"], "holds no run"),
        (["race", "teacher", "--workers", "2,x"], "numbers, separated by commas"),
        (["race", "teacher", "--seeds", "0"], "a race needs a seed"),
        (["race", "teacher", "--set", "workers=4"], "in a race use --workers"),
        (["race", "teacher", "--resume", "--target", "0", "-o", "x"], "a race goes on as it began"),
        (["race", "teacher", "--minibatch", "99999"], "minibatch"),
        (["report", "no[/b]where"], "no[/b]where holds neither a run nor a race"),
        (["race", "teacher", "--cluster", "default"], "--cluster is for --simulate or --both"),
        (["race", "teacher", "--resume"], "--resume needs --out"),
        (["report", "nowhere"], "holds neither a run nor a race"),
        (["report", "nowhere", "--csv", "--json"], "choose one of"),
        (["convert", "nowhere", "--to", "trace", "-o", "x"], "holds no run that can be converted"),
        (["watch", "nowhere"], "does not exist"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words, says, tmp_path):
    if words[0] in ("train", "simulate", "race") and "--resume" not in words:
        words = [*words, "-o", str(tmp_path / "run")]
    done = command(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == [], "something was left behind"


@pytest.mark.parametrize(
    "words",
    [
        ("-s", "parameter-server:mode=sync,backup=1", "-n", "3"),
        ("-s", "parameter-server:mode=sync,backup=1"),
        ("-s", "averaging:jobs=3,period=1", "--set", "workers=3"),
    ],
)
def test_a_strategy_that_needs_so_many_workers_has_them(words, tmp_path):
    done = command("simulate", "teacher", *words, "-o", tmp_path / "run", "--timing-only",
                   "--set", "stop.epochs=1")  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/version"), reason="needs /proc")
def test_an_unwritable_folder_is_named(tmp_path):
    # Not even root can make a folder in /proc.
    done = command("train", "teacher", "-s", "all-reduce", "-o", "/proc/regatta")
    assert done.returncode == 2
    assert "cannot write to /proc/regatta" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = command(
            "train", "teacher", "-s", "all-reduce", "-o", tmp_path / "run", environment=place
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is in use" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_touched(tmp_path):
    words = ("simulate", RECIPE, "-s", "ring", "-n", "2", "-o", tmp_path / "run")
    assert command(*words, "--set", "stop.epochs=0.5").returncode == 0
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    again = command(*words)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_json_is_one_object(tmp_path):
    words = ("-s", "parameter-server", "-n", "4", "-o", tmp_path / "run", "--json")
    done = command("simulate", RECIPE, *words, "--set", "stop.epochs=1")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["strategy"] == "parameter-server"
    assert summary["mean_staleness"] > 2
    replayed = json.loads(command("replay", tmp_path / "run", "--json").stdout)
    assert replayed["identical"] is True


def test_race_ends_in_a_verdict_and_a_report(tmp_path):
    words = ("--strategies", "single averaging:period=4 ring", "--target", "0.5", "-o", tmp_path)
    race = ("race", RECIPE, *words, "--simulate", "--seeds", "2", "--set", "stop.epochs=4")
    done = command(*race)
    assert done.returncode == 0, done.stderr
    *_, verdict, report = done.stdout.strip().splitlines()
    assert "reached accuracy 0.5 in" in verdict
    assert report == f"Report: {tmp_path / 'report.html'}"
    assert "<html" in (tmp_path / "report.html").read_text()
    stored = json.loads((tmp_path / "race.json").read_text())
    assert [lane["spec"] for lane in stored["lanes"]] == ["single", "averaging:period=4", "ring"]
    again = command(*race)
    assert again.returncode == 2
    assert "already holds a race" in again.stderr
    resumed = command("race", RECIPE, "-o", tmp_path, "--resume", "--json")
    values = json.loads(resumed.stdout)
    assert values["verdict"] == verdict
    assert {run["seed"] for lane in values["standings"] for run in lane["runs"]} == {0, 1}
    watched = command("watch", tmp_path)
    assert watched.stdout.count("seed-1") == 3
    refused = command("race", RECIPE, "-o", tmp_path, "--resume", "--seeds", "3")
    assert refused.returncode == 2
    assert "goes on as it began" in refused.stderr


def test_a_run_is_reported_converted_and_watched(tmp_path):
    run, set_small = tmp_path / "run", ("--set", "stop.epochs=2")
    assert (
        command("simulate", RECIPE, "-s", "ring", "-n", "2", "-o", run, *set_small).returncode == 0
    )
    assert "Report:" in command("report", run).stdout
    markdown = command("report", run, "--markdown").stdout
    assert markdown.startswith("# ")
    assert command("report", run, "--csv", "-o", tmp_path / "a.csv").returncode == 0
    assert (tmp_path / "a.csv").read_text().startswith("lane,strategy,")
    converted = command("convert", run, "--to", "trace", "-o", tmp_path / "t.json")
    assert converted.stdout.startswith("1 file: ")
    watched = command("watch", run)
    assert watched.returncode == 0
    assert "epoch   1.00 of 2" in watched.stdout


def test_lists(tmp_path):
    strategies = json.loads(command("strategies", "--json").stdout)
    assert {"single", "all-reduce", "averaging", "parameter-server", "ring"} <= {
        s["name"] for s in strategies
    }
    assert {"teacher", "vectors"} <= set(json.loads(command("recipes", "--json").stdout))
    assert json.loads(command("clusters", "--json").stdout)["sys1"]["price_per_hour"] == 0.0991
    table = command("strategies").stdout
    assert "parameter-server" in table
    assert "Table 2" in command("clusters", "hu").stdout
