"""Described clusters for tests, as their files say it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from regatta.cluster import Cluster
from regatta.cluster.tables import cluster_of


def described(text: str, folder: Path = Path()) -> Cluster:
    return cluster_of(tomllib.loads(text), folder)


MIXED = """
latency = 50e-6
bandwidth_gigabits = 10

[device.old]
sample_seconds = 0.03
memory_gigabytes = 12
watts = 150
idle_watts = 25

[device.new]
sample_seconds = 0.01
memory_gigabytes = 16
watts = 300

[link.bus]
bandwidth_gigabytes = 12
latency_microseconds = 5

[link.sockets]
bandwidth_gigabytes = 6
latency_microseconds = 8

[link.uplink]
bandwidth_gigabits = 5
latency_microseconds = 1

[switch.rack]
link = "uplink"
count = 2

[[host]]
name = "a"
count = 4
devices = ["4 old"]
link = "bus"
groups = [{devices = [0, 1], link = "sockets"}, {devices = [2, 3], link = "sockets"}]
switch = "rack"
price_per_hour = 3.0
watts = 400

[[host]]
name = "b"
devices = ["new", "new"]
link = "bus"
price_per_hour = 5.0
watts = 500

[[host]]
name = "server"
watts = 200
price_per_hour = 1.0
"""
"""Hosts a-0 and a-1 on one switch, a-2 and a-3 on another; b and a server on what joins these."""
