"""Files of others that tell of clusters, and lines through measured times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import SUMS

from regatta.cluster.fit import fit_line
from regatta.cluster.formats import Unreadable
from regatta.cluster.formats.astra_sim import read_astra_sim
from regatta.cluster.formats.hostfile import read_hostfile
from regatta.cluster.formats.nccl_tests import read_nccl_tests


class TestNcclTests:
    def test_sizes_and_seconds(self):
        found = read_nccl_tests("# ./build/all_reduce_perf -b 1K\n" + SUMS)
        assert (found.operation, found.ranks, found.hosts) == ("all_reduce", 3, 1)
        assert found.seconds[0] == (1024, pytest.approx(101e-6))
        assert len(found.seconds) == 3

    def test_a_prefix_of_a_launcher(self):
        text = "\n".join("[node1] " + row for row in SUMS.splitlines())
        assert len(read_nccl_tests(text).seconds) == 3

    @pytest.mark.parametrize(
        "text", ["", "all_reduce_perf: command not found", "# only\n# comments"]
    )
    def test_what_it_is_not(self, text):
        with pytest.raises(Unreadable, match="nccl-tests"):
            read_nccl_tests(text)

    def test_no_time(self):
        with pytest.raises(Unreadable, match="line 7"):
            read_nccl_tests(SUMS.replace("  101.0", "    0.0"))


ASTRA = """topology: [ Switch, Ring ]
npus_count: [ 8, 4 ]
bandwidth: [ 400.0, 50.0 ]  # GB/s
latency: [ 936.25, 2000.0 ]  # ns
"""


class TestAstraSim:
    def test_devices_in_hosts(self):
        found = read_astra_sim(ASTRA)
        assert found.per_host == 8
        assert (found.local_bandwidth, found.bandwidth) == (400e9, 50e9)
        assert (found.local_latency, found.latency) == pytest.approx((936.25e-9, 2e-6))

    def test_one_dimension_is_hosts_of_one(self):
        text = "topology: [Ring]\nnpus_count: [16]\nbandwidth: [25]\nlatency: [500]\n"
        assert read_astra_sim(text).per_host == 1

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "no `topology:`"),
            ("a: [", "not YAML"),
            ("topology: [Mesh]\n", "Mesh"),
            (ASTRA.replace("400.0", "-1"), "bandwidth: -1"),
            (ASTRA.replace("400.0", "fast"), "bandwidth: 'fast'"),
            (ASTRA.replace("[ 8, 4 ]", "[ 8 ]"), "npus_count has 1 values, topology 2"),
            (ASTRA.replace("[ 8, 4 ]", "8"), "npus_count must be a list"),
            ("topology: [Ring, Ring, Ring]\nnpus_count: [2, 2, 2]\nbandwidth: [1, 1, 1]\n"
             "latency: [1, 1, 1]", "3 dimensions"),
            ("topology: !!python/object/apply:os.system [ls]", "not YAML"),
        ],
    )  # fmt: skip
    def test_what_it_is_not(self, text, said):
        with pytest.raises(Unreadable, match=said):
            read_astra_sim(text)


class TestHostfile:
    def test_all_forms(self):
        text = "node1 slots=8 max_slots=9\n# none\nnode2:4  # four\n\nnode3\n[fe80::1]:2\nnode1:1\n"
        assert read_hostfile(text) == {"node1": 9, "node2": 4, "node3": 1, "[fe80::1]": 2}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "no host"),
            ("node1 slots=many", "'many' slots"),
            ("node1 slots=0", "'0' slots"),
            ("node1 eight", "node1 slots=8"),
            ("no/de slots=1", "not the name of a host"),
        ],
    )
    def test_what_it_is_not(self, text, said):
        with pytest.raises(Unreadable, match=said):
            read_hostfile(text)


class TestLine:
    @given(
        st.floats(1e-7, 1e-3),
        st.floats(1e8, 1e12),
        st.lists(st.floats(0.98, 1.02), min_size=12, max_size=12),
    )
    def test_latency_and_bandwidth_are_found_where_they_show(self, latency, bandwidth, noise):
        sizes = [latency * bandwidth * 4.0**n for n in range(-6, 6)]  # around where both count
        points = [(n, (latency + n / bandwidth) * f) for n, f in zip(sizes, noise, strict=True)]
        found = fit_line(points)
        assert found.fixed == pytest.approx(latency, rel=0.05)
        assert found.bandwidth == pytest.approx(bandwidth, rel=0.05)
        assert found.error < 0.03
        assert found.remarks == ()

    def test_large_messages_alone_tell_no_latency(self):
        found = fit_line([(n, 1e-6 + n / 1e9) for n in (1e8, 1e9, 1e10)])
        assert found.fixed is None
        assert found.bandwidth == pytest.approx(1e9, rel=0.01)
        assert "latency" in found.remarks[0]

    def test_small_messages_alone_tell_no_bandwidth(self):
        found = fit_line([(n, 1e-3 + n / 1e9) for n in (1, 10, 100)])
        assert found.fixed == pytest.approx(1e-3, rel=0.01)
        assert found.bandwidth is None

    def test_one_size(self):
        found = fit_line([(1e6, 1e-3), (1e6, 1.1e-3)])
        assert found.fixed is None
        assert "apart" in found.remarks[0]

    def test_never_below_zero(self):
        found = fit_line([(1e3, 1e-6), (1e6, 1.5e-3), (1e9, 2.0)])
        assert found.fixed is None or found.fixed >= 0

    @pytest.mark.parametrize("points", [[], [(1, 0)], [(0, 1)], [(1, -1)]])
    def test_nonsense(self, points):
        with pytest.raises(ValueError, match=r"measured|more than 0"):
            fit_line(points)
