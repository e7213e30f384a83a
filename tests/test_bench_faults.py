"""Faults on purpose: all kinds are drawn, right ends are told from wrong ones."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regatta.benchmarks import faults
from regatta.benchmarks.faults import (
    CUT,
    DISK,
    FREEZE,
    FULL,
    KILL,
    LAUNCHER,
    NETWORK,
    SPECS,
    STOP,
    Fault,
    draw,
    suffer,
)
from regatta.benchmarks.harm import Late, Story, may_change_surroundings, until
from regatta.strategies import registry


def test_what_is_drawn():
    drawn = [draw(number) for number in range(300)]
    assert drawn == [draw(number) for number in range(300)], "the same faults every time"
    assert {fault.spec for fault in drawn} == set(SPECS)
    assert {fault.spec.partition(":")[0] for fault in drawn} == set(registry())
    assert {fault.role for fault in drawn} == {"worker", "server", "launcher"}
    assert {fault.kind for fault in drawn} == {KILL, STOP, FREEZE}
    assert {fault.then for fault in drawn} == {"auto", "restart", "shrink"}
    assert not [f for f in drawn if f.role == "launcher" and f.kind == FREEZE], "who would notice?"
    assert len({(f.spec, f.kind, f.role) for f in drawn}) > 60


def test_root_may_also_harm_what_is_around_a_run():
    drawn = [draw(number, True) for number in range(300)]
    assert {(f.kind, f.role) for f in drawn} >= {(FULL, "disk"), (CUT, "network")}
    assert all(fault.by_hand for fault in drawn if fault.kind == FULL)
    assert not [f for f in drawn if f.spec == "single" and f.kind == CUT], "it has no network"
    assert "fill disk" in str(next(fault for fault in drawn if fault.kind == FULL))


def test_what_does_not_come_about_is_named():
    with pytest.raises(Late, match="it had not come about that pigs fly"):
        until(lambda: False, "pigs fly", 0.05)


def test_a_story_is_told_in_its_order(tmp_path):
    assert Story(tmp_path).told("died") == []
    lines = ['{"event":"died","rank":1}', '{"event":"progress"}', '{"event":"resumed"}', '{"eve']
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert [event["event"] for event in Story(tmp_path).told("resumed", "died")] == [
        "died", "resumed",
    ]  # fmt: skip


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(faults, "_SECONDS", 1.0)


SUFFERED = [
    Fault("all-reduce", KILL, 1, "restart", False, 0.2),
    Fault("parameter-server", KILL, 1, "auto", False, 0.2),
    Fault("averaging:period=4", FREEZE, 0, "shrink", False, 0.1),
    Fault("ring", KILL, LAUNCHER, "restart", False, 0.2),
    Fault("gossip", STOP, 2, "auto", False, 0.1),
]
# Where the machine is busy, the launcher may die before anything is saved.
BY_HAND = {"resumed", "begun anew"}
FOLLOWED = [{"restart"}, {"go on"}, {"shrink"}, BY_HAND, {"nothing"}]


@pytest.mark.real
@pytest.mark.timeout(150)
@pytest.mark.parametrize(("fault", "followed"), list(zip(SUFFERED, FOLLOWED, strict=True)))
def test_a_fault_ends_well(fault, followed, brief, tmp_path):
    whole = faults.undisturbed(fault.spec, tmp_path)
    outcome = suffer(fault, whole, tmp_path)
    assert outcome.wrong == ""
    assert outcome.followed in followed
    assert (outcome.recovered is None) == (fault.kind == STOP)
    wrong = replace_digests(whole)
    folder = tmp_path / ("anew" if outcome.followed == "begun anew" else "run")
    complaints = list(faults._complaints(fault, wrong, folder, Story(folder), set()))
    assert complaints[-1].startswith("accuracy"), "an end that is worse is found out"
    if fault.spec in ("all-reduce", "ring"):
        assert complaints[0] == "the weights are not those of an undisturbed run"


@pytest.mark.real
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("fault", "followed"),
    [
        (Fault("all-reduce", CUT, NETWORK, "restart", False, 0.2), {"nothing"}),
        (Fault("parameter-server", CUT, NETWORK, "auto", False, 0.2), {"nothing"}),
        (Fault("elastic", FULL, DISK, "restart", False, 0.2), BY_HAND),
    ],
)
def test_what_is_around_a_run_may_fail(fault, followed, brief, tmp_path):
    if not may_change_surroundings():
        pytest.skip("only root may cut a network or mount a small file system")
    outcome = suffer(fault, faults.undisturbed(fault.spec, tmp_path), tmp_path)
    assert outcome.wrong == ""
    assert outcome.followed in followed


def replace_digests(whole):
    return whole._replace(digests=dict.fromkeys(whole.digests, "other"), accuracy=2.0)


@pytest.mark.real
@pytest.mark.timeout(150)
def test_a_soak(tmp_path):
    """A few seconds of it."""
    script = Path(__file__).parent.parent / "scripts" / "soak.py"
    words = ["--minutes", "0.3", "--every", "5", "--target", "0.2", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=140, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults; deaths:" in done.stdout


def test_a_fault_says_what_it_is():
    said = str(replace(SUFFERED[0], at_start=True))
    assert said == "all-reduce: kill worker 1 0.20 s after it was started, restart"
