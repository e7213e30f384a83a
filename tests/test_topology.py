"""How devices are joined: what tools print of it, rings, and whom to leave out."""

import itertools
import json

import conftest
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from links import SUMS
from real import command

from regatta.cluster.formats import Unreadable
from regatta.cluster.formats.nccl_xml import read_nccl_xml
from regatta.cluster.formats.pairs import read_pairs
from regatta.cluster.formats.topo_matrix import read_topo_matrix
from regatta.cluster.machines import topologies
from regatta.cluster.rings import Setting, advise, best_ring, ring_of
from regatta.cluster.topology import LEVELS, Path, Topology

HU = read_topo_matrix(topologies()["hu"])
NEW = """\x1b[4m	GPU0	GPU1	GPU2	CPU Affinity	NUMA Affinity	GPU NUMA ID\x1b[0m
GPU0	 X 	NV4	NODE	0-31,64-95	0		N/A
GPU1	NV4	 X 	NODE	0-31,64-95	0		N/A
GPU2	NODE	NODE	 X 	0-31,64-95	0		N/A

Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
NIC Legend:
  NIC0: mlx5_0
"""
WITH_CARD = """
> 	GPU0	GPU1	mlx4_0	CPU Affinity
> GPU0	 X 	PHB	SOC	0-5
> GPU1	PHB	 X 	SOC	0-5
> mlx4_0	SOC	SOC	 X
"""


def kinds(topology):
    return {pair: path.kind for pair, path in topology.paths.items()}


class TestTopoMatrix:
    def test_an_old_one(self):
        assert HU.devices == tuple(f"GPU{number}" for number in range(8))
        assert HU.path(0, 1).kind == "PIX"
        assert HU.path(0, 7).kind == "SYS"  # SOC of old drivers
        assert HU.path(3, 4).kind == "PHB"
        assert HU.path(5, 6).kind == "PXB"
        assert HU.path(7, 0).bandwidth < HU.path(7, 2).bandwidth
        assert HU.warnings == ()

    def test_a_new_one_with_colours_and_more_columns(self):
        found = read_topo_matrix(NEW)
        assert kinds(found) == {(0, 1): "NV", (0, 2): "NODE", (1, 2): "NODE"}
        assert found.path(0, 1).bandwidth == 4 * 20e9

    def test_a_pasted_one_with_a_network_card(self):
        assert kinds(read_topo_matrix(WITH_CARD)) == {(0, 1): "PHB"}

    def test_cards_between_devices_in_any_order(self):
        text = "\tGPU0\tNIC1\tGPU1\tNIC0\n" + "GPU0\tX\tPIX\tSYS\tSYS\nNIC1\tPIX\tX\tSYS\tSYS\n"
        text += "GPU1\tSYS\tSYS\tX\tPIX\nNIC0\tSYS\tSYS\tPIX\tX\n"
        assert kinds(read_topo_matrix(text)) == {(0, 1): "SYS"}

    def test_a_code_nobody_knows_is_the_slowest_and_said(self):
        found = read_topo_matrix("\tGPU0\tGPU1\nGPU0\tX\tQQQ\nGPU1\tQQQ\tX\n")
        assert kinds(found) == {(0, 1): "SYS"}
        assert "QQQ" in found.warnings[0]

    def test_two_directions_that_differ_are_said(self):
        found = read_topo_matrix("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPHB\tX\n")
        assert kinds(found) == {(0, 1): "PIX"}
        assert "GPU0 and GPU1" in found.warnings[0]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "GPU0 GPU1"),
            ("no such command", "nvidia-smi topo -m"),
            ("\tGPU0\tGPU1\nGPU0\tX\tPIX\n", "GPU1 is missing"),
            ("\tGPU0\tGPU1\nGPU0\tX\nGPU1\tPIX\tX\n", "1 of 2 columns"),
        ],
    )
    def test_what_it_is_not(self, text, said):
        with pytest.raises(Unreadable, match=said):
            read_topo_matrix(text)

    @given(st.text(alphabet="GPU01NVXPIHBS \t\n>#|`Legnd:", max_size=300))
    def test_anything_is_read_or_refused(self, text):
        try:
            found = read_topo_matrix(text)
        except ValueError:
            return
        assert len(found.devices) >= 1


PAIRS = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
P2P Connectivity Matrix
     D\\D     0     1     2
     0	     1     1     0
     1	     1     1     0
     2	     0     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 500.00   6.00   5.00
     1   6.10 501.00   5.00
     2   5.00   4.00 502.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 500.00  12.00   5.00
     1  11.00 501.00   5.00
     2   5.00   4.00 502.00
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 500.00  24.00  10.00
     1  24.00 501.00  10.00
     2  10.00  10.00 502.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2
     0   1.50   2.00  12.00
     1   3.00   1.50  12.00
     2  12.00  12.00   1.50

   CPU     0      1      2
     0   4.50   3.00  12.00
     1   3.00   3.50  12.00
     2  12.00  12.00   3.50
