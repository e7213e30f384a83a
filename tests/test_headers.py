"""Messages that no rank sends: refused before anything is made of them, by their sender's name."""

from __future__ import annotations

import os
import struct

import pytest
import torch
import torch.distributed as dist
from test_wires import play

from regatta.comm import ANY, WorldFailed
from regatta.worlds.arena import Arena, Outlook, Place
from regatta.worlds.headers import DTYPES, Nonsense, dtype_of, dtype_to_receive
from regatta.worlds.launch import RankFailed
from regatta.worlds.neighbours import Neighbours

INLINE, FLOATS, BYTES = -1, 0, DTYPES.index(torch.uint8)


@pytest.fixture
def wired():
    """A rank that hears rank 3 through a pipe; what is written there, and where a vector lies."""
    arena = Arena(2)
    outlook = Outlook(f"/proc/{os.getpid()}/fd/{arena.file}", arena.capacity, 2, place=1)
    reader, writer = os.pipe()
    neighbours = Neighbours((0, 3), arena, {3: outlook}, {3: reader}, {})
    vector = arena.empty(5000, torch.float32).fill_(3.0)
    place = arena.send(vector, to=1)

    def hear(*header, payload=b""):
        os.write(writer, struct.pack("<6q", *header) + payload)
        return neighbours.come(reader)[1]

    hear.place, hear.vector, hear.capacity = place, vector, arena.capacity
    return hear


def test_what_ranks_do_send_is_heard(wired):
    (message,) = wired(1, 7, FLOATS, *wired.place)
    assert torch.equal(message.data, wired.vector)
    assert (message.src, message.tag, message.version) == (3, 1, 7)
    (message,) = wired(0, 0, FLOATS, INLINE, 0, 8, payload=struct.pack("<2f", 1.0, 2.0))
    assert message.data.tolist() == [1.0, 2.0]
    (message,) = wired(0, 0, FLOATS, INLINE, 0, 0)
    assert message.data.numel() == 0


FAR = 2**62


@pytest.mark.parametrize(
    ("code", "block", "offset", "nbytes", "said"),
    [
        (-1, INLINE, 0, 8, "no type of numbers -1"),
        (len(DTYPES), INLINE, 0, 8, "no type of numbers"),
        (FAR, INLINE, 0, 8, "no type of numbers"),
        (FLOATS, INLINE, 0, -8, "-8 bytes are no whole numbers"),
        (FLOATS, INLINE, 0, 7, "7 bytes are no whole numbers"),
        (FLOATS, INLINE, 0, 4004, "4004 bytes are to follow"),
        (FLOATS, INLINE, 0, FAR, "bytes are to follow"),
        (FLOATS, -2, 0, 8, "no vector lies at"),
        (FLOATS, 8192, None, 8, "no vector lies at"),
        (FLOATS, 0, 0, 8, "no vector lies at"),  # there lies the ledger
        (FLOATS, 0, -4096, 8, "no vector lies at"),
        (FLOATS, 0, FAR, 8, "no vector lies at"),
        (FLOATS, 0, None, FAR, "no vector lies at"),
        (FLOATS, 0, None, 0, "no vector lies at"),
        (FLOATS, 0, "end", 8, "no vector lies at"),
        (FLOATS, 0, "odd", 8, "no vector lies at"),
    ],
)
def test_a_header_that_makes_no_sense_names_its_sender(wired, code, block, offset, nbytes, said):
    """`None` stands for where a vector does lie, `end` for the last byte, `odd` for between."""
    places = {None: wired.place.offset, "end": wired.capacity - 4, "odd": wired.place.offset + 2}
    with pytest.raises(WorldFailed, match=f"rank 3: it has sent a message .* {said}"):
        wired(0, 0, code, block, places.get(offset, offset), nbytes)


def test_memory_up_to_its_end_may_be_named(wired):
    (message,) = wired(0, 0, BYTES, 0, wired.capacity - 8, 8)
    assert message.data.tolist() == [0] * 8


def test_lengths_are_held_against_the_memory_of_the_machine():
    assert dtype_to_receive(0, 1000) == torch.float32
    for numel in (-1, FAR, 2**63 - 1):
        with pytest.raises(Nonsense, match=f"{numel} numbers of torch.float32 are announced"):
            dtype_to_receive(0, numel)
    assert [dtype_of(code, 8) for code in range(len(DTYPES))] == list(DTYPES)


def test_only_arenas_are_mapped(tmp_path):
    """A rank names descriptors: no other file must be written to."""
    other = tmp_path / "file"
    other.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="no arena"):
        Outlook(str(other), 1 << 20, 2, place=1)
    arena = Arena(2)
    path = f"/proc/{os.getpid()}/fd/{arena.file}"
    for capacity in (0, 4096, arena.capacity + 1):  # beyond its end a look would be deadly
        with pytest.raises(OSError, match="no arena"):
            Outlook(path, capacity, 2, place=1)
    assert Outlook(path, arena.capacity, 2, place=1).value(
        Place(0, 131072 + 4096, 8), torch.float32
    ).numel() == 2  # fmt: skip


# -- between real ranks -----------------------------------------------------------------------


async def _nonsense_through_the_pipe(comm):
    if comm.rank == 1:
        writer = comm._mailbox._near._writers[0]
        os.write(writer, struct.pack("<6q", 0, 0, 99, INLINE, 0, 8) + bytes(8))
    return (await comm.recv(ANY if comm.rank == 0 else 0)).data


async def _nonsense_through_the_socket(comm):
    if comm.rank == 1:
        far, header = comm._mailbox._far, torch.tensor([0, 0, comm.code, comm.numel])
        headers, _ = far._tags[0]
        tag = headers.of(header.dtype, header.numel())
        dist.send(header, 0, group=far._group, tag=tag)
    return (await comm.recv(ANY if comm.rank == 0 else 0)).data


async def _unknown_type(comm):
    comm.code, comm.numel = -7, 3
    return await _nonsense_through_the_socket(comm)


async def _too_many(comm):
    comm.code, comm.numel = 0, 2**62
    return await _nonsense_through_the_socket(comm)


async def _less_than_none(comm):
    comm.code, comm.numel = 0, -1
    return await _nonsense_through_the_socket(comm)


@pytest.mark.real
@pytest.mark.parametrize(
    ("act", "transport"),
    [
        (_nonsense_through_the_pipe, "auto"),
        (_unknown_type, "sockets"),
        (_too_many, "sockets"),
        (_less_than_none, "sockets"),
    ],
)
def test_nonsense_ends_the_world_and_names_who_sent_it(act, transport):
    with pytest.raises(RankFailed, match=r"rank [01] failed: WorldFailed: rank (0|1)"):
        play(2, act, transport)


async def _another_model(comm):
    return await comm.all_reduce(torch.ones(10_000 if comm.rank else 1))


@pytest.mark.real
def test_ranks_of_different_models_do_not_add_up():
    """One number would be added to each of the others without a word."""
    with pytest.raises(RankFailed, match=r"WorldFailed"):
        play(2, _another_model)


async def _almost_the_same_model(comm):
    return await comm.all_reduce(torch.ones(10_000 + comm.rank))


@pytest.mark.real
def test_ranks_of_almost_the_same_model_do_not_add_up():
    with pytest.raises(RankFailed, match="ranks do not train the same model"):
        play(2, _almost_the_same_model)
