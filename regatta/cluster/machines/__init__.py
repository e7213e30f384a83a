"""Machines that come with Regatta, each value with its source."""

from __future__ import annotations

from importlib.resources import files

_TOPOLOGIES = {"hu": "hu-topology.txt"}  # Hu et al., Fig. 4: four K80 cards, eight processors


def topologies() -> dict[str, str]:
    """Paths between devices as `nvidia-smi topo -m` prints them, by machine."""
    return {name: (files(__package__) / file).read_text() for name, file in _TOPOLOGIES.items()}


def described() -> dict[str, str]:
    """Cluster files, by machine."""
    found = {
        file.name.removesuffix(".toml"): file
        for file in files(__package__).iterdir()
        if file.name.endswith(".toml")
    }
    return {name: found[name].read_text() for name in sorted(found)}