"""


class TestPairs:
    def test_one_way_between_peers_in_the_slower_direction(self):
        found = read_pairs(PAIRS)
        assert found.bandwidths == {(0, 1): 11e9, (0, 2): 5e9, (1, 2): 4e9}
        assert found.latencies[0, 1] == pytest.approx(3e-6)
        assert found.peer_to_peer

    def test_through_the_host_where_devices_are_no_peers(self):
        found = read_pairs(PAIRS.split("Unidirectional P2P=Enabled")[0])
        assert found.bandwidths[0, 1] == 6e9
        assert not found.peer_to_peer

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "p2pBandwidthLatencyTest"),
            (PAIRS[: PAIRS.index("     2   5.00   4.00")], "device 2 is missing"),
            (PAIRS.replace("6.10", "-6.1"), "-6.1"),
            (PAIRS.replace("6.10", "fast"), "fast"),
        ],
    )
    def test_what_it_is_not(self, text, said):
        with pytest.raises(Unreadable, match=said):
            read_pairs(text)


XML = """<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">
      <pci busid="0000:17:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="0">
          <nvlink target="0000:18:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:18:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="70" rank="1" gdr="0">
          <nvlink target="0000:17:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
    </pci>
    <pci busid="0000:30:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="2" sm="70" rank="2" gdr="0"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:86:00.0" class="0x030200" link_speed="2.5 GT/s PCIe" link_width="1">
      <gpu dev="3" sm="70" rank="3" gdr="0"/>
    </pci>
  </cpu>
