"""Where ranks that somebody started find each other: torch.distributed's store, kept by rank 0.

The store listens on one address only: loopback, if all ranks are on one host, or else the address
that the others were told. Gloo's own sockets stay on the interface that leads there.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any, Final

import psutil
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed exports it without saying so

from regatta.comm import WorldFailed
from regatta.worlds.started import ADDRESS, INTERFACE, NCCL_INTERFACE, Place, is_loopback
from regatta.worlds.wires import PATIENCE

_TO_MEET: Final = 1800.0  # seconds; the data of some ranks may take longer to prepare
_AT_ONCE: Final = timedelta(seconds=20)  # what takes longer is told


def meet(place: Place, device: str = "cpu") -> None:
    """Join the world that this process is a rank of."""
    if INTERFACE not in os.environ:
        os.environ[INTERFACE] = "lo" if place.one_host else _interface_towards(place)
    if device == "cuda":
        os.environ.setdefault(NCCL_INTERFACE, os.environ[INTERFACE])
    if place.is_open:
        join(place.rank, place.size, device, init_method="env://")
        return
    store = _opened(place) if place.rank == 0 else _found(place)
    _wait_for_all(place, store)
    join(place.rank, place.size, device, store=store)


def join(rank: int, size: int, device: str, **where: Any) -> None:
    """A slow rank is given all the time it needs; a dead one is noticed by its connection."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=PATIENCE, **where)


def _opened(place: Place) -> TCPStore:
    """A store on one address: left to itself it would listen on every interface."""
    where = f"{place.address}:{place.port}"
    try:
        family, kind, protocol, _, address = _resolved(place)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(place.size)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise WorldFailed(
                f"{where} is in use by another program: choose another MASTER_PORT "
                "(torchrun: --master-port)"
            ) from None
        raise WorldFailed(
            f"rank 0 cannot listen on {where} ({error.strerror}): {ADDRESS} must be an address of "
            f"its own host, {socket.gethostname()}"
        ) from None
    return _store(place, PATIENCE, master_listen_fd=listener.detach())


def _found(place: Place) -> TCPStore:
    """Rank 0's store, once that is there."""
    where = f"{place.address}:{place.port}"
    deadline, told = time.monotonic() + _TO_MEET, False
    while True:
        try:
            store = _store(place, _AT_ONCE)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise WorldFailed(
                    f"rank {place.rank} has not found rank 0 at {where} within "
                    f"{_TO_MEET / 60:.0f} minutes: is it started, and does a firewall let this "
                    "port through?"
                ) from None
            if not told:
                _say(f"rank {place.rank} waits for rank 0 at {where}")
                told = True
        else:
            store.set_timeout(PATIENCE)
            return store


def _store(place: Place, patience: timedelta, **more: Any) -> TCPStore:
    return TCPStore(
        place.address,
        place.port,
        place.size,
        is_master=bool(more),
        timeout=patience,
        wait_for_workers=False,
        **more,
    )


def _wait_for_all(place: Place, store: TCPStore) -> None:
    """Whoever does not come is named, instead of being waited for for ever."""
    store.set(_here(place.rank), "")
    missing = list(range(place.size))
    deadline, told = time.monotonic() + _TO_MEET, False
    while missing:
        try:
            store.wait([_here(rank) for rank in missing], _AT_ONCE)
            return
        except RuntimeError:
            missing = [rank for rank in missing if not store.check([_here(rank)])]
        who = ", ".join(map(str, missing))
        if time.monotonic() > deadline:
            raise WorldFailed(
                f"ranks that did not come to {place.address}:{place.port} within "
                f"{_TO_MEET / 60:.0f} minutes: {who}"
            )
        if not told and place.rank == 0 and missing:
            _say(f"rank 0 waits at {place.address}:{place.port} for ranks {who}")
            told = True


def _here(rank: int) -> str:
    return f"regatta/here/{rank}"


def _interface_towards(place: Place) -> str:
    """The interface by which this host reaches rank 0's, or has the address of it."""
    try:
        family, _, _, _, address = _resolved(place)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it asks the system for the route
            own = probe.getsockname()[0]
    except OSError as error:
        raise WorldFailed(
            f"{place.address}, where rank 0 is said to be, cannot be reached from "
            f"{socket.gethostname()} ({error.strerror}): set {ADDRESS} to its address"
        ) from None
    if is_loopback(own):
        raise WorldFailed(
            f"{place.address} is {own} on {socket.gethostname()}, which no other host can reach: "
            f"set {ADDRESS} to its address in the network"
        )
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == own for entry in addresses):
            return str(name)
    raise WorldFailed(
        f"no interface of {socket.gethostname()} has {own}: name one with --interface"
    )


def _resolved(place: Place) -> Any:
    """As the store will resolve it."""
    return socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]


def _say(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)
