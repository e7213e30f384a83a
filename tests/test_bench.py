"""Benchmarks on tiny networks: that they run, measure what they say, and judge as they should."""

import json
import math
import time

import pytest
import torch
import torch.distributed as dist
from real import command
from typer.testing import CliRunner

from regatta.benchmarks import (
    NAMES,
    Case,
    Result,
    load,
    median_interval,
    report,
    run,
    tracked,
    virtual,
)
from regatta.benchmarks.account import account
from regatta.benchmarks.duel import Duel, Lap, between_peers, duel
from regatta.benchmarks.memory import Peak, memory, proportional_bytes
from regatta.benchmarks.peers import BareLoop, Ddp, Place, SeldomMeeting, SynchronousLimit
from regatta.benchmarks.server import server
from regatta.benchmarks.start_up import first_step
from regatta.benchmarks.transport import requests, sums
from regatta.benchmarks.world import Network, measured_run, order_of
from regatta.cli import app
from regatta.tasks.sequences import Sequences
from regatta.tasks.vectors import Vectors
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm, connect

TINY = Network("tiny", Vectors(sizes=(8, 16, 4), train=256), 8, steps=2, repeats=1)


# -- judging --------------------------------------------------------------------------------


def test_a_bar_is_judged_by_the_near_end_of_the_interval():
    values = [0.9, 1.0, 1.0, 1.0, 1.1]
    low, high = median_interval(values)
    assert low < 1 < high
    assert Case("", values, low, "", "").holds
    assert not Case("", values, 1.0, "", "").holds
    assert Case("", values, high, "", "", at_most=True).holds
    assert not Case("", values, 1.0, "", "", at_most=True).holds
    assert Case("", values, None, "", "").holds


def test_the_worst_case_is_the_one_nearest_below_its_bar():
    met = Case("met", [1.0] * 5, 0.5, "", "")
    missed = Case("missed", [3.0] * 5, 2.0, "", "", at_most=True)
    unjudged = Case("unjudged", [0.01] * 5, None, "", "")
    result = Result("", "", [met, missed, unjudged])
    assert result.worst is missed
    assert not result.holds
    assert Result("", "", [met, unjudged]).worst is met


def test_the_speed_of_a_block_is_the_sum_of_the_workers_speeds():
    slow = {"A": [Lap(2.0, 0, 0)], "B": [Lap(4.0, 0, 0)]}
    fast = {"A": [Lap(1.0, 0, 0)], "B": [Lap(1.0, 0, 0)]}
    fought = Duel(steps=4, minibatch=10, blocks=1, workers=[slow, fast])
    assert fought.speeds("A") == [20.0 + 40.0]
    assert fought.speeds("B") == [10.0 + 40.0]
    assert fought.ratios == [1.2]
    assert fought.milliseconds("B", lambda lap: lap.wall) == 1000 * 2.5 / 4


def test_a_start_counts_once_however_many_blocks_it_runs():
    seconds = [1.0, 2.0, 4.0, 2.0, 2.0, 8.0]
    worker = {"A": [Lap(1.0, 0, 0)] * 6, "B": [Lap(s, 0, 0) for s in seconds]}
    fought = Duel(steps=1, minibatch=1, blocks=3, workers=[worker])
    assert fought.ratios == [2.0, 2.0]


def test_what_is_kept_names_versions_cores_and_date():
    result = Result("x", "y", [Case("c", [1.0, 2.0], 0.5, "", "")], details=[{"a": "b", "ms": 1.5}])
    kept = json.loads(json.dumps(tracked([result], pairs=2)))
    assert kept["environment"]["torch"] == torch.__version__
    assert kept["environment"]["cores"] > 0
    assert kept["date"].startswith("20")
    assert kept["results"][0]["cases"][0]["ratios"] == [1.0, 2.0]
    assert kept["results"][0]["holds"] is True
    assert list(report(result))[-1] == "x ratio=1.500 bar=0.5"


