"""Virtual ranks on a described cluster: messages take every link between two places.

A message passes a way as soon as its first byte is there and the way is free; then it takes the way
for as long as its bytes need. With fair sharing it passes all its ways at once, as fast as the
fullest of them lets it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from regatta.cluster import Cluster
from regatta.cluster.faults import Cut, CutLink, end_of_cuts
from regatta.cluster.paths import Paths, Place, Route
from regatta.cluster.site import Site
from regatta.cluster.sums import Sums
from regatta.cluster.topology import Way
from regatta.comm import DATA, Message, Op, Seconds, Vector
from regatta.worlds.operations import SENT
from regatta.worlds.virtual_rank import VirtualComm


class Lane:
    """A way in one direction, or in both if it is not duplex: for one message at a time."""

    __slots__ = ("bandwidth", "cuts", "free")

    def __init__(self, bandwidth: float, cuts: Sequence[Cut | CutLink] = ()) -> None:
        self.bandwidth = bandwidth
        self.cuts = cuts
        self.free: Seconds = 0.0

    def take(self, now: Seconds, nbytes: int) -> Seconds:
        """For a message whose first byte is here: when that goes on."""
        start = self.after_cuts(max(now, self.free))
        self.free = start + nbytes / self.bandwidth
        return start

    def after_cuts(self, start: Seconds) -> Seconds:
        return end_of_cuts(self.cuts, start) if self.cuts else start


class Course:
    """What messages from one place to another take."""

    __slots__ = ("lanes", "latency", "turn")

    def __init__(self, lanes: list[Lane], turn: int, latency: Seconds) -> None:
        self.lanes = lanes
        self.turn = turn  # how many lanes lead out; the latency comes after them
        self.latency = latency


class Wires:
    """The lanes of a cluster, and the courses between its ranks; made when they are first used.

    A thousand ranks have a million pairs, but few hosts: courses between hosts are kept by hosts.
    """

    def __init__(self, cluster: Cluster, site: Site, cuts: Sequence[Cut | CutLink]) -> None:
        self._paths = Paths(cluster)
        self._places = site.places
        self._cuts = cuts
        self._lanes: dict[Way, Lane] = {}
        self._inside: dict[tuple[Place, Place], Course] = {}
        self._between: dict[tuple[int, int], Course] = {}
        self._leaving = [self._made(self._paths.leaving(place)) for place in site.places]
        self._entering = [self._made(self._paths.entering(place)) for place in site.places]

    def sums(self, ranks: Iterable[int]) -> Sums:
        return self._paths.sums([self._places[rank] for rank in ranks])

    def cuts_of(self, ranks: Iterable[int]) -> list[Cut | CutLink]:
        """Those that keep these from adding up."""
        if not self._cuts:
            return []
        ways = set(self._paths.ways_of_sums([self._places[rank] for rank in ranks]))
        return [cut for cut in self._cuts if any(self._paths.is_cut(way, cut) for way in ways)]

    def course(self, src: int, dst: int) -> Course:
        a, b = self._places[src], self._places[dst]
        if a.host == b.host:
            if (a, b) not in self._inside:
                self._inside[a, b] = self._made(self._paths.route(a, b))
            return self._inside[a, b]
        hosts = a.host, b.host
        if hosts not in self._between:
            self._between[hosts] = self._made(self._paths.between(*hosts))
        first, course, last = self._leaving[src], self._between[hosts], self._entering[dst]
        if not first.lanes and not last.lanes:
            return course
        return Course(
            first.lanes + course.lanes + last.lanes,
            first.turn + course.turn,
            max(first.latency, course.latency, last.latency),
        )

    def _made(self, route: Route) -> Course:
        into = [way for way in route.into if way not in route.out]
        lanes = [self._lane(way) for way in (*route.out, *into)]
        return Course(lanes, len(route.out), route.latency)

    def _lane(self, way: Way) -> Lane:
        if way not in self._lanes:
            cuts = [cut for cut in self._cuts if self._paths.is_cut(way, cut)]
            self._lanes[way] = Lane(way.bandwidth, cuts)
        return self._lanes[way]


class Flight:
    """A message on its way, and how far it has come."""

    __slots__ = ("arrival", "course", "dst", "message", "passed")

    def __init__(self, message: Message, dst: int, course: Course) -> None:
        self.message = message
        self.dst = dst
        self.course = course
        self.passed = 0  # lanes that its first byte has left behind
        self.arrival: Seconds = 0.0  # of its last byte, as far as these lanes tell


class WiredComm(VirtualComm):
    """One rank of a virtual world with described links."""

    def send(self, dst: int, data: Vector, tag: int = DATA, version: int = 0) -> Op[None]:
        world = self._world
        if dst == self.rank:
            return super().send(dst, data, tag, version)
        assert world.wires is not None
        self.traffic.messages += 1
        self.traffic.nbytes += data.nbytes
        message = Message(self.rank, tag, version, data)
        course = world.wires.course(self.rank, dst)
        flight = Flight(message, dst, course)
        go = self._pass if world.sharing is None else self._share
        if self._work is None:
            go(flight)
        else:
            world._at(self._work_now, go, flight)
        return SENT

    def _pass(self, flight: Flight) -> None:
        """Take lane after lane, each when the first byte is there and it is free."""
        world, course, message = self._world, flight.course, flight.message
        for number in range(flight.passed, len(course.lanes)):
            lane = course.lanes[number]
            then = lane.take(world.now, message.data.nbytes)
            late = course.latency if number < course.turn else 0.0
            flight.arrival = max(flight.arrival, lane.free + late)
            if number == 0 and self.traffic.timeline is not None:
                self.traffic.timeline.note("s", then, lane.free)
            if number == course.turn - 1:
                then += course.latency
            if then > world.now and number + 1 < len(course.lanes):
                flight.passed = number + 1
                world._at(then, self._pass, flight)
                return
        world._at(flight.arrival, world.comms[flight.dst]._deliver, message)

    def _share(self, flight: Flight) -> None:
        """Pass as fast as others let it; the last byte comes a latency later."""
        world, course, message = self._world, flight.course, flight.message
        assert world.sharing is not None
        start = max(lane.after_cuts(world.now) for lane in course.lanes)
        if start > world.now:
            world._at(start, self._share, flight)
            return

        ways: dict[Hashable, float] = {lane: lane.bandwidth for lane in course.lanes}
        arrived = partial(self._arrive, message, world.comms[flight.dst], course.latency)
        world.sharing.begin((self.rank, flight.dst), ways, message.data.nbytes, arrived)
