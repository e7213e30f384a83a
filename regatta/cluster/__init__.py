"""What the virtual clock charges by: how long work and messages take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from regatta.cluster.checks import refuse_nonsense
from regatta.cluster.described import Described, Host
from regatta.cluster.device import Device
from regatta.cluster.faults import Crash, Cut, CutLink, Fault, Slow, read_fault
from regatta.cluster.jitter import Jitter
from regatta.cluster.site import Site, placed_on
from regatta.cluster.sums import Circle, Sums
from regatta.comm import Load, Seconds
from regatta.plain import shown
from regatta.wording import nearest


@dataclass(frozen=True)
class Cluster(Jitter, Device):
    """Equal hosts on one switch, each with a network card that carries messages both ways.

    The defaults describe hosts of one worker that compute 10,000 samples a second and share
    100 Gbit/s links; workers of one host talk over PCIe 3 (12 GB/s, as NCCL takes it). Hosts,
    devices and links that differ are `described`; what is not said of them is as it is here.
    """

    latency: Seconds = 5e-6
    bandwidth: float = 12.5e9  # bytes a second of a network card, each way
    per_host: int = 1  # workers on a host; they share its network card
    local_latency: Seconds = 2e-6  # between ranks of one host
    local_bandwidth: float = 12e9
    sum_latency: Seconds = 0.0  # of a sum that a host's ranks make through memory they share ...
    sum_bandwidth: float = 0.0  # ... bytes a second of it; 0: they send messages round a ring
    sharing: str = "turns"  # messages on one card, one after the other; or fair: all at once
    duplex: bool = True  # with fair: a card sends and receives at the same time
    devices: int = 0  # that there are in all; 0: as many as are asked for
    oversubscribe: bool = False  # more ranks than devices share them
    faults: tuple[str, ...] = ()  # what goes wrong: see cluster/faults.py
    restart_seconds: Seconds = 0.0  # from a death until all ranks compute again
    price_per_hour: float = 0.0  # of a host; 0: not known
    host_watts: float = 0.0  # of a host without its devices, all the time; 0: not known
    described: Described = field(default_factory=Described)  # hosts that are not all equal
    placement: tuple[str, ...] = ()  # devices in the order in which workers take them
    server_placement: tuple[str, ...] = ()  # likewise, for servers

    def __post_init__(self) -> None:
        self.check("cluster")
        self.check_jitter()
        refuse_nonsense(
            self, "cluster", ["bandwidth", "local_bandwidth", "per_host"],
            ["latency", "local_latency", "price_per_hour", "sum_latency", "sum_bandwidth",
             "devices", "host_watts", "restart_seconds"],
        )  # fmt: skip
        for fault in self.faults:
            read_fault(fault)
        if self.sharing not in ("turns", "fair"):
            raise ValueError(f"cluster.sharing: turns or fair, not {self.sharing}")
        if self.described and (self.devices or self.per_host != 1):
            raise ValueError("cluster.devices and cluster.per_host are for equal hosts: "
                             "this cluster has a table for each host")  # fmt: skip
        if not self.described and (self.placement or self.server_placement):
            raise ValueError("cluster.placement needs hosts with names: describe them as [[host]]")

    # -- where ranks are ----------------------------------------------------------------------

    def site(self, workers: int, shares: Sequence[int | None] = ()) -> Site:
        """Of the workers, then of the servers.

        A server shares the device of the worker named in `shares`, or has one of its own.
        """
        if self.described:
            return placed_on(self, workers, shares)
        shares = self.placed(workers, shares)
        of_workers = [self.device_of(worker) // self.per_host for worker in range(workers)]
        own = itertools.count(max(of_workers) + 1)
        hosts = of_workers + [next(own) if w is None else of_workers[w] for w in shares]
        owners = [self.device_of(worker) for worker in range(workers)]
        owners += [workers + n if w is None else owners[w] for n, w in enumerate(shares)]
        crowded = min(workers, self.per_host) > 1
        size = len(hosts)
        return Site(hosts, shares, owners, [self] * size, [crowded] * size)

    def hosts(self, workers: int, shares: Sequence[int | None] = ()) -> list[int]:
        """The host of every rank."""
        return self.site(workers, shares).hosts

    def device_of(self, worker: int) -> int:
        return worker % self.devices if self.devices else worker

    def placed(self, workers: int, shares: Sequence[int | None]) -> list[int | None]:
        """For every server the worker whose device it shares; None where it has one of its own.

        Ranks for which there is no device are refused, unless they may share.
        """
        wanted = workers + sum(worker is None for worker in shares)
        if not self.devices or wanted <= self.devices:
            return list(shares)
        if not self.oversubscribe:
            raise ValueError(
                f"{wanted} ranks and {self.devices} devices: use fewer workers, a larger cluster, "
                "servers that share (placement=colocated), or --oversubscribe"
            )
        return [n % workers if share is None else share for n, share in enumerate(shares)]

    def faults_of(self, ranks: int, hosts: int) -> list[Fault]:
        """As data; whom there is not is refused."""
        found = [read_fault(text) for text in self.faults]
        for fault, text in zip(found, self.faults, strict=True):
            if isinstance(fault, Cut) and fault.host >= hosts:
                raise ValueError(f"cluster.faults: {shown(text)}: there are {hosts} hosts, from 0")
            if isinstance(fault, Slow | Crash) and fault.rank >= ranks:
                raise ValueError(f"cluster.faults: {shown(text)}: there are {ranks} ranks, from 0")
            if isinstance(fault, CutLink) and not self.described:
                raise ValueError(
                    f"cluster.faults: {shown(text)}: only links of described hosts have names; "
                    "cut off a host: cut host=0 from=2 to=5"
                )
            if isinstance(fault, CutLink) and fault.link not in self.described.cuttable:
                known = nearest(fault.link, self.described.cuttable, "link")
                raise ValueError(f"cluster.faults: {shown(text)}: {known}")
        return found

    # -- what is charged ----------------------------------------------------------------------

    def computing(
        self, rank: int, workers: int, device: int | None = None
    ) -> Callable[[Load], Seconds]:
        """How long a load takes on this rank of equal hosts, or on the `device` of another."""
        owner = rank if device is None else device
        return self.times(self, rank, owner, workers, min(workers, self.per_host) > 1)

    def all_reduce(self, nbytes: int, ranks: int, hosts: int | None = None) -> Seconds:
        return self.sums(ranks, hosts).all_reduce(nbytes)

    def broadcast(self, nbytes: int, ranks: int, hosts: int | None = None) -> Seconds:
        return self.sums(ranks, hosts).broadcast(nbytes)

    def sums(self, ranks: int, hosts: int | None = None) -> Sums:
        """Among so many ranks on so many equal hosts."""
        hosts = ranks if hosts is None else hosts
        inside = -(-ranks // max(hosts, 1))  # ranks on the fullest host
        return Sums(
            Circle(hosts, self.latency, self.bandwidth),
            [Circle(inside, self.local_latency, self.local_bandwidth)],
            self.sum_latency,
            self.sum_bandwidth,
        )

    # -- what it costs ------------------------------------------------------------------------

    def price_of(self, hosts: Collection[int]) -> float | None:
        """An hour of these hosts; None where it is not known of all."""
        if not self.described:
            return self.price_per_hour * len(hosts) or None
        each = [self._host(host).price_per_hour or self.price_per_hour for host in hosts]
        return sum(each) if all(each) else None

    def watts_of(self, host: int) -> float:
        """Of all but its devices."""
        return (self._host(host).watts if self.described else 0.0) or self.host_watts

    def _host(self, number: int) -> Host:
        """A real run may have hosts that nobody has described."""
        hosts = self.described.every_host
        return hosts[number][1] if number < len(hosts) else Host("")


CLUSTERS: dict[str, Cluster] = {
    "default": Cluster(),
    "ethernet-10": Cluster(bandwidth=1.25e9, latency=50e-6),
    "ethernet-1": Cluster(bandwidth=0.125e9, latency=100e-6),
}
