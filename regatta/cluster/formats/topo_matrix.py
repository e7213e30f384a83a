"""`nvidia-smi topo -m`, of old and new drivers, as it is or pasted somewhere."""

from __future__ import annotations

import re

from regatta.cluster.formats import Unreadable
from regatta.cluster.topology import DIRECT, Path, Topology

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PASTED = re.compile(r"^(?:\s*(?:>|#|\[[^\]]*\]|\d{4}-\d\d-\d\d[T ][\d:.,]+Z?))+\s?")
_DEVICE = re.compile(r"^(GPU|NIC)\d+$|^(mlx|hfi|bnxt|efa|irdma|roce|ib)\w*$")
_GPU = re.compile(r"^GPU(\d+)$")
_CODE = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)$", re.IGNORECASE)
_RENAMED = {"SOC": "SYS", "PSB": "PIX"}

PCI = 12e9  # bytes a second of PCIe 3.0 x16, as NCCL has it
_NVLINK = 20e9  # of one link of a V100 or A100, likewise
_SOCKETS = 6e9  # between two Xeons of about 2015, likewise
_SOURCE = "nvidia-smi's path and NCCL's table of links (topo.h)"
_MICROSECONDS = {  # a hop of NCCL's rings, by what it crosses (tuning.cc: NVLink 3.4, PCI 5.7)
    DIRECT: 3.4, "PIX": 5.7, "PXB": 5.7, "PHB": 5.7, "NODE": 5.7, "SYS": 5.7,
}  # fmt: skip


def read_topo_matrix(
    text: str, pci: float = PCI, nvlink: float = _NVLINK, sockets: float = _SOCKETS
) -> Topology:
    """GPUs and the paths between them. `pci`, `nvlink` (of one link), `sockets`: bytes a second."""
    rows = [_cells(line) for line in text.splitlines()]
    header, start = _header(rows)
    codes = _codes(rows, header, start)
    warnings: list[str] = []
    gpus = sorted((name for name in header if _GPU.match(name)), key=lambda name: int(name[3:]))
    for name in gpus:
        if name not in codes:
            raise Unreadable(f"the row of {name} is missing: the output of nvidia-smi is cut short")
    speeds = dict.fromkeys(("PIX", "PXB", "PHB", "NODE"), pci) | {"SYS": min(sockets, pci)}
    paths = {}
    for b, second in enumerate(gpus):
        for a, first in enumerate(gpus[:b]):
            one, other = codes[first][header.index(second)], codes[second][header.index(first)]
            if one.upper() != other.upper():
                warnings.append(
                    f"{first} and {second}: {one} one way, {other} the other; {one} taken"
                )
            kind, links = _kind(one, f"{first} and {second}", warnings)
            bandwidth = links * nvlink if kind == DIRECT else speeds[kind]
            paths[a, b] = Path(kind, bandwidth, _MICROSECONDS[kind] * 1e-6, _SOURCE)
    return Topology(tuple(gpus), paths, "nvidia-smi topo -m", tuple(warnings))


def _cells(line: str) -> list[str]:
    return _PASTED.sub("", _COLOURS.sub("", line)).replace("```", "").split()


def _header(rows: list[list[str]]) -> tuple[list[str], int]:
    """The devices that stand above the columns, without what follows them."""
    for number, row in enumerate(rows):
        devices: list[str] = []
        for cell in row:
            if not _DEVICE.match(cell):
                break
            devices.append(cell)
        # a row of the table has a device and then codes
        if devices and any(_GPU.match(name) for name in devices) and not _is_row(row):
            return devices, number
    raise Unreadable(
        "no line with the columns GPU0 GPU1 ...: is this the output of nvidia-smi topo -m?"
    )


def _codes(rows: list[list[str]], header: list[str], start: int) -> dict[str, list[str]]:
    """By device, what stands in its row, as far as the columns of devices go."""
    codes = {}
    for number, row in enumerate(rows[start + 1 :], start + 2):
        if row and row[0] == "Legend:":
            break
        if not row or row[0] not in header:
            continue
        cells = row[1 : 1 + len(header)]
        if len(cells) < len(header):
            raise Unreadable(
                f"line {number}: {row[0]} has {len(cells)} of {len(header)} columns; give the "
                "whole output of: nvidia-smi topo -m"
            )
        codes[row[0]] = cells
    return codes


def _is_row(row: list[str]) -> bool:
    return len(row) > 1 and bool(_CODE.match(row[1]))


def _kind(code: str, pair: str, warnings: list[str]) -> tuple[str, int]:
    code = code.upper()
    code = _RENAMED.get(code, code)
    if code.startswith("NV") and code[2:].isdigit():
        return DIRECT, int(code[2:])
    if code in _MICROSECONDS and code != DIRECT:
        return code, 0
    warnings.append(f"{pair}: {code} is not known and taken as SYS, the slowest")
    return "SYS", 0
