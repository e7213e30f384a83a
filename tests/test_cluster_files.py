"""Files of others that tell of clusters, and lines through measured times."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import SUMS
from real import command

from regatta.cluster import Cluster
from regatta.cluster.files import load_cluster
from regatta.cluster.fit import fit_line
from regatta.cluster.formats import Unreadable
from regatta.cluster.formats.hostfile import read_hostfile
from regatta.cluster.formats.nccl_tests import read_nccl_tests
from regatta.cluster.paths import Paths


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
DEEP = """topology: [ Ring, FullyConnected, Switch, Switch ]
npus_count: [ 8, 4, 2, 3 ]
bandwidth: [ 400, 50, 10, 5 ]
latency: [ 1000, 2000, 3000, 4000 ]
"""


def loaded(folder: Path, text: str, name: str = "net.yml") -> Cluster:
    (folder / name).write_text(text)
    return load_cluster(str(folder / name))


class TestAstraSim:
    def test_devices_in_hosts(self, tmp_path):
        found = loaded(tmp_path, ASTRA)
        assert (found.per_host, found.devices) == (8, 32)
        assert found.local_bandwidth == 400e9
        assert found.bandwidth == 8 * 50e9  # of one card for all eight devices
        assert (found.local_latency, found.latency) == pytest.approx((936.25e-9, 2e-6))

    def test_sums_take_what_its_own_formula_says(self, tmp_path):
        """Reduced in every dimension by a ring, and only an eighth of it in the outer one."""
        nbytes = 2**26
        inside = 2 * 7 * (936.25e-9 + nbytes / 8 / 400e9)
        outside = 2 * 3 * (2e-6 + nbytes / 8 / 4 / 50e9)
        found = loaded(tmp_path, ASTRA).all_reduce(nbytes, 32, 4)
        assert found == pytest.approx(inside + outside)

    def test_more_devices_than_it_has_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="33 ranks and 32 devices"):
            loaded(tmp_path, ASTRA).site(33)

    def test_one_dimension_is_hosts_of_one(self, tmp_path):
        text = "topology: [Ring]\nnpus_count: [16]\nbandwidth: [25]\nlatency: [500]\n"
        found = loaded(tmp_path, text)
        assert (found.per_host, found.devices, found.bandwidth) == (1, 16, 25e9)

    def test_further_dimensions_are_switches(self, tmp_path):
        found = loaded(tmp_path, DEEP)
        assert len(found.described.every_host) == 24
        route = Paths(found).between(0, 23)  # up two switches and down two
        assert [way.bandwidth for way in route.out] == [8 * 50e9, 32 * 10e9, 64 * 5e9]
        assert route.latency == pytest.approx(4e-6)
        assert len(Paths(found).between(0, 3).out) == 1  # below one switch
        assert len(Paths(found).between(0, 4).out) == 2

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("npus_count: [2]", "topology must be a list"),
            (ASTRA.replace("Ring", "Mesh"), "Mesh: one of Ring"),
            (ASTRA.replace("400.0", "-1"), "bandwidth: -1"),
            (ASTRA.replace("400.0", "fast"), "bandwidth: 'fast'"),
            (ASTRA.replace("[ 8, 4 ]", "[ 8 ]"), "npus_count has 1 values, topology 2"),
            (ASTRA.replace("[ 8, 4 ]", "8"), "npus_count must be a list"),
            (ASTRA.replace("[ 8, 4 ]", "[ 8.5, 4 ]"), "npus_count 8.5 is not a whole number"),
            (ASTRA + "npus: !!python/object/apply:os.system [ls]", "cannot be read"),
        ],
    )  # fmt: skip
    def test_what_it_is_not(self, text, said, tmp_path):
        with pytest.raises(ValueError, match=rf"net.yml.*{re.escape(said)}"):
            loaded(tmp_path, text)


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

    def test_a_cluster_of_its_slots(self, tmp_path):
        found = loaded(tmp_path, "node1 slots=2\nnode2:4\n", "hosts")
        names = [(name, len(host.devices)) for name, host in found.described.every_host]
        assert names == [("node1", 2), ("node2", 4)]
        assert found.hosts(6) == [0, 0, 1, 1, 1, 1]
        with pytest.raises(ValueError, match="7 workers and 6 places"):
            found.site(7)

    def test_a_file_that_is_none(self, tmp_path):
        with pytest.raises(ValueError, match=r"taken for a hostfile: line 1: .* ends in .toml"):
            loaded(tmp_path, "latency = 3", "mine.conf")

    def test_the_command_writes_it_as_a_cluster_file(self, tmp_path):
        (tmp_path / "hosts").write_text("node1 slots=2\nnode2:4\n")
        told = command("clusters", "hosts", cwd=tmp_path)
        assert "# Places: node1/0..1 node2/0..3" in told.stdout
        assert loaded(tmp_path, told.stdout, "mine.toml") == load_cluster(str(tmp_path / "hosts"))

    @pytest.mark.parametrize("name", ["default", "ethernet-1", "campos", "hu-8", "p2-p3", "sys1"])
    def test_what_the_command_tells_of_a_cluster_is_a_file_of_it(self, name, tmp_path):
        told = command("clusters", name).stdout
        assert loaded(tmp_path, told, "mine.toml") == load_cluster(name)


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
