"""Servers hold the model; workers push gradients and pull weights."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add, attrgetter, itemgetter

from regatta.comm import (
    ANY,
    DATA,
    GONE,
    GOODBYE,
    LAST,
    WORLD,
    Comm,
    Load,
    Message,
    Op,
    Vector,
)
from regatta.compress import NONE, code, code_for_models
from regatta.compress.reduce import striped_bytes
from regatta.learn.layout import Layout
from regatta.learn.part import Part
from regatta.learn.replica import Replica
from regatta.strategies.base import Answer, Exchange, Strategy
from regatta.strategies.counter import Servers, one_way
from regatta.strategies.fate import (
    FREE_BY_A_SERVER,
    FREE_BY_SERVERS,
    IN_STEP_BY_A_SERVER,
    Fates,
)
from regatta.strategies.team import HOST, Team, check_group, leaders, team_exchange, teams

AUTO = "auto"
_VERSION = attrgetter("version")


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Servers hold the model; workers push gradients and pull weights, at once or in rounds."""

    name = "parameter-server"
    source = "Campos et al., section 5; iFlytek's central node; Chen et al. 2016 (backup)"
    modes = (
        "", "servers=2", "servers=3,placement=colocated", "max_staleness=4", "damp=staleness",
        "mode=sync", "mode=sync,servers=2", "mode=sync,backup=1", "mode=sync,backup=1,servers=2",
        "mode=mixed,group=2", "mode=mixed", "mode=mixed,group=2,servers=2,damp=staleness",
        "compress=one-bit", "compress=int8,compress_weights=int8", "compress=fp16,servers=2",
        "compress=top-k/0.3", "compress=power-sgd/1,mode=sync",
    )  # fmt: skip

    mode: str = AUTO  # sync, async, mixed: teams sum, leaders push; auto: mixed across hosts
    servers: int = 1  # that hold a stripe of the model each
    placement: str = "dedicated"  # or colocated: a server shares a worker's host, card and time
    backup: int = 0  # sync: so many of the workers need not be waited for
    max_staleness: int | None = None  # async, mixed: no gradient is used that is older
    damp: str = NONE  # or staleness: the learning rate over a gradient's age in updates
    group: str = HOST  # mixed: the workers of a host are a team, or so many workers
    compress: str = NONE  # of gradients: fp16, int8, one-bit, top-k/SHARE, power-sgd/RANK
    compress_weights: str = NONE  # of the weights sent back: fp16, int8
    feedback: bool = True  # add what a code lost to what is sent next

    @property
    def answer(self) -> Answer:
        return "server" if self.servers == 1 else "worker 0"

    @property
    def deterministic(self) -> bool:
        return self.mode == "sync" and not self.backup

    @property
    def rests_every(self) -> int:
        return int(self.deterministic)  # rounds end with one model for all

    @property
    def num_servers(self) -> int:
        return self.servers

    @property
    def fates(self) -> Fates:
        if self.mode == "sync" and not self.backup:
            return IN_STEP_BY_A_SERVER
        return FREE_BY_A_SERVER if self.servers == 1 else FREE_BY_SERVERS

    @property
    def unlike_plain(self) -> str:
        lossy = self.compress != NONE or self.compress_weights != NONE
        return "gradients and weights lose digits on the wire" if lossy else ""

    def groups(self, workers: int, hosts: Sequence[int]) -> Mapping[str, Sequence[int]]:
        if self.mode == "mixed" or (self.mode == AUTO and 1 < len(set(hosts)) < workers):
            return teams(self.group, workers, hosts)
        return {}

    def shares(self, workers: int) -> Sequence[int | None]:
        if self.placement == "dedicated":
            return [None] * self.servers
        return [number * workers // self.servers for number in range(self.servers)]

    # -- a worker ---------------------------------------------------------------------------

    async def worker(self, comm: Comm, replica: Replica) -> None:
        team = Team(comm)
        codes = code(self.compress), code_for_models(self.compress_weights)
        servers = Servers(comm, replica, self.servers, *codes, self.feedback)
        written = self.mode == "sync" or servers.need_vectors  # a round adds vectors up
        async for gradient in team.gradients(replica, replica.parting(written)):
            if team.leads:
                await servers.push(gradient)
                del gradient  # the next may have its memory
                await servers.pull()
            if team.followers:
                await team.follow_leader(replica)
        if team.leads:
            await servers.leave()
        if team.followers:
            await team.follow_leader(replica)

    # -- a server ---------------------------------------------------------------------------

    async def server(self, comm: Comm, replica: Replica) -> None:
        first = comm.size - self.servers
        part = replica.part(comm.rank - first, self.servers)
        clients = leaders(comm, first)
        desk = _Desk(self, comm, replica, part, clients)
        await (self._rounds(desk) if self.mode == "sync" else self._as_they_come(desk))
        others = [rank for rank in range(first, comm.size) if rank != comm.rank]
        for rank in [*desk.rotated(clients), *others]:
            await comm.send(rank, part.weights, LAST, part.version)
        stripes = {comm.rank: part.weights} | desk.stripes
        for rank in others:
            if rank not in stripes:
                stripes[rank] = (await comm.recv(rank)).data
        if others:
            replica.load(replica.joined([stripes[rank] for rank in sorted(stripes)]))

    async def _rounds(self, desk: _Desk) -> None:
        """A step with the mean of all gradients, or of the first that are enough."""
        enough = len(desk.present) - self.backup
        while desk.present:
            came: dict[int, Vector] = {}
            awaited = iter(list(desk.present))  # in this order, if all are
            while len(came) < min(enough, len(desk.present)):
                sender = ANY if self.backup else next(awaited)
                message = desk.opened(await desk.comm.recv(sender))
                if message is None:
                    continue
                if message.version == desk.part.version:
                    came[message.src] = message.data
                else:  # computed from an older model: its round is over
                    desk.comm.traffic.dropped += 1
                    await desk.reply([message.src])
            if came:
                # Near the end there may not be enough: fewer make a smaller step.
                rate = len(came) / enough if self.backup else 1.0
                gradients = [came[worker] for worker in sorted(came)]
                await desk.step(gradients, desk.part.version, rate)
                await desk.reply(sorted(came))

    async def _as_they_come(self, desk: _Desk) -> None:
        """A step with every gradient, at once; or, if gradients must not be old, in due time."""
        held: list[Message] = []  # the oldest first
        while desk.present:
            message = desk.opened(await desk.comm.recv(ANY))
            if message is not None:
                insort(held, message, key=_VERSION)
            while held and self._in_time_for_others(desk, held[0]):
                oldest = held.pop(0)
                rate = self._rate(desk, oldest)
                await desk.step([oldest.taken()], oldest.version, rate)
                await desk.reply([oldest.src])

    def _rate(self, desk: _Desk, gradient: Message) -> float:
        if self.damp == NONE:
            return 1.0
        age = (desk.part.version - gradient.version) / int(gradient.data[-1])
        return 1 / max(1.0, age)

    def _in_time_for_others(self, desk: _Desk, oldest: Message) -> bool:
        """Whether all other gradients, computed or not, can still be used before they are too old.

        They can if that holds when they come one after another, the oldest first.
        """
        if self.max_staleness is None:
            return True
        version = desk.part.version + desk.size_of[oldest.src]
        for worker, born in sorted(desk.present.items(), key=itemgetter(1)):
            if worker != oldest.src:
                if version - born > self.max_staleness:
                    return False
                version += desk.size_of[worker]
        return True

    # -- what is stated ---------------------------------------------------------------------

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        k = self.servers
        sizes = [1] * workers
        if self.mode == "mixed":
            hosts = range(workers)  # one worker a host, unless the cluster says otherwise
            sizes = [len(ranks) for ranks in teams(self.group, workers, hosts).values()]
        inside = team_exchange(sizes, turns, vector)
        pushed, pulled = (
            turns * (striped_bytes(coded, vector, k) if coded else _striped(vector, k))
            for coded in (code(self.compress), code_for_models(self.compress_weights))
        )
        final = _striped(vector, k)  # for every leader and every other server
        return Exchange(
            inside.messages + len(sizes) * k * (2 * turns + 2) + k * (k - 1),
            inside.nbytes + len(sizes) * (pushed + pulled + final) + (k - 1) * final,
        )

    def check(self, workers: int) -> None:
        if self.backup >= workers:
            raise ValueError(
                f"parameter-server: backup={self.backup} of {workers} workers leaves none to wait "
                f"for: use at most {workers - 1}"
            )
        if self.max_staleness is not None and self.max_staleness < workers - 1:
            raise ValueError(
                f"parameter-server: max_staleness={self.max_staleness} cannot be kept with "
                f"{workers} workers, whose first gradients are all computed from the initial "
                f"weights: use {workers - 1} or more, or mode=sync"
            )

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, AUTO, "sync", "async", "mixed")
        _one_of("placement", self.placement, "dedicated", "colocated")
        _one_of("damp", self.damp, NONE, "staleness")
        check_group(self.name, self.group)
        code(self.compress)
        code_for_models(self.compress_weights, "compress_weights")
        if self.servers < 1 or self.backup < 0:
            raise ValueError("parameter-server: servers must be 1 or more, backup 0 or more")
        if self.backup and self.mode != "sync":
            raise ValueError(f"parameter-server: backup is for mode=sync, not mode={self.mode}")
        if self.mode == "sync" and (self.max_staleness is not None or self.damp != NONE):
            raise ValueError("parameter-server: in mode=sync no gradient is stale: leave out "
                             "max_staleness and damp")  # fmt: skip


