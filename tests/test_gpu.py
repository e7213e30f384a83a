"""The way of tensors on GPUs, as far as a machine without any can walk it."""

import os

import pytest
import torch
import torch.distributed as dist

from regatta import runs
from regatta.config import Run
from regatta.folders import Plan
from regatta.playing_processes import _device_index
from regatta.worlds import rendezvous
from regatta.worlds.collectives import ByDevice
from regatta.worlds.launch import launch
from regatta.worlds.processes import ProcessComm, connect, run_blocking
from regatta.worlds.sockets_sum import NcclSum
from regatta.worlds.started import INTERFACE, NCCL_INTERFACE, Place


def _act(rank, size, init_method):
    """Gloo, which takes the same calls, stands in for NCCL."""
    torch.set_num_threads(1)
    connect(rank, size, init_method)
    comm = ProcessComm({"pair": [0, 1]}, device="cuda")
    told = [_through_the_device(comm._collectives[name], rank) for name in comm.groups if rank < 2]
    told.append(run_blocking(_sum_on_the_cpu(comm)).tolist())
    told.append(comm.survives)
    comm.close()
    dist.destroy_process_group()
    return told


async def _sum_on_the_cpu(comm):
    return await comm.all_reduce(torch.full((3,), comm.rank + 1.0))


def _through_the_device(group, rank):
    assert isinstance(group, ByDevice)
    gpu = group._gpu
    assert isinstance(gpu, NcclSum)
    mine = torch.tensor([1.0, 10.0]) * (rank + 1)
    kept, lent = mine.clone(), torch.empty(2)
    given = mine.clone()
    assert gpu.sum(given, into=given)() is given
    assert gpu.sum(mine, into=lent)() is lent
    assert torch.equal(given, lent)
    assert torch.equal(mine, kept), "what is summed elsewhere stays"
    whole = gpu.sum(mine)()
    assert torch.equal(whole, lent)
    return whole.tolist(), gpu.broadcast(mine, 1)().tolist()


@pytest.mark.real
def test_sums_and_broadcasts_as_nccl_is_asked_for_them():
    for world, pair, on_cpu, survives in launch(2, _act, ()):
        assert world == pair == ([3.0, 30.0], [2.0, 20.0])
        assert on_cpu == [3.0, 3.0, 3.0]
        assert not survives, "who sums on devices does not go on without others"


class _OnAGpu:
    is_cuda = True


class _Told:
    def __init__(self):
        self.asked = []

    def sum(self, data, into=None):
        self.asked.append(("sum", data, into))

    def broadcast(self, data, root):
        self.asked.append(("broadcast", data, root))


def test_tensors_go_by_their_device():
    cpu, gpu, here, there = _Told(), _Told(), torch.zeros(1), _OnAGpu()
    either = ByDevice(cpu, gpu)
    either.sum(here, here)
    either.broadcast(there, 1)
    either.sum(there)
    either.broadcast(here, 0)
    assert cpu.asked == [("sum", here, here), ("broadcast", here, 0)]
    assert gpu.asked == [("broadcast", there, 1), ("sum", there, None)]


@pytest.fixture
def asked(monkeypatch):
    """What torch.distributed is asked for."""
    told = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: told.update(
        more, backend=backend))  # fmt: skip
    return told


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_each_device_has_its_backend(device, backend, asked):
    rendezvous.join(1, 4, device)
    assert (asked["backend"], asked["rank"], asked["world_size"]) == (backend, 1, 4)


def test_nccl_stays_on_the_interface_of_gloo(asked, monkeypatch):
    for name in (INTERFACE, NCCL_INTERFACE):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    place = Place(rank=0, size=1, local=0, address="127.0.0.1", port=1, starter="a test",
                  one_host=True, is_open=True)  # fmt: skip
    rendezvous.meet(place, "cuda")
    assert os.environ[NCCL_INTERFACE] == os.environ[INTERFACE] == "lo"
    assert asked["backend"] == "cpu:gloo,cuda:nccl"


def test_ranks_of_a_host_share_its_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    assert _device_index(Run(device="cuda"), local=None) == 1
    assert _device_index(Run(device="cuda"), local=2) == 0
    assert _device_index(Run(), local=3) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_one_says_so(tmp_path):
    with pytest.raises(ValueError, match="no CUDA device for PyTorch: use --device cpu"):
        runs.train(Plan("teacher", Run(device="cuda"), tmp_path / "run"))
    assert not (tmp_path / "run").exists()
