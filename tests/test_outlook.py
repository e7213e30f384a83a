"""How long a simulation takes and what it holds: said before, shown meanwhile."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from helpers import Sized, small_run
from rich.console import Console
from typer.testing import CliRunner

from regatta import outlook as looking
from regatta.cli import app
from regatta.cluster import Cluster
from regatta.config import Evaluation, Stop
from regatta.death import Death
from regatta.display import Display
from regatta.events import Progress, RankEnded, Started, read
from regatta.folders import Plan
from regatta.outlook import Outlook, Share, about, about_bytes, outlook
from regatta.runs import simulate

ENDLESS = Stop(epochs=10_000)


def shares_of(run, timing_only=False, plan=None):
    found = []
    simulate(run, plan, timing_only, found.extend)
    return [each for each in found if isinstance(each, Share)]


# -- what is said -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "a few seconds"), (8, "about 10 s"), (52, "about 50 s"), (58, "about 1 min"),
     (200, "about 3 min"), (5300, "about 88 min"), (5400, "about 1.5 h"), (50_000, "about 14 h")],
)  # fmt: skip
def test_seconds_are_rounded_to_what_can_be_known(seconds, said):
    assert about(seconds) == said


@pytest.mark.parametrize(
    ("nbytes", "said"), [(1e6, "50 MB"), (4.1e8, "400 MB"), (9.6e8, "1.0 GB"), (2.44e10, "24.4 GB")]
)
def test_bytes_likewise(nbytes, said):
    assert about_bytes(nbytes) == said


# -- how far it has come ----------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["all-reduce", "ring", "parameter-server", "pipeline"])
@pytest.mark.parametrize("timing_only", [False, True])
def test_shares_go_from_nothing_to_nearly_all(spec, timing_only, monkeypatch):
    monkeypatch.setattr(looking, "_EVERY", 0.0)
    done = [share.done for share in shares_of(small_run(spec, 4), timing_only)]
    assert done == sorted(done)
    assert done[0] == 0
    assert 0.9 < done[-1] < 1


def test_where_virtual_time_is_the_end_it_counts(monkeypatch):
    monkeypatch.setattr(looking, "_EVERY", 0.0)
    run = small_run("single", stop=Stop(epochs=1000, seconds=4.0))
    cluster = Cluster(sample_seconds=0.01)  # a hundred minibatches
    done = [share.done for share in shares_of(replace(run, cluster=cluster))]
    assert 90 < len(done) < 110
    assert done[50] == pytest.approx(0.5, abs=0.02)


# -- the rehearsal ----------------------------------------------------------------------------


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_rehearsal_foretells_the_time(timing_only):
    """Roughly: other work may come to this machine at any moment."""
    run = small_run("all-reduce", 16, stop=Stop(epochs=200), evaluation=Evaluation(every=50))
    if timing_only:
        run = replace(run, stop=Stop(epochs=4000))
    said = outlook(run, timing_only).seconds
    began = time.perf_counter()
    simulate(run, None, timing_only)
    took = time.perf_counter() - began
    assert took > 0.5  # or there was nothing to foretell
    assert took / 3 < said < took * 3


def test_a_rehearsal_ends_soon_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = time.perf_counter()
    assert outlook(small_run("ring", 8, stop=ENDLESS)).seconds > 10
    assert time.perf_counter() - began < 10
    assert not list(tmp_path.iterdir())


def test_what_dies_in_a_rehearsal_has_the_fate_that_it_has_in_the_run():
    faults = Cluster(sample_seconds=0.25, faults=("crash rank=1 at=0.5",))
    assert outlook(small_run("all-reduce", 2, cluster=faults, death=Death("restart"))).seconds
    rejoined = small_run("gossip", 2, cluster=faults, death=Death(rejoin=True))
    assert outlook(rejoined).seconds


def test_a_moment_is_rehearsed_whole():
    assert outlook(small_run("single")).seconds < looking.SHORT


GROWTH = """
import sys
from dataclasses import replace
from regatta import recipes
from regatta.config import Stop, component
from regatta.outlook import outlook
from regatta.tasks.vectors import Vectors

task, stop = Vectors(sizes=(2000, 2000), train=1000), Stop(epochs=100)
for spec in ("all-reduce", "averaging:period=10"):
    strategy = component("strategy", spec)
    run = replace(
        recipes.load("vectors"), task=task, strategy=strategy, workers=100, minibatch=1, stop=stop
    )
    print(outlook(run).nbytes)