</system>"""


class TestNcclXml:
    def test_what_joins_devices(self):
        found = read_nccl_xml(XML)
        assert kinds(found) == {
            (0, 1): "NV", (0, 2): "PHB", (1, 2): "PHB",
            (0, 3): "SYS", (1, 3): "SYS", (2, 3): "SYS",
        }  # fmt: skip
        assert found.path(0, 1).bandwidth == 2 * 20e9
        assert found.path(0, 2).bandwidth == 12e9  # PCIe 3.0 x16
        assert found.path(2, 3).bandwidth == pytest.approx(15 / 80 * 1e9)  # one lane of PCIe 1.0

    def test_a_switch_joins_all(self):
        switch = '<nvlink target="0000:c1:00.0" count="6" tclass="0x068000"/>'
        gpus = "".join(
            f'<pci busid="0000:0{n}:00.0" link_speed="16.0 GT/s PCIe" link_width="16">'
            f'<gpu dev="{n}" sm="90">{switch}{switch}</gpu></pci>'
            for n in range(4)
        )
        found = read_nccl_xml(f'<system><cpu numaid="0">{gpus}</cpu></system>')
        assert set(kinds(found).values()) == {"NV"}
        assert found.path(0, 3).bandwidth == 12 * 20.6e9

    def test_under_one_switch(self):
        text = XML.replace('<nvlink target="0000:18:00.0" count="2" tclass="0x030200"/>', "")
        text = text.replace('<nvlink target="0000:17:00.0" count="2" tclass="0x030200"/>', "")
        assert read_nccl_xml(text).path(0, 1).kind == "PIX"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("<system>", "not XML"),
            ("<graph/>", "NCCL_TOPO_DUMP_FILE"),
            ("<system/>", "no <gpu>"),
            (XML.replace('dev="0"', 'dev="first"'), "first"),
            ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "entities"),
        ],
    )
    def test_what_it_is_not(self, text, said):
        with pytest.raises(Unreadable, match=said):
            read_nccl_xml(text)


def flat(size, bandwidths):
    """Devices with dedicated links of these bandwidths."""
    pairs = itertools.combinations(range(size), 2)
    paths = {
        pair: Path("NV", bandwidth, 1e-6) for pair, bandwidth in zip(pairs, bandwidths, strict=True)
    }
    return Topology(tuple(f"GPU{n}" for n in range(size)), paths)


class TestRings:
    def test_who_shares_a_way_out_shares_its_bandwidth(self):
        # 2 and 3 are under one switch. From both of them to others at once: half of it each.
        both = HU.shared([(2, 4), (3, 6)])
        assert both == [HU.path(2, 4).bandwidth / 2] * 2
        assert HU.shared([(2, 4), (4, 2)]) == [HU.path(2, 4).bandwidth] * 2  # full duplex

    def test_a_good_order_crosses_every_border_once(self):
        best = best_ring(HU, range(8))
        assert best.bandwidth == HU.path(0, 2).bandwidth  # the link between the sockets, alone
        assert best.proved
        poor = ring_of(HU, [0, 2, 1, 3, 4, 6, 5, 7])
        assert poor.bandwidth < best.bandwidth

    def test_without_the_far_socket_it_is_as_fast_as_its_bus(self):
        assert best_ring(HU, range(2, 8)).bandwidth == HU.path(2, 4).bandwidth

    @settings(max_examples=60)
    @given(st.lists(st.integers(1, 6), min_size=15, max_size=15))
    def test_no_order_is_better(self, bandwidths):
        topology = flat(6, [1e9 * b for b in bandwidths])
        every = (ring_of(topology, (0, *rest)) for rest in itertools.permutations(range(1, 6)))
        found = best_ring(topology, range(6))
        assert found.bandwidth == max(ring.bandwidth for ring in every)
        assert found.proved

    @settings(max_examples=60)
    @given(st.lists(st.sampled_from(LEVELS), min_size=10, max_size=10))
    def test_no_order_is_better_in_a_tree(self, levels):
        speeds = {level: 12e9 / (1 + number) for number, level in enumerate(LEVELS)}
        pairs = list(itertools.combinations(range(5), 2))
        paths = {p: Path(k, speeds[k], 1e-6) for p, k in zip(pairs, levels, strict=True)}
        topology = Topology(tuple("abcde"), paths)
        every = (ring_of(topology, (0, *rest)) for rest in itertools.permutations(range(1, 5)))
        assert best_ring(topology, range(5)).bandwidth == max(ring.bandwidth for ring in every)

    def test_seconds_are_those_of_a_ring(self):
        ring = ring_of(flat(4, [2e9] * 6), range(4))
        assert ring.seconds(4e9) == pytest.approx(2 * 3 * (1e-6 + 1e9 / 2e9))


# The box of Hu et al., as their Table 2 tells of 1 and 6 processors with minibatch 512: a sum of
# 178 MB over six takes 0.153 s, so that their program reaches 1.94 of the bus's 12 GB/s.
REACHED = 1.94 / 12


class TestAdvice:
    def test_hu_leaves_out_the_two_on_the_other_socket(self):
        advice = advise(HU.slowed(REACHED), Setting(512 * 1.749e-4, 178e6, 512))
        assert advice.best.left_out == (0, 1)
        assert advice.gain > 1.05

    def test_six_are_about_four_times_as_fast_with_large_minibatches(self):
        advice = advise(HU.slowed(REACHED), Setting(2048 * 1.749e-4, 178e6, 2048))
        (six,) = (choice for choice in advice.choices if len(choice.ring.order) == 6)
        assert six.left_out == (0, 1)
        assert 3.6 < six.speedup < 4.4

    def test_all_are_used_where_links_hardly_matter(self):
        advice = advise(HU, Setting(10.0, 178e6, 512))
        assert advice.best == advice.every
        assert advice.gain == 1

    def test_a_slow_link_is_found(self):
        bandwidths = [
            10e9 if 3 not in pair else 0.1e9 for pair in itertools.combinations(range(4), 2)
        ]
        advice = advise(flat(4, bandwidths), Setting(0.05, 1e8, 32))
        assert advice.best.left_out == (3,)

    def test_one_device(self):
        advice = advise(flat(1, []), Setting(0.1, 1e8, 32))
        assert advice.best.speedup == 1

    @pytest.mark.parametrize("bad", [(0, 1, 1), (1, -1, 1), (1, 1, 0), (float("nan"), 1, 1)])
    def test_nonsense(self, bad):
        with pytest.raises(ValueError, match=r"must|or more"):
            Setting(*bad)

    def test_bandwidth_that_is_none(self):
        with pytest.raises(ValueError, match="bandwidth must be more than 0"):
            Path("PIX", -1.0, 0.0)


@pytest.mark.real
class TestCommand:
    def test_the_shipped_machine(self):
        told = json.loads(command("topology", "hu", "--reached", "0.16", "--json").stdout)
        assert told["advised"]["left_out"] == ["GPU0", "GPU1"]
        assert told["gain"] > 1.05

    def test_explained(self):
        said = command("topology", "hu", "--reached", "0.16", "--explain").stdout
        assert "Leave out GPU0 GPU1" in said
        assert "NCCL" in said
        assert "2 (P - 1)" in said

    def test_measured_pairs_and_sums(self, tmp_path):
        matrix, pairs, sums = (tmp_path / name for name in ("topo.txt", "pairs.txt", "sums.txt"))
        matrix.write_text(NEW)
        pairs.write_text(PAIRS)
        sums.write_text(SUMS)
        words = ("topology", str(matrix), "--pairs", str(pairs), "--sums", str(sums))
        told = json.loads(command(*words, "--json").stdout)
        # 1 GB in 1 s over three is 1.33 GB/s a hop, where the slowest pair has 4
        (three,) = (choice for choice in told["choices"] if len(choice["ring"]) == 3)
        assert three["bandwidth"] == pytest.approx(4e9 / 3, rel=0.02)

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["topology", "nowhere.txt"], "nowhere.txt: No such file or directory; or a shipped"),
            (["topology", "hu", "--reached", "0"], "--reached must be more than 0"),
            (["topology", "hu", "--samples", "0"], "samples must be 1 or more"),
            (["topology", "hu", "--pairs", "nowhere"], "nowhere: No such file"),
            (["topology", conftest.__file__], "is this the output of nvidia-smi"),
        ],
    )
    def test_wrong_use(self, words, says):
        done = command(*words)
        assert done.returncode == 2
        assert says in done.stderr
