"""What the papers measured, foretold by the clusters that come with Regatta."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regatta.cluster.files import load_cluster

sys.path.insert(0, str(Path(__file__).parent.parent / "studies"))
import papers

CAMPOS = load_cluster("campos")


def images(row: int, **changed: object) -> float:
    _, spec, workers, _ = papers.CAMPOS[row]
    return papers.speed(spec, workers, replace(CAMPOS, **changed), papers.RESNET_50, 32)


@pytest.mark.parametrize("row", range(6))
def test_nodes_and_servers_of_campos(row):
    """Fitted to the first two rows."""
    assert images(row) == pytest.approx(papers.CAMPOS[row][3], rel=0.02 if row < 2 else 0.1)


def test_servers_of_campos_are_in_the_papers_order_where_cards_carry_one_way_at_a_time():
    dedicated, shared, single = (images(row, duplex=False) for row in (4, 5, 6))
    assert dedicated > shared > single


@pytest.mark.parametrize(("workers", "minibatch", "hours"), papers.HU_TABLE)
def test_hours_of_hu(workers, minibatch, hours):
    assert papers.epoch(load_cluster("hu"), workers, minibatch) == pytest.approx(hours, rel=0.06)


@pytest.mark.parametrize("minibatch", [512, 1024, 2048])
def test_all_eight_of_hu_are_no_better_than_six(minibatch):
    box = load_cluster("hu-8")
    six, eight = (
        papers.speed("all-reduce", n, box, papers.HU, minibatch, turns=100) for n in (6, 8)
    )
    assert eight < 1.01 * six


@pytest.mark.parametrize("nodes", [1, 2, 8, 16])
def test_speedup_of_the_ring(nodes):
    formula, clock = papers.of_ring(nodes)
    assert clock == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize(
    ("name", "minibatch", "minutes"), [("sys1", 24, 258), ("sys2", 24, 261.4), ("sys10", 48, 160)]
)
def test_epochs_of_baunsgaard(name, minibatch, minutes):
    cluster = load_cluster(name)
    workers = len(cluster.described.every_host[0][1].devices)
    speed = papers.speed("all-reduce", workers, cluster, (4, 5_120_000), minibatch, turns=100)
    assert 278_400 / speed / 60 == pytest.approx(minutes, rel=0.01)
