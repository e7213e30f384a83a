"""Clusters whose hosts, devices and links are not all equal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from describing import MIXED, described
from helpers import Sized, every_spec, permits, play, small_run
from real import command

from regatta import config
from regatta.cluster import Cluster, machines
from regatta.cluster.explain import Job, explained, sources_in
from regatta.cluster.files import load_cluster
from regatta.cluster.paths import Paths, Place
from regatta.cluster.rings import Setting, advise
from regatta.cluster.tables import cluster_of
from regatta.comm import Load, Phantom
from regatta.learn.optimisers import Adam
from regatta.metrics import summarise
from regatta.race.entries import Lane, Race
from regatta.room import refuse_without_room
from regatta.runs import simulate
from regatta.worlds.virtual import VirtualWorld

CLUSTER = described(MIXED)
SAMPLE = Load(samples=1)


# -- equal hosts are a special case --------------------------------------------------------------

FLAT = Cluster(
    sample_seconds=1.0, merge_bandwidth=32.0, latency=0.125, bandwidth=16.0, per_host=2,
    local_latency=0.0625, local_bandwidth=64.0,
)  # fmt: skip
EQUAL = """
sample_seconds = 1.0
merge_bandwidth = 32.0
latency = 0.125
bandwidth = 16.0
local_latency = 0.0625
local_bandwidth = 64.0
[device.any]
[[host]]
count = 2
devices = ["2 any"]
[[host]]
name = "server"
count = 3
"""


@pytest.mark.parametrize("sharing", ["turns", "fair"])
@pytest.mark.parametrize("spec", [s for s in every_spec() if s != "single"])
def test_equal_hosts_take_what_they_take_without_a_description(spec, sharing):
    strategy = config.component("strategy", spec)
    if not permits(strategy, 4):
        pytest.skip("not with four workers")
    alike = replace(described(EQUAL), sharing=sharing)
    told, known = (
        play(small_run(strategy, 4, cluster=cluster, stop=config.Stop(epochs=0.5)))
        for cluster in (alike, replace(FLAT, sharing=sharing))
    )
    assert [rank.time for rank in told.ranks] == pytest.approx([r.time for r in known.ranks])
    assert told.digests == known.digests


def test_a_description_outlives_being_written_down():
    plain = json.loads(json.dumps(config.to_json(CLUSTER)))
    assert config.from_plain(Cluster, plain) == CLUSTER
    assert hash(config.from_plain(Cluster, plain)) == hash(CLUSTER)


def test_yaml_and_json_say_the_same(tmp_path):
    import tomllib

    values = tomllib.loads(MIXED)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert load_cluster(str(tmp_path / "a.yaml")) == load_cluster(str(tmp_path / "a.json"))
    assert load_cluster(str(tmp_path / "a.json")) == CLUSTER


@pytest.mark.parametrize(
    "spec",
    ["all-reduce", "averaging:period=2", "elastic", "gossip", "parameter-server:mode=mixed",
     "parameter-server:servers=2,placement=colocated", "ring:group=host", "pipeline"],
)  # fmt: skip
def test_strategies_learn_on_unequal_hosts(spec):
    across = replace(CLUSTER, placement=("a-0/0", "a-0/3", "b/0", "a-3/1", "b/1"), jitter=0.2)
    first, again = (play(small_run(spec, 5, cluster=across)) for _ in range(2))
    assert first.comparable_events == again.comparable_events
    assert first.losses[-1] < 1


# -- devices -------------------------------------------------------------------------------------


def seconds_by_rank(cluster: Cluster, workers: int, load: Load = SAMPLE) -> list[float]:
    site = cluster.site(workers)
    return [site.computing(cluster, rank)(load) for rank in range(workers)]


def test_every_rank_computes_on_its_own_device():
    assert seconds_by_rank(CLUSTER, 18) == [0.03] * 16 + [0.01] * 2


def test_what_a_kind_leaves_out_is_as_the_cluster_says():
    changed = config.assign(CLUSTER, ["merge_bandwidth=4e9", "sample_seconds=9"])
    assert seconds_by_rank(changed, 17, Load(nbytes=4_000_000_000)) == [1.0] * 17
    assert seconds_by_rank(changed, 17)[-1] == 0.01  # that kinds do say


def test_crowded_hosts_are_those_with_several_workers():
    apart = replace(CLUSTER, crowded=2.0, placement=("a-0/0", "b/0", "b/1"))
    assert seconds_by_rank(apart, 3) == [0.03, 0.02, 0.02]


# -- placement -----------------------------------------------------------------------------------


def names(cluster: Cluster, workers: int, shares=()) -> list[tuple[int, int]]:
    return [tuple(place) for place in cluster.site(workers, shares).places]


def test_workers_fill_devices_in_the_order_of_the_file():
    assert names(CLUSTER, 5) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert CLUSTER.hosts(5) == [0, 0, 0, 0, 1]


def test_workers_take_the_places_that_are_named_first():
    placed = config.assign(CLUSTER, ["placement=b/1,a-2/3"])
    assert names(placed, 4) == [(4, 1), (2, 3), (0, 0), (0, 1)]


def test_servers_have_hosts_without_devices_then_devices_that_are_left():
    site = CLUSTER.site(17, [None, None])
    assert [tuple(place) for place in site.places[17:]] == [(5, -1), (4, 1)]
    assert site.shares == [None, None]
    assert site.devices[18].sample_seconds == 0.01


def test_a_server_can_be_placed_beside_a_worker():
    site = replace(CLUSTER, server_placement=("a-0/0",)).site(18, [None])
    assert site.places[18] == (0, 0)
    assert (site.shares, site.owners[18]) == ([17], 17)  # whoever had to take that device, last
    site = replace(CLUSTER, placement=("a-0/0",), server_placement=("a-0/0",)).site(2, [None])
    assert (site.shares, site.owners) == ([0], [0, 1, 0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["placement=a-0/9"], r"cluster.placement: unknown place 'a-0/9': did you mean a-0/"),
        (["placement=a-0/0,a-0/0"], "a-0/0 is there twice"),
        (["placement=server"], "server has no devices"),
        (["server_placement=serve"], r"cluster.server_placement: .* did you mean server"),
        (["per_host=2"], "cluster.per_host are for equal hosts"),
    ],
)
def test_places_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        config.assign(CLUSTER, settings).site(2, [None])


def test_equal_hosts_have_no_names():
    with pytest.raises(ValueError, match=r"describe them as \[\[host\]\]"):
        Cluster(placement=("a/0",))


# -- nonsense, by name ---------------------------------------------------------------------------


def refusal(tmp_path, text: str) -> str:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"cluster file {file}: ")) as error:
        load_cluster(str(file))
    said = str(error.value).removeprefix(f"cluster file {file}: ")
    assert "\n" not in said
    return said


def test_a_negative_bandwidth(tmp_path):
    text = MIXED.replace("bandwidth_gigabytes = 6", "bandwidth_gigabytes = -6")
    assert refusal(tmp_path, text) == "link.sockets.bandwidth must be more than 0"


def test_an_unknown_unit(tmp_path):
    text = MIXED.replace("bandwidth_gigabytes = 6", "bandwidth_gigabyte = 6")
    assert refusal(tmp_path, text).startswith(
        "unknown unit of link.sockets.bandwidth 'gigabyte': did you mean gigabytes?"
    )


def test_an_unknown_field(tmp_path):
    text = MIXED.replace("idle_watts", "idle_wats")
    assert refusal(tmp_path, text).startswith(
        "unknown field of device.old 'idle_wats': did you mean idle_watts?"
    )


def test_a_link_to_nowhere(tmp_path):
    text = MIXED.replace('link = "sockets"}]', 'link = "socket"}]')
    assert refusal(tmp_path, text).startswith(
        "host.a.groups: unknown link 'socket': did you mean sockets?"
    )


def test_a_kind_of_device_that_does_not_exist(tmp_path):
    text = MIXED.replace('["4 old"]', '["4 olt"]')
    assert refusal(tmp_path, text).startswith(
        "host.a.devices: unknown device 'olt': did you mean old?"
    )


def test_more_ranks_than_devices():
    run = small_run("all-reduce", 19, task=Sized(train=19), minibatch=1, cluster=CLUSTER)
    with pytest.raises(ValueError, match=r"19 workers and 18 places .* or --oversubscribe"):
        simulate(run, timing_only=True)
    shared = replace(run, cluster=replace(CLUSTER, oversubscribe=True))
    assert len(play(shared, timing_only=True).ranks) == 19
    with pytest.raises(ValueError, match="20 ranks and 19 places"):
        CLUSTER.site(18, [None, None])
    assert replace(CLUSTER, oversubscribe=True).site(18, [None, None]).shares == [None, 1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('switch = "rack"', 'switch = "rock"', "host.a.switch: unknown switch 'rock'"),
        ("devices = [2, 3]", "devices = [1, 2]", "host.a: groups [1, 2] and [0, 1]"),
        ("devices = [2, 3]", "devices = [2, 4]", "host.a: there is no device 4: it has 4, from 0"),
        ("count = 4", "count = 2.5", "host.a.count must be a whole number, not 2.5"),
        ('["4 old"]', "4", "host.a.devices must be like"),
        ('link = "uplink"\n', "", "switch.rack: link is missing"),
        ("bandwidth_gigabytes = 6", 'bandwidth_gigabytes = "6"', "link.sockets.bandwidth_gigab"),
        ("latency_microseconds = 8", "latency = 1\nlatency_seconds = 1", "latency is told twice"),
        ("watts = 150", "watts = -1", "device.old.watts must not be negative"),
        ('name = "b"', 'name = "a"', "there are two of the name host.a"),
        ('link = "uplink"', 'link = "uplink"\nabove = "rack"', "switch.rack: above it is rack"),
        ('name = "b"', 'name = "b"\ntopology = "nowhere.txt"', "nowhere.txt: No such file"),
        ("[device.old]", "[devise.old]", "unknown field of Cluster 'devise': did you mean device"),
        ("latency = 50e-6", "device = 3", "cannot be read"),
        ('switch = "rack"', "", "switch.rack is used nowhere: name it in a [[host]], or leave"),
        ('"new", "new"', '"old"', "device.new is used nowhere"),
        ('name = "b"', 'name = "a-1"', "there are two of the name host.a-1: one of them is a copy"),
        ('name = "b"', 'name = "b/0"', "host.b/0: a host needs a name, without / and commas"),
        ("count = 4", "count = 1000000000", "4,000,000,003 devices: a cluster has 1,000,000 at"),
        ('["4 old"]', '["99999999999 old"]', "devices: a cluster has 1,000,000 at most"),
        ("latency = 50e-6", "latency = inf", "cluster.latency must be finite"),
        ("bandwidth_gigabytes = 6", "bandwidth = inf", "link.sockets.bandwidth must be finite"),
    ],
)
def test_other_nonsense(tmp_path, old, new, said):
    file = tmp_path / "mine.toml"
    file.write_text(MIXED.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(said)):
        load_cluster(str(file))


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("bandwidth_gigabits = 10", "bandwidth", 1.25e9),
        ("local_bandwidth_megabytes = 3", "local_bandwidth", 3e6),
        ("latency_microseconds = 50", "latency", 50e-6),
        ("sum_latency_milliseconds = 1.5", "sum_latency", 1.5e-3),
        ("memory_gibibytes = 2", "memory", 2.0**31),
    ],
)
def test_units_in_names(line, field, value):
    assert getattr(described(line), field) == value


def test_names_that_are_numbers_in_yaml(tmp_path):
    (tmp_path / "mine.yaml").write_text("1: 2\n")
    with pytest.raises(ValueError, match="1 is no name of a field of Cluster"):
        load_cluster(str(tmp_path / "mine.yaml"))


def test_parts_without_hosts():
    with pytest.raises(ValueError, match=r"but no host that has them: add \[\[host\]\]"):
        cluster_of({"device": {"old": {}}}, folder=None)
    with pytest.raises(ValueError, match=r"host must be tables: \[\[host\]\]"):
        cluster_of({"host": {"name": "a"}}, folder=None)


# -- paths ---------------------------------------------------------------------------------------


def width(a: tuple[int, int], b: tuple[int, int], cluster: Cluster = CLUSTER):
    route = Paths(cluster).route(Place(*a), Place(*b))
    return [way.bandwidth for way in route.ways], route.latency


def test_a_message_takes_every_link_between_two_places():
    card, bus, sockets, uplink = 1.25e9, 12e9, 6e9, 0.625e9
    assert width((0, 0), (0, 1)) == ([bus, bus], pytest.approx(5e-6))
    assert width((0, 0), (0, 2)) == ([bus, sockets, sockets, bus], pytest.approx(8e-6))
    assert width((0, 0), (1, 0)) == ([bus, card, card, bus], 50e-6)
    assert width((0, 0), (2, 0)) == ([bus, card, uplink, uplink, card, bus], 50e-6)
    assert width((0, 0), (4, 1)) == ([bus, card, uplink, card, bus], 50e-6)
    assert width((4, 0), (5, -1)) == ([bus, card, card], 50e-6)
    assert width((4, 0), (4, 0))[0] == [bus, bus]  # two ranks on one device


def test_a_switch_can_be_on_another():
    text = (
        MIXED.replace(
            '[switch.rack]\nlink = "uplink"', '[switch.rack]\nabove = "row"\nlink = "uplink"'
        )
        + '\n[switch.row]\nlink = "bus"\n'
    )
    ways, _ = width((0, 0), (4, 0), described(text))
    assert ways == [12e9, 1.25e9, 0.625e9, 12e9, 1.25e9, 12e9]
    assert width((0, 0), (2, 0), described(text)) == width((0, 0), (2, 0))  # below that row


def arrivals(cluster: Cluster, sent: list[tuple[int, int, int]], workers: int) -> dict[int, float]:
    """When each of these messages is there, by destination: (source, destination, bytes)."""

    async def rank(comm):
        for src, dst, nbytes in sent:
            if src == comm.rank:
                await comm.send(dst, Phantom(nbytes))
        for _ in [dst for _, dst, _ in sent if dst == comm.rank]:
            await comm.recv()
        return comm.now()

    times = VirtualWorld(workers, cluster).run(rank)
    return {dst: times[dst] for _, dst, _ in sent}


def timed(work):
    async def rank(comm):
        await work(comm)
        return comm.now()

    return rank


NARROW = """
[device.any]
[link.card]
bandwidth = 10
latency = 1
[link.uplink]
bandwidth = 5
[link.slow]
bandwidth = 2
[switch.rack]
link = "uplink"
count = 2
[[host]]
count = 4
devices = ["any"]
card = "card"
switch = "rack"
[[host]]
name = "far"
devices = ["any"]
card = "slow"
"""


def test_the_slowest_link_sets_the_pace():
    narrow = described(NARROW)
    assert arrivals(narrow, [(0, 1, 20)], 5)[1] == 3.0  # 2 s and a latency
    assert arrivals(narrow, [(0, 2, 20)], 5)[2] == 5.0  # through both switches' uplinks
    assert arrivals(narrow, [(0, 4, 20)], 5)[4] == 11.0
    assert arrivals(narrow, [(4, 0, 20)], 5)[0] == 11.0


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_messages_share_an_uplink(sharing):
    narrow = replace(described(NARROW), sharing=sharing)
    both = arrivals(narrow, [(0, 2, 20), (1, 3, 20)], 5)
    assert max(both.values()) == 9.0  # 40 bytes at 5 a second, and a latency
    assert min(both.values()) == (5.0 if sharing == "turns" else 9.0)
    # What stays below a switch does not wait.
    assert arrivals(narrow, [(0, 2, 20), (1, 0, 20)], 5)[0] == 3.0


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_one_way_at_a_time(sharing):
    text = NARROW.replace("latency = 1", "latency = 1\nduplex = false")
    both = [(0, 1, 20), (1, 0, 20)]
    came = arrivals(replace(described(text), sharing=sharing), both, 5)
    # In turns one goes out while the other's first byte is on its way.
    assert set(came.values()) == {4.0 if sharing == "turns" else 5.0}
    assert set(arrivals(described(NARROW), both, 5).values()) == {3.0}


def test_a_link_of_two_devices_own():
    text = """