class _Desk:
    """A server's side: who is present, from which version each computes, steps and replies."""

    def __init__(
        self,
        strategy: ParameterServer,
        comm: Comm,
        replica: Replica,
        part: Part,
        clients: Sequence[int],
    ) -> None:
        self.comm, self.part = comm, part
        self.present = dict.fromkeys(clients, part.version)  # and what each computes from
        self.stripes: dict[int, Vector] = {}  # of other servers, when all is over
        sizes = {ranks[0]: len(ranks) for name, ranks in comm.groups.items() if name != WORLD}
        self.size_of = dict.fromkeys(clients, 1) | sizes
        self._number = comm.rank - (comm.size - strategy.servers)
        self._servers = strategy.servers
        stripe = replica.layout.stripe(self._number, strategy.servers)
        self._in = one_way(code(strategy.compress), replica, stripe)
        self._out = one_way(code_for_models(strategy.compress_weights), replica, stripe)

    def opened(self, message: Message) -> Message | None:
        """A gradient ready for use, or None for what is not one."""
        if message.tag == LAST:  # from a server that all workers have left already
            self.stripes[message.src] = message.data
            return None
        if message.tag in (GOODBYE, GONE):
            self.present.pop(message.src, None)
            return None
        if self._in is not None:
            message.data = self._in.decode(message.data)
        return message

    def step(self, gradients: list[Vector], born: int, rate: float = 1.0) -> Op[None]:
        merging = self.part.merging
        if len(gradients) > 1:
            merging = Load(nbytes=len(gradients) * merging.nbytes)
        return self.comm.compute(partial(self._step, gradients, born, rate), merging)

    def _step(self, gradients: list[Vector], born: int, rate: float) -> None:
        total = reduce(add, gradients)
        self.part.step(total, born, int(total[-1]), rate)

    async def reply(self, workers: list[int]) -> None:
        weights, version = self.part.loan, self.part.version
        if self._out is not None:
            encode = partial(self._out.encode, weights)
            weights = await self.comm.compute(encode, self.part.merging)
        for worker in self.rotated(workers):
            if worker in self.present:  # nor was it the last thing it did
                self.present[worker] = version
                await self.comm.send(worker, weights, DATA, version)

    def rotated(self, workers: Sequence[int]) -> Sequence[int]:
        """Servers begin with different workers, so that not all send to the same one at once."""
        start = self._number * len(workers) // self._servers
        return [*workers[start:], *workers[:start]] if start else workers


def _striped(vector: Layout, servers: int) -> int:
    return vector.nbytes + (servers - 1) * vector.dtype.itemsize  # every stripe has a count


def _one_of(option: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"parameter-server: {option} must be {' or '.join(known)}, not {value}")
