"""Which rank a process is, as torchrun, srun and mpirun tell it."""

import os
import re
import socket

import pytest

from regatta.worlds import started
from regatta.worlds.nodelist import expanded
from regatta.worlds.started import Contradiction, place

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "localhost,n[2-3]", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}  # fmt: skip
BATCH_SHELL = {
    "SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2",
    "SLURM_JOB_NODELIST": "vm", "SLURM_NNODES": "1",
}  # fmt: skip
SALLOC = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "vm"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1033895937",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


# -- who is a rank ----------------------------------------------------------------------------


def test_torchrun_tells_everything():
    found = place(TORCHRUN)
    assert (found.rank, found.size, found.local) == (3, 6, 1)
    assert (found.address, found.port) == ("node0", 29500)
    assert found.is_open
    assert not found.one_host


def test_torchrun_on_one_host():
    assert place(TORCHRUN | {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "6"}).one_host


def test_srun_over_two_nodes():
    found = place(SRUN)
    assert (found.starter, found.rank, found.size, found.local) == ("srun", 2, 4, 0)
    assert found.address == "localhost", "the first node of the step"
    assert not found.one_host
    assert not found.is_open


def test_srun_on_one_node_stays_on_loopback():
    found = place(SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n2"})
    assert found.one_host
    assert found.address == "127.0.0.1"


def test_a_node_without_an_address_is_where_the_job_was_launched():
    found = place(SRUN | {"SLURM_STEP_NODELIST": "no-such-node.invalid,n2"})
    assert found.address == "10.0.0.7"


def test_jobs_and_steps_of_a_host_have_ports_of_their_own():
    jobs = [(job, step) for job in range(100, 200) for step in range(4)]
    ports = {
        place(SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).port
        for job, step in jobs
    }
    assert len(ports) == len(jobs)
    assert all(12_288 <= port < 32_768 for port in ports)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        BATCH_SHELL,
        SALLOC,
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        MPICH | {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
    ids=["nobody", "a batch script's shell", "salloc", "one task", "one of mpirun", "one of MPICH"],
)
def test_who_is_alone_launches_its_own(environment):
    assert place(environment) is None


def test_one_process_of_torchrun_is_a_rank():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert place(TORCHRUN | alone).size == 1


def test_open_mpi_on_one_host():
    found = place(OPEN_MPI)
    assert (found.rank, found.size, found.local, found.one_host) == (1, 2, 1, True)
    assert found.address == "127.0.0.1"
    other = place(OPEN_MPI | {"PMIX_NAMESPACE": "1033895938"})
    assert found.port != other.port
    assert found.port == place(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"}).port


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="needs Linux's sockets")
def test_mpich_on_one_host_meets_where_its_proxy_says():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = place(MPICH | {"PMI_FD": str(ours.fileno())})
    assert (found.rank, found.size, found.local, found.one_host) == (1, 2, 1, True)
    assert found.port == started._port_for(f"proxy {os.getpid()}")


# -- who is inside of whom --------------------------------------------------------------------


def test_torchrun_in_a_step_of_srun():
    assert place(SRUN | TORCHRUN).starter == "torchrun"


def test_ranks_of_mpirun_in_a_step_of_srun():
    """mpirun has srun start its daemons, one a node."""
    one_each = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    assert place(SRUN | one_each | OPEN_MPI).starter == "mpirun"
    assert place(SRUN | one_each | MPICH | {"MASTER_PORT": "29500"}).starter == "mpiexec"


def test_tasks_of_srun_that_speaks_pmi():
    found = place(SRUN | {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_JOBID": "17.0"})
    assert (found.starter, found.rank) == ("srun", 2)


def test_a_size_that_scripts_prepare_is_no_rank():
    assert place(SRUN | {"WORLD_SIZE": "4", "MASTER_PORT": "29511"}).port == 29511


# -- what is refused, by name -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR to the address of rank 0's host"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
            "set MASTER_PORT to a free port",
        ),
        (TORCHRUN | {"RANK": "6"}, "RANK=6 and WORLD_SIZE=6 contradict each other"),
        (TORCHRUN | {"RANK": "x"}, "RANK='x' is not a number"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1' is not a number"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "'99999' is not a port"),
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, "MASTER_ADDR=localhost is every host itself"),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not"),
        (without(SRUN, "SLURM_PROCID"), "SLURM_PROCID is not"),
        (without(MPICH, "PMI_SIZE"), "PMI_SIZE is not"),
        (SRUN | {"WORLD_SIZE": "8"}, "WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4 contradict"),
        (
            SRUN | without(TORCHRUN, "TORCHELASTIC_RUN_ID"),
            "RANK=3, WORLD_SIZE=6 and SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=4 contradict",
        ),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun does not tell its ranks where"),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, "mpiexec does not tell its ranks where to meet"),
        (SRUN | {"SLURM_STEP_NODELIST": "n[1-"}, "'n[1-' is no list of nodes"),
    ],
)
def test_half_set_and_contradictory_environments_are_refused(environment, says):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        place(environment)
    assert "\n" not in str(caught.value)


def test_a_rank_by_hand_that_fits_its_task():
    by_hand = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert place(SRUN | by_hand).rank == 2
    with pytest.raises(Contradiction):
        place(SRUN | by_hand | {"RANK": "0"})


# -- where a person says ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "address", "port"),
    [
        ("node1", "node1", None),
        ("node1:29501", "node1", "29501"),
        ("[fd00::1]:29501", "fd00::1", "29501"),
        ("fd00::1", "fd00::1", None),
    ],
)
def test_a_person_may_say_where(given, address, port, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setitem(os.environ, name, "")  # so that it is taken away in the end
        del os.environ[name]
    started.let_meet(given, "eth7")
    assert os.environ.get("MASTER_ADDR") == address
    assert os.environ.get("MASTER_PORT") == port
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


# -- Slurm's lists of nodes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("vm", ["vm"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("gpu[1,3]-ib,login", ["gpu1-ib", "gpu3-ib", "login"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
    ],
)
def test_lists_of_nodes(text, nodes):
    assert expanded(text) == nodes


@pytest.mark.parametrize("text", ["", "n[", "n]", "n[1-]", "n[3-1]", "a,,b", "n[[1]]", "n[a-b]",
                                  "n[0-99999999]", "n[0-9999]x[0-9999]"])  # fmt: skip
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(ValueError, match="is no list of nodes"):
        expanded(text)