[device.any]
[link.bus]
bandwidth = 10
[link.direct]
bandwidth = 40
[[host]]
devices = ["3 any"]
link = "bus"
direct = [{devices = [0, 1], link = "direct"}]
"""
    came = arrivals(described(text), [(0, 1, 40), (0, 2, 40)], 3)
    assert came == {1: 1.0, 2: 4.0}  # neither waits for the other
    assert Paths(described(text)).topology(0).path(0, 1).kind == "NV"


def test_groups_share_their_way_out_with_direct_links_inside():
    text = MIXED.replace(
        'switch = "rack"', 'direct = [{devices = [0, 1], link = "uplink"}]\nswitch = "rack"'
    )
    topology = Paths(described(text)).topology(0)
    assert topology.shared([(0, 2), (1, 3)]) == [3e9, 3e9]
    assert topology.shared([(0, 1)]) == [0.625e9]


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_a_host_that_is_cut_off(sharing):
    cut = replace(described(NARROW), sharing=sharing, faults=("cut host=1 from=0 to=4",))
    assert arrivals(cut, [(0, 1, 20)], 5)[1] >= 6.0
    assert arrivals(cut, [(2, 3, 20)], 5)[3] == 3.0


@pytest.mark.parametrize("sharing", ["turns", "fair"])
def test_a_link_that_is_cut(sharing):
    def at(fault: str, src: int, dst: int) -> float:
        cluster = replace(described(NARROW), sharing=sharing, faults=(fault,))
        return arrivals(cluster, [(src, dst, 20)], 5)[dst]

    every, one = "cut link=uplink from=0 to=10", "cut link=rack-1 from=0 to=10"
    assert at(every, 0, 1) == 3.0  # below a switch nothing is cut
    assert at(every, 0, 2) > 10
    assert at(every, 0, 4) > 10
    assert at(one, 0, 4) == 11.0  # hosts 2 and 3 are below that one
    assert at(one, 2, 4) > 10 + 10
    assert at("cut link=slow from=0 to=10", 0, 2) == 5.0


def test_sums_wait_for_a_link_that_is_cut():
    async def add(comm):
        await comm.all_reduce(Phantom(20))

    def seconds(workers: int, *faults: str) -> float:
        return max(VirtualWorld(workers, replace(described(NARROW), faults=faults)).run(timed(add)))

    cut = "cut link=rack-1 from=0 to=10"
    assert seconds(2, cut) == seconds(2)  # on rack-0 alone
    assert seconds(4, cut) == 10 + seconds(4)


def test_sums_in_a_host_wait_for_a_link_between_its_devices():
    async def add(comm):
        await comm.all_reduce(Phantom(1_000_000))

    def seconds(workers: int, *faults: str) -> float:
        return max(VirtualWorld(workers, replace(CLUSTER, faults=faults)).run(timed(add)))

    cut = "cut link=sockets from=0 to=1"
    assert seconds(2, cut) == seconds(2)  # below one socket
    assert seconds(3, cut) == 1 + seconds(3)


def test_a_link_that_there_is_not():
    cluster = replace(CLUSTER, faults=("cut link=rack-2 from=0 to=1",))
    with pytest.raises(ValueError, match=r"unknown link 'rack-2': did you mean rack-"):
        VirtualWorld(2, cluster)


# -- memory --------------------------------------------------------------------------------------


SMALL = described(MIXED.replace("memory_gigabytes", "memory_megabytes"))  # 12 and 16 MB


def test_vectors_that_do_not_fit_are_refused_by_name():
    run = small_run("all-reduce", 2, task=Sized(nbytes=4_000_000), cluster=SMALL)
    refuse_without_room(run)  # 8 of 12 MB
    with pytest.raises(ValueError, match=r"a-0/0 has 0.012 GB of memory, and 0.016 GB are needed"):
        refuse_without_room(replace(run, optimiser=Adam()))
    refuse_without_room(replace(run, optimiser=Adam(), strategy=strategy("parameter-server")))
    on_new = replace(SMALL, placement=("b/0", "b/1"))
    refuse_without_room(replace(run, optimiser=Adam(), cluster=on_new))


def strategy(spec: str):
    return config.component("strategy", spec)


def test_a_server_takes_room_on_the_device_that_it_shares():
    beside = strategy("parameter-server:placement=colocated")
    run = small_run(beside, 2, task=Sized(nbytes=4_000_000), cluster=SMALL)
    with pytest.raises(ValueError, match=r"a-0/0 has 0.012 GB of memory, and 0.016 GB"):
        refuse_without_room(run)


def test_equal_devices_have_memory_too():
    run = small_run("all-reduce", 2, task=Sized(4_000_000), cluster=Cluster(memory=6e6))
    with pytest.raises(ValueError, match=r"rank 0 has 0.006 GB of memory"):
        play(run, timing_only=True)


def test_a_race_is_refused_before_it_begins():
    lane = Lane("all-reduce", 19, 32, "virtual", "hu-8")
    with pytest.raises(ValueError, match=r"all-reduce cannot start: 19 workers and 8 places"):
        Race("teacher", (lane,)).check()


# -- what it costs -------------------------------------------------------------------------------


def test_power_by_device_and_host():
    run = small_run(
        "parameter-server:mode=sync", 2, task=Sized(train=2), minibatch=1,
        cluster=replace(CLUSTER, placement=("a-0/0", "b/0")),
    )  # fmt: skip
    played = play(run, timing_only=True)
    old, new, server = played.ranks
    end = old.time
    wanted = (
        (400 + 500 + 200) * end + 150 * old.computing + 25 * (end - old.computing)
        + 300 * new.computing
    )  # fmt: skip
    told = [rank.joules for rank in played.ranks]
    assert sum(told) == pytest.approx(wanted)
    summary = summarise(played.events)
    assert summary.joules == pytest.approx(wanted)
    assert summary.price_per_hour == 9.0
    assert server.role == "server"


def test_power_that_nobody_tells_is_not_known():
    dark = re.sub(r"(idle_)?watts = \d+\n", "", MIXED)
    run = small_run("all-reduce", 2, task=Sized(train=2), minibatch=1)
    for cluster in (Cluster(), described(dark)):
        assert summarise(play(replace(run, cluster=cluster), True).events).joules is None
    known = Cluster(watts=100.0, host_watts=50.0, sample_seconds=1.0)
    joules = summarise(play(replace(run, cluster=known), True).events).joules
    assert joules == pytest.approx(2 * 2 * 150, rel=0.01)


# -- explained -----------------------------------------------------------------------------------


def test_every_figure_of_unequal_hosts_is_explained():
    text = MIXED.replace("bandwidth_gigabytes = 6", "bandwidth_gigabytes = 6  # the manual, p. 7")
    lines = list(explained(CLUSTER, Job(18, 5, 10, 600_000_000), sources_in(text)))
    told = "\n".join(lines)
    assert "a gradient of worker 0 on old (a-0/0): " in told
    assert "10 * device.new.sample_seconds = 100 ms" in told
    assert "link.sockets.bandwidth = 6e+09: the manual, p. 7" in told
    assert (
        "a message from a-0/0 to a-0/2: link.sockets.latency + 600,000,000 / link.sockets.b" in told
    )
    assert "a message from a-0/0 to a-2/0: latency + 600,000,000 / link.uplink.bandwidth" in told
    between = 2 * 4 * (50e-6 + 600e6 / 5 / 0.625e9)
    inside = 2 * 3 * (8e-6 + 600e6 / 4 / 6e9)
    assert f"2(5-1)(latency + 600,000,000 / 5 / link.uplink.bandwidth) = {between:.3g} s" in told
    assert f"= {1e3 * inside:.3g} ms" in told
    charged = Paths(CLUSTER).sums(CLUSTER.site(18).places).all_reduce(600_000_000)
    assert charged == pytest.approx(between + inside)
    assert lines[-1].endswith(f"= {charged:.3g} s")


def test_remarks_in_tables_are_found():
    toml = "a = 1  # one\n[link.x]\nbandwidth_gigabits = 8  # two\n\n[[host]]\ncount = 2  # three\n"
    assert sources_in(toml) == {"a": "one", "link.x.bandwidth": "two", "host.count": "three"}
    as_yaml = (
        "a: 1  # one\nlink:\n  x:\n    bandwidth: 8  # two\n  y:\n    latency: 0\nb: 2  # three\n"
    )
    assert sources_in(as_yaml) == {"a": "one", "link.x.bandwidth": "two", "b": "three"}


def test_what_nvidia_smi_tells_of_a_host_is_explained_by_nccls_table(tmp_path):
    (tmp_path / "topo.txt").write_text(machines.topologies()["hu"])
    text = '[device.any]\n[[host]]\ndevices = ["8 any"]\ntopology = "topo.txt"\n'
    told = "\n".join(explained(described(text, tmp_path), Job(8, 1, 1, 8_000_000)))
    assert "bandwidth from host0/0 to host0/2 = 6e+09: nvidia-smi's path and NCCL's table" in told


# -- shipped -------------------------------------------------------------------------------------

SIZES = 177_547_000  # the vector of Hu et al.'s network


def step_seconds(cluster: Cluster, workers: int, minibatch: int) -> float:
    """Of all-reduce in the long run, on the clock."""

    def end(turns: int) -> float:
        run = small_run(
            "all-reduce", workers, task=Sized(SIZES, train=workers * minibatch * turns),
            minibatch=minibatch, cluster=cluster,
            stop=config.Stop(epochs=1),
        )  # fmt: skip
        return play(run, timing_only=True).ranks[0].time

    return (end(6) - end(2)) / 4


@pytest.mark.parametrize("minibatch", [512, 1024, 2048])
def test_eight_of_hu_are_no_better_than_six_as_their_topology_says(minibatch):
    """The clock and `regatta topology` have one text of rings, and agree."""
    cluster = load_cluster("hu-8")
    setting = Setting(minibatch * 1.749e-4, SIZES, minibatch)
    by_size = {len(c.ring.order): c for c in advise(Paths(cluster).topology(0), setting).choices}
    speeds = {}
    for workers in (6, 8):
        seconds = step_seconds(cluster, workers, minibatch)
        assert seconds == pytest.approx(by_size[workers].step_seconds, rel=0.02)
        speeds[workers] = workers * minibatch / seconds
    assert speeds[8] < 1.01 * speeds[6]
    assert by_size[6].left_out == (0, 1)


def test_six_of_hu_take_what_they_take_without_a_description():
    flat, whole = load_cluster("hu"), load_cluster("hu-8")
    assert step_seconds(whole, 6, 512) == pytest.approx(step_seconds(flat, 6, 512), rel=1e-3)


def test_old_and_new_hosts_of_a_cloud():
    mixed = load_cluster("p2-p3")
    alone = [step_seconds(replace(mixed, placement=(f"{host}/0",)), 1, 32) for host in
             ("p2-0", "p3-0")]  # fmt: skip
    assert alone == pytest.approx([32 / 51.5, 32 / 367], rel=0.005)
    together = step_seconds(mixed, 24, 32)
    assert together > alone[0]  # the old ones set the pace
    assert mixed.price_of({0, 1, 2, 3}) == pytest.approx(2 * (7.2 + 12.24))


def test_the_example_of_the_page_is_a_cluster():
    page = (Path(__file__).parent.parent / "docs" / "clusters.md").read_text()
    block = re.search(r"```toml\n# lab.toml\n(.*?)```", page, re.DOTALL)
    assert block is not None, "the page has lost its example"
    lab = described(block[1])
    assert [len(host.devices) for _, host in lab.described.every_host] == [4, 4, 4, 4, 2, 0]
    run = small_run("parameter-server", 18, task=Sized(train=36), minibatch=1, cluster=lab)
    summary = summarise(play(run, timing_only=True).events)
    assert summary.price_per_hour == pytest.approx(4 * 3.6 + 6.1 + 0.4)
    assert summary.joules is not None


@pytest.mark.real
def test_simulate_tells_of_described_hosts(tmp_path):
    words = ["simulate", "vectors", "--timing-only", "-s", "all-reduce", "-n", "8", "--explain"]
    told = command(*words, "--cluster", "hu-8", cwd=tmp_path)
    assert told.returncode == 0
    assert "slowest from hu/1 to hu/2" in told.stdout
    assert "link.sockets.bandwidth = 9.7e+08: half of the bus" in told.stdout
    (tmp_path / "bad.toml").write_text(MIXED.replace('["4 old"]', '["4 olt"]'))
    refused = command(*words, "--cluster", "bad.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "did you mean old?" in refused.stderr


@pytest.mark.real
def test_clusters_tells_of_described_hosts(tmp_path):
    shown = command("clusters", "hu-8").stdout
    assert "Fig. 4" in shown
    assert "Places: hu/0..7" in shown
    (tmp_path / "mine.toml").write_text(MIXED)
    shown = command("clusters", "mine.toml", cwd=tmp_path).stdout
    assert "Places: a-0..3/0..3 b/0..1 server" in shown


@pytest.mark.real
def test_topology_reads_described_hosts():
    advised = json.loads(command("topology", "hu-8", "--json").stdout)
    assert advised["advised"]["left_out"] == ["0", "1"]
    flat = command("topology", "campos")
    assert (flat.returncode, "describes equal hosts" in flat.stderr) == (2, True)


@pytest.mark.real
def test_topology_takes_the_times_of_described_devices():
    said = command("topology", "hu-8", "--samples", "1024", "--explain").stdout
    assert "compute = 0.179098 s (1024 samples on a k80)" in said
    said = command("topology", "hu-8", "--compute-seconds", "0.2", "--explain").stdout
    assert "compute = 0.2 s (--compute-seconds)" in said
    said = command("topology", "nowhere")
    assert "or a shipped machine: hu, hu-8" in said.stderr
