"""The parameter server's promises: staleness, distinct workers, stripes, places, teams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers import Crew, permits, play, small_run, timed

from regatta.cluster import Cluster
from regatta.comm import GOODBYE, Load
from regatta.strategies.parameter_server import ParameterServer

ROUGH = Cluster(sample_seconds=1.0, jitter=0.8, stragglers=2, straggle=6.0)


def ages_of(strategy, workers, turns, cluster=ROUGH):
    """Updates by age, over all servers of a timing-only run."""
    ages = Counter()
    for rank in timed(strategy, workers, turns, cluster):
        ages.update(rank.staleness)
    return ages


# -- staleness -------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [15, 16, 20, 40])
@pytest.mark.parametrize("servers", [1, 2])
def test_no_gradient_is_used_that_is_too_old(most, servers):
    """10,000 updates with strong jitter and two workers six times as slow."""
    ages = ages_of(ParameterServer(max_staleness=most, servers=servers), 16, 625)
    assert sum(ages.values()) == 10_000 * servers
    assert max(ages) <= most


def test_without_the_bound_gradients_are_much_older():
    assert max(ages_of(ParameterServer(), 16, 625)) > 60


def test_a_bound_in_teams_is_kept_too():
    bound = ParameterServer(mode="mixed", group="4", max_staleness=20)
    assert max(ages_of(bound, 16, 200)) <= 20
    assert max(ages_of(replace(bound, max_staleness=None), 16, 200)) > 20


@pytest.mark.parametrize(("team", "workers"), [(2, 4), (3, 6), (2, 6)])
def test_the_first_team_counts_whole_too(team, workers):
    """With the tightest bound that is permitted, and every team as slow as chance has it."""
    bound = ParameterServer(mode="mixed", group=str(team), max_staleness=workers - 1)
    for seed in range(12):
        cluster = Cluster(sample_seconds=1e-5, jitter=0.8, jitter_seed=seed)
        ages = ages_of(bound, workers, 60, cluster)
        assert sum(ages.values()) == workers // team * 60
        assert max(ages) < workers


def test_a_looser_bound_costs_less_time():
    """Waiting for stragglers is the price of freshness."""

    def seconds(strategy):
        return max(rank.time for rank in timed(strategy, 16, 100, replace(ROUGH, stragglers=0)))

    tight, loose, free = (seconds(ParameterServer(max_staleness=s)) for s in (15, 60, None))
    assert tight > 1.2 * loose
    assert loose >= 0.999 * free


def test_a_bound_that_cannot_be_kept_is_refused():
    assert permits(ParameterServer(max_staleness=7), 8)
    with pytest.raises(ValueError, match="use 7 or more, or mode=sync"):
        ParameterServer(max_staleness=6).check(8)


def test_damping_divides_the_learning_rate_by_the_age():
    """Three workers, gradients of 6 at once: ages 0, 1, 2 make steps of 6, 6 and 3."""
    plain = Crew(ParameterServer(), 3).play([[6.0]] * 3)
    damped = Crew(ParameterServer(damp="staleness"), 3).play([[6.0]] * 3)
    assert plain.holder.weights[0] == 1 - 18
    assert damped.holder.weights[0] == 1 - 6 - 6 - 3


# -- rounds ----------------------------------------------------------------------------------


class Counting(ParameterServer):
    """Notes whose gradients every update was made of."""

    rounds: list = []  # noqa: RUF012

    async def _rounds(self, desk):
        inner_opened, inner_step = desk.opened, desk.step
        fresh = []

        def opened_noted(message):
            message = inner_opened(message)
            if message is not None and message.version == desk.part.version:
                fresh.append(message.src)
            return message

        def step_noted(gradients, born, rate=1.0):
            assert len(gradients) == len(fresh)
            self.rounds.append((desk.part.version, list(fresh)))
            fresh.clear()
            return inner_step(gradients, born, rate)

        desk.opened, desk.step = opened_noted, step_noted
        await super()._rounds(desk)


@pytest.mark.parametrize("backup", [0, 1, 3])
def test_no_worker_counts_twice_in_a_round(backup):
    Counting.rounds.clear()
    workers, turns = 8, 100
    strategy = Counting(mode="sync", backup=backup)
    server = timed(strategy, workers, turns, ROUGH)[-1]
    sizes = [len(came) for _, came in Counting.rounds]
    assert all(len(set(came)) == len(came) for _, came in Counting.rounds)
    assert sum(sizes) + server.dropped == workers * turns
    assert (server.dropped > 0) == (backup > 0)
    full = workers - backup
    assert max(sizes) == full
    assert Counter(sizes)[full] > 0.5 * len(sizes)  # less only when workers have left


def test_a_round_waits_for_the_first_that_are_enough():
    """Two workers need 1 s, the third 5 s: with one backup it holds nobody up, and is dropped."""
    slow = Cluster(sample_seconds=1.0, stragglers=1, straggle=5.0, merge_bandwidth=1e12)
    crew = Crew(ParameterServer(mode="sync", backup=1), 3, cluster=slow)
    crew.play([[2.0] * 4, [2.0] * 4, [2.0]])
    server = crew.replicas[-1]
    assert crew.world.comms[-1].traffic.dropped == 1
    assert server.version == 8
    assert server.steps == 4
    assert crew.world.now == pytest.approx(5, rel=0.01)  # the slow one's own minibatch


def test_synchronous_rounds_equal_all_reduce():
    from regatta.strategies.all_reduce import AllReduce

    shards = [[2.0, 4.0, 6.0], [1.0, 3.0, 5.0], [7.0, 7.0, 7.0]]
    one = Crew(AllReduce(), 3).play(shards).holder.weights
    other = Crew(ParameterServer(mode="sync"), 3).play(shards).holder.weights
    assert torch.equal(one, other)


# -- stripes, places and teams ---------------------------------------------------------------


@pytest.mark.parametrize("servers", [2, 3, 7])
def test_stripes_change_no_bit_of_a_synchronous_run(servers):
    one, many = (
        play(small_run(ParameterServer(mode="sync", servers=k), 3)).ranks for k in (1, servers)
    )
    assert {rank.digest for rank in many} == {one[0].digest}


def test_every_stripe_has_a_version_of_its_own():
    """Asynchronous servers need not have seen the workers in the same order."""
    crew = Crew(ParameterServer(servers=2), 3, cluster=ROUGH)
    crew.play([[2.0] * 5] * 3)
    counters = [replica.counters for replica in crew.replicas[:3]]
    assert all(c == {"version of stripe 0": 15, "version of stripe 1": 15} for c in counters)


class LateGoodbye:
    """Lets the last server hear of a worker's leaving long after the others do."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)

    async def send(self, dst, data, tag=0, version=0):
        if tag == GOODBYE and dst == self._comm.size - 1:
            await self._comm.compute(lambda: None, Load(samples=1000))
        await self._comm.send(dst, data, tag, version)


