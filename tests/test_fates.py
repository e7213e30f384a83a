"""What a strategy states of its ranks' deaths is what happens, for every role in every mode."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Quadratic, built, every_spec, layers_for, permits, small_run
from typer.testing import CliRunner

from regatta.cli import app
from regatta.cluster import Cluster
from regatta.comm import WorldFailed
from regatta.config import Checkpointing
from regatta.death import AUTO, Death
from regatta.events import Died, Event
from regatta.runs import simulate
from regatta.strategies import Strategy, registry
from regatta.strategies.base import Strategy as Base
from regatta.strategies.fate import GO_ON, RESTART, SHRINK, STOP, Fate

WORKERS = 3
EVERY_SECOND = Cluster(sample_seconds=0.25, latency=1e-3, bandwidth=1e9, merge_bandwidth=1e9)


def ranks_by_role(strategy: Strategy, workers: int) -> dict[str, int]:
    """One of each: the last worker, the last server, the worker that holds the answer."""
    ranks = {"worker": workers - 1, "server": workers + strategy.num_servers - 1}
    return {role: ranks.get(role, strategy.holder(workers)) for role in strategy.fates}


def roles_and_choices():
    for spec in every_spec():
        strategy = built(spec)
        workers = 1 if spec == "single" else WORKERS
        for role in strategy.fates:
            for then in (AUTO, *strategy.fates[role].also):
                yield pytest.param(spec, workers, role, then, id=f"{spec}-{role}-{then}")


def what_follows(run, rank: int) -> list[Event]:
    """The first death, though the run may end with it."""
    told: list[Event] = []
    faults = (f"crash rank={rank} at=8.3",)
    run = replace(run, cluster=replace(run.cluster, faults=faults))
    with suppress(WorldFailed):
        simulate(run, watch=told.extend)
    return [event for event in told if isinstance(event, Died)]


@pytest.mark.parametrize(("spec", "workers", "role", "then"), list(roles_and_choices()))
def test_what_is_stated_follows(spec, workers, role, then):
    strategy = built(spec)
    if not permits(strategy, workers) or (then == SHRINK and not permits(strategy, workers - 1)):
        pytest.skip("needs more workers")
    run = small_run(
        strategy, workers, task=Quadratic(layers=layers_for(strategy)), cluster=EVERY_SECOND,
        checkpointing=Checkpointing(every=0.25), death=Death(then),
    )  # fmt: skip
    died = what_follows(run, ranks_by_role(strategy, workers)[role])
    stated = strategy.fates[role].usual if then == AUTO else then
    assert died[0].then == stated or died[-1].then == stated


def test_every_strategy_states_a_fate_for_every_role():
    for spec in every_spec():
        strategy = built(spec)
        assert set(strategy.fates) - {"holder"} == (
            {"worker", "server"} if strategy.num_servers else {"worker"}
        ), spec
        for fate in strategy.fates.values():
            assert set(fate.choices) <= {GO_ON, STOP, RESTART, SHRINK}
            assert {STOP, RESTART} <= set(fate.choices), "these are always possible"


def test_a_strategy_without_fates_is_told_so():
    class Silent(Base):
        name = "silent"

    with pytest.raises(ValueError, match="silent does not say what follows the death"):
        _ = Silent().fates


def test_the_page_states_what_the_code_states():
    page = (Path(__file__).parent.parent / "docs" / "strategies.md").read_text()
    section = page.partition("## What follows a death")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", section, re.MULTILINE)
    stated = {spec: (worker, server) for specs, worker, server in rows
              for spec in re.findall(r"`([^`]*)`", specs)}  # fmt: skip
    assert {spec.partition(":")[0] for spec in stated} == set(registry())
    for spec, (worker, server) in stated.items():
        fates = built(spec).fates
        assert worker == str(fates["worker"]), spec
        assert server == (str(fates["server"]) if "server" in fates else "–"), spec


def test_the_command_states_what_the_code_states():
    for name in registry():
        printed = CliRunner().invoke(app, ["strategies", name, "--json"])
        (row,) = json.loads(printed.stdout)
        for mode, fates in row["fates"].items():
            strategy = built(f"{name}:{mode}" if mode else name)
            assert {role: Fate(*_split(choices)) for role, choices in fates.items()} == dict(
                strategy.fates
            )
    printed = CliRunner().invoke(app, ["strategies", "parameter-server"]).stdout
    told = re.findall(r"^(?:With (\S+), w|W)hen (.*) dies: (.*?)[;,(\n]", printed, re.MULTILINE)
    assert [(mode, role) for mode, role, _ in told] == [
        ("", "a worker"), ("", "a server"),
        ("servers=2", "a worker"), ("servers=2", "a server"),
        ("servers=2", "the worker with the answer"),
        ("mode=sync", "a worker"), ("mode=sync", "a server"),
        ("mode=sync,backup=1", "a worker"), ("mode=sync,backup=1", "a server"),
    ]  # fmt: skip


def _split(choices):
    usual, *others = choices
    return usual, tuple(others)


def test_a_fate_reads_well():
    assert str(Fate(STOP, (RESTART, SHRINK))) == "stop (or restart, shrink)"
    assert str(Fate(STOP)) == "stop"
