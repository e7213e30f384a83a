"""Shared memory: values stay whole while anybody holds them, and blocks come back."""

import os

import pytest
import torch

from regatta.worlds.adding import add_up, by_host, stripes_of
from regatta.worlds.arena import Arena, Outlook


@pytest.fixture
def arena():
    return Arena(2)


@pytest.fixture
def outlook(arena):
    """The same arena as a neighbour sees it."""
    return Outlook(f"/proc/{os.getpid()}/fd/{arena.file}", arena.capacity, 2, place=1)


def test_a_value_is_seen_where_it_lies(arena, outlook):
    vector = arena.empty(1000, torch.float32).fill_(3.0)
    seen = outlook.value(arena.send(vector, to=1), torch.float32)
    assert torch.equal(seen, vector)
    vector[7] = 5.0  # the same memory, not a copy
    assert seen[7] == 5.0


def test_a_slice_is_sent_as_a_slice(arena, outlook):
    vector = arena.empty(1000, torch.float32).copy_(torch.arange(1000.0))
    seen = outlook.value(arena.send(vector[100:200], to=1), torch.float32)
    assert torch.equal(seen, torch.arange(100.0, 200.0))


def test_a_value_from_elsewhere_is_copied_in(arena, outlook):
    vector = torch.randn(1000)
    seen = outlook.value(arena.send(vector, to=1), torch.float32)
    assert torch.equal(seen, vector)
    assert seen.data_ptr() != vector.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.int64])
def test_every_type_of_number_passes(arena, outlook, dtype):
    vector = torch.arange(100).to(dtype)
    assert torch.equal(outlook.value(arena.send(vector, to=1), dtype), vector)


def test_a_block_is_not_used_again_while_its_owner_holds_it(arena):
    first, second = arena.empty(5000, torch.float32), arena.empty(5000, torch.float32)
    assert first.data_ptr() != second.data_ptr()
    address = first.data_ptr()
    view = first[10:20]
    del first
    assert arena.empty(5000, torch.float32).data_ptr() != address, "a view still holds it"
    del view
    assert arena.empty(5000, torch.float32).data_ptr() == address


def test_a_block_is_not_used_again_while_a_neighbour_holds_it(arena, outlook):
    vector = arena.empty(5000, torch.float32)
    address = vector.data_ptr()
    place = arena.send(vector, to=1)
    del vector
    assert arena.blocks_in_use() == 1, "sent, though not yet looked at"
    seen = outlook.value(place, torch.float32)
    view = seen[10:20]
    del seen
    assert arena.empty(5000, torch.float32).data_ptr() != address, "a view still holds it"
    del view
    assert arena.blocks_in_use() == 0
    assert arena.empty(5000, torch.float32).data_ptr() == address


def test_many_turns_need_few_blocks(arena, outlook):
    model = arena.empty(5000, torch.float32)
    for _ in range(1000):
        model = arena.empty(5000, torch.float32)
        seen = outlook.value(arena.send(model, to=1), torch.float32)
    del model, seen
    assert len(arena._by_offset) <= 3


def test_too_many_values_under_way_are_named(arena, monkeypatch):
    monkeypatch.setattr("regatta.worlds.arena._MOST_BLOCKS", 4)
    held = [arena.empty(10, torch.float32) for _ in range(4)]
    with pytest.raises(MemoryError, match="4 vectors of this rank are held"):
        arena.empty(10, torch.float32)
    del held


# -- the order of adding ---------------------------------------------------------------------


@pytest.mark.parametrize("numel", [1, 15, 16, 17, 1000, 100_003])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 64])
def test_stripes_cover_a_vector_once(numel, ranks):
    covered = torch.zeros(numel)
    for stripe in stripes_of(numel, ranks):
        covered[stripe] += 1
    assert torch.equal(covered, torch.ones(numel))


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("own", [0, 1, 2])
def test_ranks_of_a_host_are_added_in_order_wherever_the_sum_is_written(ranks, own):
    summands = [torch.randn(200_001) for _ in range(ranks)]
    expected = summands[0].clone()
    for summand in summands[1:]:
        expected = expected + summand
    out = summands[min(own, ranks - 1)]
    add_up([summands], out)
    assert torch.equal(out, expected)


def test_hosts_are_added_after_their_ranks():
    a, b, c, d, e = summands = [torch.randn(1000) for _ in range(5)]
    assert by_host(range(5), [0, 0, 1, 1, 2]) == [[0, 1], [2, 3], [4]]
    out = torch.empty(1000)
    add_up([[a, b], [c, d], [e]], out)
    assert torch.equal(out, ((a + b) + (c + d)) + e)
    assert not torch.equal(out, sum(summands[1:], summands[0])), "rounding tells the orders apart"
