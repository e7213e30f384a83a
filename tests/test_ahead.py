"""Receives that are ready before anything has been sent: both ends must mean the same one."""

import random

import pytest
import torch

from regatta.worlds.ahead import _MOST_LENGTHS, Tags
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm, connect, run_blocking
from regatta.worlds.sockets import complaint


def test_both_ends_give_the_same_tags_in_the_order_of_lengths():
    here, there = Tags(2), Tags(2)
    kinds = [(torch.float32, 5), (torch.int8, 5), (torch.float32, 6), (torch.float32, 5)]
    tags = [here.of(*kind) for kind in kinds]
    assert tags == [there.of(*kind) for kind in kinds] == [3, 4, 5, 3]


def test_lengths_of_which_there_are_too_many_share_a_tag():
    tags = Tags(2)
    own = [tags.of(torch.float32, numel) for numel in range(_MOST_LENGTHS)]
    assert len(set(own)) == _MOST_LENGTHS
    late = {tags.of(torch.float32, _MOST_LENGTHS + more) for more in range(5)}
    assert late == {2}
    assert tags.is_shared(2)
    assert not any(map(tags.is_shared, own))
    assert tags.of(torch.float32, 3) == own[3], "the others keep theirs"


def _lengths(count):
    """Some often, most of them seldom, in no order."""
    draw = random.Random(7)
    often = [1, 999, 20_000, 2_100_000]  # the last too long to be received ahead
    return [draw.choice(often) if draw.random() < 0.5 else draw.randrange(1, 400)
            for _ in range(count)]  # fmt: skip


def _send_all_lengths(rank, size, init_method):
    connect(rank, size, init_method)
    comm = ProcessComm({}, transport="sockets")
    whole = run_blocking(_all_lengths(comm))
    comm.close()
    return whole


async def _all_lengths(comm):
    """Both send all before they receive any; and sums of these lengths, three open at a time."""
    lengths, other = _lengths(200), 1 - comm.rank
    assert len(set(lengths)) > _MOST_LENGTHS
    for number, numel in enumerate(lengths):
        await comm.send(other, torch.full((numel,), float(number)), version=number)
    came = [await comm.recv(other) for _ in lengths]
    whole = [
        m.version == number and m.data.numel() == numel and bool((m.data == number).all())
        for number, (m, numel) in enumerate(zip(came, lengths, strict=True))
    ]
    for start in range(0, 60, 3):
        group = enumerate(lengths[start : start + 3], start)
        sums = [(n, comm.all_reduce(torch.full((numel,), n + 0.5 * comm.rank)))
                for n, numel in group]  # fmt: skip
        whole += [bool((await total == 2 * n + 0.5).all()) for n, total in sums]
    return whole


@pytest.mark.real
def test_any_lengths_in_any_order_arrive_whole():
    for whole in launch(2, _send_all_lengths, ()):
        assert len(whole) == 260
        assert all(whole)


GLOO = (
    "[/somewhere/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:16562: Connection reset by "
    "peer. This is typically caused by a remote worker hanging. Check the logs."
)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError(GLOO), "Read error [10.0.0.2]:16562: Connection reset by peer."),
        (RuntimeError("Connection closed by peer\nat 0x7f"), "Connection closed by peer"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_what_gloo_says_is_told_in_short(error, told):
    assert complaint(error) == told