def test_measured_runs_evaluate_nothing_in_between():
    measured = measured_run("all-reduce", TINY)
    assert measured.evaluation.every * 16 > 1e9  # turns


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_loaded(name):
    assert callable(load(name))


def test_unknown_benchmarks_and_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="did you mean memory"):
        run("memry", 2, None)
    with pytest.raises(ValueError, match="2 or more"):
        run("memory", 1, None)


def test_a_long_simulation_is_held_to_its_time(monkeypatch):
    monkeypatch.setattr(virtual, "_RANKS", 8)
    monkeypatch.setattr(virtual, "_STEPS", 50)
    case = virtual._steps(times=2)
    assert case.name == "8 ranks x 50 all-reduce steps"
    assert case.holds  # a minute for 400 steps
    assert 0 < case.ratio < 1
    monkeypatch.setattr(virtual, "_STEPS_SECONDS", 1e-6)
    assert not virtual._steps(times=2).holds


# -- the network of sequences ---------------------------------------------------------------


def test_sequences_run_through_convolution_lstm_and_linear_layer():
    task = Sequences(frames=21, features=3, hidden=4, layers=2, outputs=5, train=6)
    data, model = task.open(), task.model()
    outputs = model(data.batch(torch.arange(2)))
    assert outputs.shape == (2, (21 - 11) // 2 + 1, 5)
    data.loss(model, data.batch(torch.arange(2))).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert data.evaluate(model)["loss"] > 0


def test_the_network_of_the_benchmark_has_1_8_million_parameters():
    assert sum(p.numel() for p in Sequences(train=1).model().parameters()) == 1_812_254


def test_sequences_shorter_than_the_convolution_are_refused():
    with pytest.raises(ValueError, match="use 11 or more"):
        Sequences(frames=10)
    with pytest.raises(ValueError, match=r"task\.layers must be 1 or more"):
        Sequences(layers=0)


# -- memory ---------------------------------------------------------------------------------


def test_the_peak_sees_a_vector_that_was_there_for_a_moment():
    # Other processes come and go meanwhile, and each changes this one's share of PyTorch's pages
    # by up to 200 megabytes: the vector is large beside that.
    nbytes = 1_000_000_000
    with Peak() as still:
        before = proportional_bytes()
    with Peak() as peak:
        vector = torch.ones(nbytes // 4)
        late = time.monotonic() + 10
        while peak.nbytes - before <= 0.75 * nbytes and time.monotonic() < late:
            time.sleep(0.05)
        del vector
    assert peak.nbytes - before > 0.75 * nbytes
    assert still.nbytes - before < 0.25 * nbytes, "the control sees one as well"


# -- real duels -----------------------------------------------------------------------------


def positive(ratios: list[float], count: int) -> bool:
    return len(ratios) == count and all(0 < ratio < math.inf for ratio in ratios)


@pytest.mark.real
@pytest.mark.parametrize(
    ("strategy", "peer", "lead", "workers"),
    [
        ("all-reduce", Ddp, 0, 2),
        ("ring", SynchronousLimit, 1, 2),
        ("averaging:period=2", BareLoop, 0, 2),
        ("averaging:period=16", SeldomMeeting, 0, 2),
        ("single", BareLoop, 0, 1),
    ],
)
def test_a_duel_gives_a_ratio_a_pair(strategy, peer, lead, workers):
    fought = duel(strategy, TINY, peer, 2, lead, workers)
    assert positive(fought.ratios, 2)
    assert len(fought.workers) == workers
    assert all(lap.own > 0 for worker in fought.workers for laps in worker.values() for lap in laps)


@pytest.mark.real
def test_peers_fight_each_other():
    fought = between_peers(TINY, SeldomMeeting, BareLoop, 2)
    assert positive(fought.ratios, 2)


@pytest.mark.real
def test_the_server_of_a_duel_tells_what_it_used():
    result = server(2, (TINY,))
    account = {row["ms a step"]: row["tiny"] for row in result.details}
    assert positive(result.cases[0].ratios, 2)
    assert account["server's CPU, a gradient"] > 0
    assert 0.5 < account["ratio that arithmetic allows"] < 2
    assert result.holds, "it has no bar"


class InTurns(Vectors):
    """A loss that takes a while, on one rank in even steps and on the other in odd ones."""

    def open(self):
        data = super().open()
        loss, calls = data.loss, iter(range(1 << 30))

        def slow_in_turn(model, batch):
            time.sleep(PAUSE * (next(calls) % 2 == dist.get_rank()))
            return loss(model, batch)

        data.loss = slow_in_turn
        return data


PAUSE, STEPS = 0.05, 10


def _seconds_of(rank, size, init_method, kind):
    connect(rank, size, init_method)
    comm = ProcessComm({})
    task = InTurns(sizes=(4, 4), train=64)
    data = task.open()
    network = Network("", task, 4, 1, 1)
    peer = kind(Place(task, data, order_of(network, data, size), rank, comm))
    dist.barrier()
    began = time.perf_counter()
    peer.run(STEPS)
    seconds = time.perf_counter() - began
    comm.close()
    return seconds


@pytest.mark.real
def test_the_synchronous_limit_meets_every_step_and_bare_loops_never():
    # Whoever meets waits for the other's pauses too.
    assert min(launch(2, _seconds_of, (SynchronousLimit,))) >= 0.98 * STEPS * PAUSE
    assert min(launch(2, _seconds_of, (BareLoop,))) < 0.9 * STEPS * PAUSE


@pytest.mark.real
def test_sums_and_requests_are_timed_beside_gloos():
    assert positive(sums(2, nbytes=400_000).ratios, 4)
    assert positive(requests(2, nbytes=40_000).ratios, 4)


@pytest.mark.real
def test_memory_is_told_in_vectors_beyond_a_bare_loop():
    network = Network("", Vectors(sizes=(1000, 2000, 1000), train=64), 8, 1, 1)
    result = memory(2, network, ("all-reduce",))
    beyond = {case.name: case.ratio for case in result.cases}
    # A vector has 16 MB, so buckets beside gradients stand out from the noise; weights that two
    # workers share are half a vector less than a bare loop has.
    assert all(-1 < vectors < 12 for vectors in beyond.values()), beyond
    assert beyond["DistributedDataParallel"] > 0.5, beyond
    assert beyond["all-reduce"] < beyond["DistributedDataParallel"] - 0.5, beyond
    assert [case.bar for case in result.cases] == [2.0, None], "the peer is not judged"
    assert result.measure == "vectors of 16 MB"


@pytest.mark.real
def test_the_account_adds_up():
    rows = account(2, (TINY,)).details
    assert len(rows) == 7, "six strategies, and a server"
    for row in rows:
        parts = [value for part, value in row.items() if isinstance(value, float)]
        assert sum(parts[1:-1]) == pytest.approx(row["whole"])
        assert row["step"] > 0 or row["strategy"] == "parameter-server", row
        assert row["other"] > -0.05 * row["whole"], row
        assert (row["gradient"] > 0) != (row["strategy"] == "its server"), row


@pytest.mark.real
def test_the_first_step_of_a_fresh_command_is_seen():
    assert 0 < first_step() < 50


@pytest.mark.real
def test_the_command_writes_what_it_measured(tmp_path):
    file = tmp_path / "bench.json"
    refused = command("bench", "transport", "--pairs", "2", "-o", tmp_path / "no" / "bench.json")
    assert refused.returncode == 2
    assert "there is no folder" in refused.stderr
    done = CliRunner().invoke(app, ["bench", "transport", "--pairs", "2", "-o", str(file)])
    assert done.exit_code == 0, done.exception
    assert done.stdout.strip().splitlines()[-1].startswith("transport ratio=")
    kept = json.loads(file.read_text())
    assert [result["name"] for result in kept["results"]] == ["transport"]
