"""Whether this process was started as one rank of a world, and as which: its environment tells.

torchrun, srun and mpirun start one command so many times and tell the processes apart by variables.
What is half set, or says two things at once, is refused by name.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from regatta.worlds.nodelist import expanded

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOOPBACK: Final = "127.0.0.1"
BY_HOSTS: Final = "REGATTA_LAUNCHED"  # set by `regatta launch hosts`, beside torchrun's variables
_FIRST_PORT, _PORTS = 12_288, 20_480  # up to where systems begin to hand out ports by themselves
_STEPS = 4  # of a Slurm job have a port each

Environment = Mapping[str, str]


class Contradiction(ValueError):
    """An environment that does not tell which rank this is; the message names the variables."""


@dataclass(frozen=True)
class Place:
    """One rank, as its starter knows it, and where all ranks meet."""

    starter: str
    rank: int
    size: int
    local: int  # its number among the ranks of its host
    one_host: bool
    address: str  # of rank 0's host
    port: int
    is_open: bool = False  # where ranks meet: the starter keeps it


@dataclass(frozen=True)
class _Starter:
    """A program that starts ranks, and how its variables are called."""

    name: str
    rank: str
    size: str
    local: str
    is_there: Callable[[Environment], bool]
    beside: str = ""  # how many ranks this host has
    nodes: str = ""  # how many hosts there are
    address: Callable[[Environment], str | None] | None = None  # where ranks are on several hosts
    port: Callable[[Environment], int | None] | None = None  # that no other job of a host has

    def rank_and_size(self, environment: Environment) -> tuple[int, int]:
        for missing, there in ((self.rank, self.size), (self.size, self.rank)):
            if missing not in environment:
                raise _half_set(there, missing)
        rank, size = _number(environment, self.rank), _number(environment, self.size)
        if rank >= size:
            raise Contradiction(
                f"{self.rank}={rank} and {self.size}={size} contradict each other: ranks are 0 to "
                f"{size - 1}"
            )
        return rank, size

    def has_one_host(self, environment: Environment, size: int) -> bool | None:
        """None where nobody tells."""
        if self.beside in environment:
            return _number(environment, self.beside) == size
        return _number(environment, self.nodes) == 1 if self.nodes in environment else None


def place(environment: Environment = os.environ) -> Place | None:
    """This process's rank; None if nobody started it as one, or as the only one."""
    starter = next((s for s in _STARTERS if s.is_there(environment)), None)
    if starter is None:
        if "WORLD_SIZE" in environment:
            raise _half_set("WORLD_SIZE", "RANK")
        return None
    rank, size = starter.rank_and_size(environment)
    _refuse_what_others_say(starter, rank, size, environment)
    if size == 1 and starter is not _TORCHRUN:
        return None  # a batch job of one task has its host for workers of its own
    one_host = starter.has_one_host(environment, size)
    if one_host is None:
        one_host = is_loopback(environment.get(ADDRESS, ""))
    return Place(
        starter.name,
        rank,
        size,
        local=_number(environment, starter.local) if starter.local in environment else rank,
        one_host=one_host,
        address=_address(starter, one_host, environment),
        port=_port(starter, environment),
        is_open=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def let_meet(master: str | None, interface: str | None) -> None:
    """Where a person says that ranks are to meet, and by which interface."""
    if master is not None:
        os.environ[ADDRESS], port = address_and_port(master)
        if port:
            os.environ[PORT] = str(port)
    if interface is not None:
        os.environ[INTERFACE] = interface


def address_and_port(text: str) -> tuple[str, int]:
    """Of `node1`, `node1:29500`, `[fd00::1]:29500`; 0 where no port is named."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host.strip("[]") and not host.endswith("]")):
        return text.strip("[]"), 0  # an address may have colons of its own
    return host.strip("[]"), _port_number(port)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _refuse_what_others_say(
    starter: _Starter, rank: int, size: int, environment: Environment
) -> None:
    """A rank written by hand must be the one that a starter around it gave to this process."""
    if starter is not _TORCHRUN:
        if environment.get("WORLD_SIZE", str(size)) != str(size):
            raise _contradict(f"WORLD_SIZE={environment['WORLD_SIZE']}", f"{starter.size}={size}")
        return
    if "TORCHELASTIC_RUN_ID" in environment or BY_HOSTS in environment:
        return  # not by hand: what stands around started the starter
    for other in _STARTERS[1:]:
        if other.is_there(environment) and other.rank_and_size(environment) != (rank, size):
            theirs = f"{other.rank}={environment[other.rank]}"
            of = f"{other.size}={environment[other.size]}"
            if of != f"{other.size}=1":
                raise _contradict(f"RANK={rank}, WORLD_SIZE={size}", f"{theirs}, {of}")


def _half_set(there: str, missing: str) -> Contradiction:
    return Contradiction(
        f"{there} is set, but {missing} is not: set both to be one rank of several, or unset "
        f"{there} to train on this machine"
    )


def _contradict(one: str, other: str) -> Contradiction:
    first = one.partition("=")[0]
    return Contradiction(f"{one} and {other} contradict each other: unset {first}, or make it fit")


def _address(starter: _Starter, one_host: bool, environment: Environment) -> str:
    given = environment.get(ADDRESS)
    if given is not None and is_loopback(given) and not one_host:
        raise Contradiction(
            f"{ADDRESS}={given} is every host itself, but these ranks are on several: use the "
            "address of rank 0's host"
        )
    if given is None and not one_host and starter.address is not None:
        given = starter.address(environment)
    if given is None and one_host:
        return LOOPBACK
    return given or _refuse_nowhere(starter, f"{ADDRESS} to the address of rank 0's host")


def _port(starter: _Starter, environment: Environment) -> int:
    if PORT not in environment:
        port = starter.port(environment) if starter.port is not None else None
        return port or _refuse_nowhere(starter, f"{PORT} to a free port of rank 0's host")
    return _port_number(environment[PORT])


def _port_number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise Contradiction(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def _refuse_nowhere(starter: _Starter, what: str) -> NoReturn:
    raise Contradiction(
        f"{starter.name} does not tell its ranks where to meet: set {what} for all of them, or use "
        "--master HOST:PORT"
    )


def _number(environment: Environment, name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise Contradiction(f"{name}={text!r} is not a number of 0 or more")
    return int(text)


# -- what each starter tells ------------------------------------------------------------------


def _first_node(environment: Environment) -> str | None:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if nodes := environment.get(name):
            return _reachable(expanded(nodes)[0], environment)
    return None


def _reachable(node: str, environment: Environment) -> str | None:
    """A node by its name, or where Slurm launched from: in a batch job that is the first node."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        return environment.get("SLURM_LAUNCH_NODE_IPADDR")
    return node


def _port_of_step(environment: Environment) -> int | None:
    """Jobs share a host, and so do the steps of one: those next in number keep apart."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not (job.isdecimal() and step.isdecimal()):
        return None
    return _FIRST_PORT + (int(job) * _STEPS + int(step) % _STEPS) % _PORTS


def _port_of_namespace(environment: Environment) -> int | None:
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    return _port_for(job) if job else None


def _port_of_proxy(environment: Environment) -> int | None:
    """MPICH names no job, but its ranks on a host talk to one process: whoever made the pipe."""
    try:
        with socket.socket(fileno=os.dup(int(environment["PMI_FD"]))) as pipe:
            size = struct.calcsize("3i")
            credentials = pipe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except (KeyError, ValueError, OSError, AttributeError):
        return None
    return _port_for(f"proxy {struct.unpack('3i', credentials)[0]}")


def _port_for(job: str) -> int:
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


_TORCHRUN: Final = _Starter(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    is_there=lambda environment: "RANK" in environment,
    beside="LOCAL_WORLD_SIZE",
)  # fmt: skip
_OPEN_MPI: Final = _Starter(
    "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    is_there=lambda environment: "OMPI_COMM_WORLD_RANK" in environment,
    beside="OMPI_COMM_WORLD_LOCAL_SIZE", port=_port_of_namespace,
)  # fmt: skip
_MPICH: Final = _Starter(
    "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
    # Tasks of srun may have PMI_RANK too, and ranks of mpiexec may be in a step of srun's.
    is_there=lambda environment: "PMI_RANK" in environment
    and ("MPI_LOCALRANKID" in environment or "SLURM_STEP_ID" not in environment),
    beside="MPI_LOCALNRANKS", port=_port_of_proxy,
)  # fmt: skip
_SLURM: Final = _Starter(
    "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    # The shell of a batch script has a number as well, but it is no task of a step.
    is_there=lambda environment: "SLURM_STEP_NUM_TASKS" in environment,
    nodes="SLURM_STEP_NUM_NODES", address=_first_node, port=_port_of_step,
)  # fmt: skip
_STARTERS: Final = (_TORCHRUN, _OPEN_MPI, _MPICH, _SLURM)  # the innermost first
