"""How a host's devices are joined, by whichever tool has printed it."""

from __future__ import annotations

from regatta.cluster.formats.nccl_xml import read_nccl_xml
from regatta.cluster.formats.topo_matrix import read_topo_matrix
from regatta.cluster.topology import Topology


def read_topology(text: str) -> Topology:
    """Of `nvidia-smi topo -m`, or NCCL's XML."""
    return read_nccl_xml(text) if text.lstrip().startswith("<") else read_topo_matrix(text)
