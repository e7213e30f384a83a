"""Tables by nodes, from hand-made events and from small simulations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import small_run
from racing import events_of, write_events
from typer.testing import CliRunner

from regatta.cli import app
from regatta.cluster import Cluster
from regatta.events import RankEnded, Started
from regatta.race.entries import VIRTUAL, Lane, Race, declare, home_of
from regatta.race.outcome import of_race
from regatta.report.nodes import accuracies, throughputs
from regatta.report.tables import all_tables
from regatta.runs import simulate

ONE = Lane("all-reduce", 4, 32, VIRTUAL)
APART = Lane("parameter-server:mode=mixed,servers=3", 16, 32, VIRTUAL)
SHARED = Lane("parameter-server:mode=mixed,servers=3,placement=colocated", 16, 32, VIRTUAL)
NODES = {ONE: (1, 1), APART: (7, 4), SHARED: (4, 4)}  # in all, and of workers
SERVERS = {ONE: 0, APART: 3, SHARED: 3}
SLOWEST = 20.0  # seconds of the one node


def run_of(lane: Lane, seconds: float, best: float):
    """Of a run of ten evaluations, after which the loss is 1 - best."""
    curve = [(seconds * n / 10, best * n / 10) for n in range(1, 11)]
    hosts, of_workers = NODES[lane]
    for event in events_of(curve, lane, target=None):
        if isinstance(event, Started):
            ranks = lane.workers + SERVERS[lane]
            event = replace(event, hosts=hosts, worker_hosts=of_workers, ranks=ranks)
        elif isinstance(event, RankEnded):
            event = replace(event, samples=int(4000 / lane.workers), staleness={3: 1})
        yield event


@pytest.fixture
def known(tmp_path):
    """4,000 samples each: one node in 20 s, four in 8 s, seven in 5 s, less and less accurate."""
    declare(Race("images", tuple(NODES), (0,), None, 1), tmp_path, "regatta race images")
    for lane, seconds, best in ((ONE, SLOWEST, 0.8), (APART, 5.0, 0.6), (SHARED, 8.0, 0.4)):
        write_events(home_of(tmp_path, lane, 0), run_of(lane, seconds, best))
    return of_race(tmp_path)


def test_throughput_speedup_and_efficiency(known):
    table = throughputs(known)
    assert table.headings == ["configuration", "strategy", "samples/s", "speedup", "efficiency"]
    assert [row[1] for row in table.rows] == ["all-reduce", *2 * ["parameter-server:mode=mixed"]]
    assert [[row[0], *row[2:]] for row in table.rows] == [
        ["1 node", "200.0", "", ""],
        ["7 nodes (4 with workers + 3 servers)", "800.0", "4.00", "0.57"],
        ["4 nodes (4 with workers + 3 servers)", "500.0", "2.50", "0.62"],
    ]


def test_accuracy_time_and_what_a_common_loss_takes(known):
    """All come to a loss of 0.6: half-way, after two thirds, and at the end."""
    table = accuracies(known)
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert [row["nodes (workers)"] for row in rows] == [
        "1 node (4)",
        "4 nodes (16)",
        "4 nodes (16)",
    ]
    assert [row["accuracy"] for row in rows] == ["0.8000", "0.6000", "0.4000"]
    assert [row["time"] for row in rows] == ["20.00 s", "5.00 s", "8.00 s"]
    assert [row["speedup"] for row in rows] == ["1.00x", "4.00x", "2.50x"]
    assert "epochs to loss 0.6" in table.headings
    assert [row["time to it"] for row in rows] == ["10.00 s", "3.50 s", "8.00 s"]
    assert [row["sooner"] for row in rows] == ["1.00x", "2.86x", "1.25x"]
    assert [row["staleness"] for row in rows] == ["3.0", "3.0", "3.0"]


def test_a_race_whose_workers_are_alone_has_no_such_tables(tmp_path):
    lanes = Lane("single", 1, 32, VIRTUAL), Lane("all-reduce", 4, 32, VIRTUAL)
    declare(Race("teacher", lanes, (0,), None, 1), tmp_path, "regatta race teacher")
    for lane in lanes:
        write_events(home_of(tmp_path, lane, 0), events_of([(1.0, 0.5)], lane, target=None))
    outcome = of_race(tmp_path)
    assert throughputs(outcome) is accuracies(outcome) is None
    assert all_tables(outcome)


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ("all-reduce", (2, 2)),
        ("parameter-server:servers=3", (5, 2)),
        ("parameter-server:servers=3,placement=colocated", (2, 2)),
    ],
)
def test_a_run_tells_its_nodes(spec, nodes):
    _, events = simulate(small_run(spec, 8, cluster=Cluster(per_host=4)))
    started = next(event for event in events if isinstance(event, Started))
    assert (started.hosts, started.worker_hosts) == nodes


def test_a_race_prints_them(tmp_path):
    command = [
        "race", "teacher", "--simulate", "--workers", "4,8", "--seeds", "1",
        "--strategies", "parameter-server:mode=mixed,placement=colocated", "--set", "train=2048",
        "--set", "hidden=8", "--set", "cluster.per_host=4", "--set", "stop.epochs=1",
        "--set", "stop.target=none", "--out", str(tmp_path / "race"),
    ]  # fmt: skip
    told = CliRunner().invoke(app, command, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    assert "Throughput by nodes" in told.output
    assert "2 nodes (2 with workers + 1 server)" in " ".join(told.output.split())
    assert "Throughput by nodes" in (tmp_path / "race" / "report.html").read_text()