@pytest.mark.parametrize("options", [{}, {"mode": "sync", "backup": 1}, {"max_staleness": 9}])
def test_a_server_that_ends_early_does_not_disturb_the_others(options):
    """Its final stripe comes while another still waits for goodbyes: it is no gradient."""
    crew = Crew(ParameterServer(servers=2, **options), 3, wrap=LateGoodbye, cluster=ROUGH)
    crew.play([[2.0] * 5] * 3)
    assert all(weights == crew.final[0] for weights in crew.final)
    assert crew.used == 15


def test_a_colocated_server_takes_its_workers_time_and_leaves_the_weights():
    even = Cluster(sample_seconds=1.0, merge_bandwidth=400 / 0.5, bandwidth=1e15, latency=0.0)
    results = [
        timed(ParameterServer(mode="sync", placement=placement), 4, 10, even)
        for placement in ("dedicated", "colocated")
    ]  # fmt: skip
    # Synchronously nobody computes while the server merges: the same time on either place.
    assert results[0][-1].time == pytest.approx(results[1][-1].time, rel=0.01)
    digests = [
        {r.digest for r in play(small_run(ParameterServer(mode="sync", placement=p), 3)).ranks}
        for p in ("dedicated", "colocated")
    ]
    assert digests[0] == digests[1]


def test_teams_are_data():
    by_number = ParameterServer(mode="mixed", group="2").groups(5, [0] * 5)
    by_host = ParameterServer(mode="mixed").groups(5, [0, 0, 0, 1, 1])
    assert by_number == {"team 0": [0, 1], "team 1": [2, 3], "team 2": [4]}
    assert by_host == {"team 0": [0, 1, 2], "team 1": [3, 4]}
    assert ParameterServer().groups(5, [0] * 5) == {}


def test_hosts_with_several_workers_are_teams_unless_told_otherwise():
    hosts = [0, 0, 0, 1, 1]
    assert ParameterServer().groups(5, hosts) == ParameterServer(mode="mixed").groups(5, hosts)
    assert ParameterServer(mode="async").groups(5, hosts) == {}
    assert ParameterServer().groups(5, range(5)) == {}, "a worker alone is no team"


def test_a_team_pushes_one_mean():
    """Teams of two with gradients 2 and 6: the server sees two steps of 4, not four."""
    crew = Crew(ParameterServer(mode="mixed", group="2"), 4).play([[2.0], [6.0], [2.0], [6.0]])
    server = crew.replicas[-1]
    assert server.weights[0] == 1 - 4 - 4
    assert (server.steps, server.version) == (2, 4)


def test_mixed_with_one_team_a_host_moves_fewer_bytes_between_hosts():
    cluster = Cluster(sample_seconds=0.01, per_host=4, bandwidth=1e6, local_bandwidth=1e12)

    def seconds(strategy):
        return max(rank.time for rank in timed(strategy, 8, 10, cluster, 40_000))

    mixed = seconds(ParameterServer(mode="mixed"))
    assert mixed < 0.5 * seconds(ParameterServer(mode="async"))
    assert mixed == seconds(ParameterServer()), "the default, where hosts have several workers"


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode must be auto or sync or async or mixed, not both"),
        ({"placement": "cloud"}, "placement must be dedicated or colocated"),
        ({"damp": "yes"}, "damp must be none or staleness"),
        ({"servers": 0}, "servers must be 1 or more"),
        ({"backup": 1}, "backup is for mode=sync, not mode=auto"),
        ({"mode": "sync", "max_staleness": 9}, "no gradient is stale"),
        ({"mode": "mixed", "group": "rack"}, "group must be host or a number of workers"),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ParameterServer(**options)


def test_backup_must_leave_somebody():
    with pytest.raises(ValueError, match="use at most 3"):
        ParameterServer(mode="sync", backup=4).check(4)