"""


def test_memory_is_foretold_by_what_first_turns_leave_behind():
    """A hundred models of 16 MB, or one; the rehearsals see some of the workers only."""
    told = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True
    )
    together, apart = map(int, told.stdout.split())
    assert together < 0.9e9
    assert 1.4e9 < apart < 4e9


# -- what a person sees -----------------------------------------------------------------------


def a_display(terminal=False):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)
    return Display(console, "ring", epochs=8), console.file


def share(done, seconds):
    return Share(done, seconds, turns=10, resident=400_000_000)


def test_in_a_pipe_a_line_now_and_then_corrects_it():
    display, file = a_display()
    for second in range(121):
        display([share(second / 240, float(second))])
    lines = file.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[1] == "  25% simulated, about 3 min left at most, 400 MB"


def test_the_live_line_tells_what_is_left():
    display, _ = a_display(terminal=True)
    progress = Progress(rank=0, time=1.0, turns=1, samples=4, loss=None, computing=1.0,
                        waiting=0.0, messages=0, bytes=0)  # fmt: skip
    display([progress, share(0.5, 20.0)])
    text = str(display._status.status)
    display.close()
    assert text == "ring: 50% simulated, about 20 s left at most, 400 MB, 1 s, 4 samples"


def test_nobody_knows_at_once(monkeypatch):
    display, _ = a_display(terminal=True)
    display([share(0.001, 0.1)])
    assert share(0.001, 0.1).left is None
    assert "simulated" not in str(display._status.status)
    display.close()


WORDS = ["simulate", "teacher", "--set", "stop.epochs=0.1", "-s", "all-reduce", "-n", "2"]


@pytest.mark.parametrize("more", [[], ["--timing-only"]])
def test_it_is_the_first_thing_said(more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(looking, "SHORT", 0.0)
    told = CliRunner().invoke(app, [*WORDS, *more])
    assert told.exit_code == 0, told.output
    assert told.output.startswith("simulating takes a few seconds and ")
    assert "on this machine, at most" in told.output.splitlines()[0]


def test_of_a_moment_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, WORDS)
    assert "simulating takes" not in told.output


def test_a_race_sums_its_lanes_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rehearsed = []

    def ten_seconds(run, timing_only=False):
        rehearsed.append(run.strategy.name)
        return Outlook(10.0, 300_000_000)

    monkeypatch.setattr(looking, "outlook", ten_seconds)
    words = ["race", "teacher", "--strategies", "single ring", "--seeds", "3", "--simulate"]
    told = CliRunner().invoke(app, [*words, "--set", "stop.epochs=0.1", "--explain"])
    assert told.exit_code == 0, told.output
    assert rehearsed == ["single", "ring"]
    assert told.output.startswith("simulating takes about 1 min and 300 MB on this machine")
    assert told.output.count("a gradient of worker 0") == 2  # --explain: one host, and two


def test_processes_are_not_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["race", "teacher", "--explain"])
    assert isinstance(told.exception, ValueError)
    assert "--simulate or --both" in str(told.exception)


# -- while it goes on -------------------------------------------------------------------------


def test_what_timing_only_has_found_is_on_disk_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "_EVERY", 0.0)
    run = small_run(
        "ring", 4, task=Sized(400, train=4 * 50), minibatch=1, stop=Stop(epochs=1),
        cluster=Cluster(sample_seconds=1.0),
    )  # fmt: skip
    plan, seen = Plan("recipe", run, tmp_path / "run"), []

    def look(events):
        if isinstance(events[0], Share):
            seen.append(sum(isinstance(e, Progress) for e in read(plan.events)))

    monkeypatch.setattr("regatta.recipes.absolute", lambda recipe: recipe)
    simulate(run, plan, True, look)
    assert seen == list(range(50))
    events = read(plan.events)
    assert isinstance(events[0], Started)
    assert {e.rank for e in events if isinstance(e, Progress)} == {0}
    assert sum(isinstance(e, RankEnded) for e in events) == 4


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from regatta.cli import main
main()
"""


@pytest.mark.parametrize("more", [["-n", "60"], ["-n", "1000", "--timing-only"]])
def test_ranks_may_be_more_than_files_that_may_be_open(more, tmp_path):
    words = ["simulate", "teacher", "-s", "parameter-server", "--set", "stop.epochs=0.2",
             "--set", "minibatch=8", "--out", "run", "--json", *more]  # fmt: skip
    told = subprocess.run(
        [sys.executable, "-c", FEW_FILES, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["throughput"] > 0
