"""The XML in which NCCL tells what it found in a host (`NCCL_TOPO_DUMP_FILE`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from regatta.cluster.formats import Unreadable
from regatta.cluster.topology import DIRECT, Path, Topology

_SOURCE = "NCCL's XML and its table of links (topo.h)"
_SWITCH = "0x068000"  # the class of an NVSwitch
_SPEEDS = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}  # GT/s: units of NCCL
_NVLINK = {60: 18e9, 70: 20e9, 80: 20e9, 86: 12e9, 90: 20.6e9, 100: 40.1e9}  # by sm, one link
_SOCKETS = {"GenuineIntel": 10e9, "AuthenticAMD": 16e9}  # between processors of one host
_LATENCY = {DIRECT: 3.4e-6}
_PCI_LATENCY = 5.7e-6
_TOO_LARGE = 10_000_000  # characters; a large host has some ten thousand
_TOO_DEEP = 64


@dataclass(frozen=True)
class _Gpu:
    number: int
    sm: int
    cpu: str
    vendor: str
    bridges: tuple[str, ...]  # bus numbers on the way to the processor, outermost first
    bandwidths: tuple[float, ...]  # of their ways out
    links: dict[str, int]  # NVLinks by target
    bus: str


def read_nccl_xml(text: str) -> Topology:
    """GPUs by their `dev` numbers."""
    if len(text) > _TOO_LARGE or "<!ENTITY" in text:
        raise Unreadable("too large, or with entities: NCCL writes neither")
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Unreadable(f"not XML: {error}") from None
    if system.tag != "system":
        raise Unreadable(
            f"<{system.tag}> where NCCL writes <system>: make it with NCCL_TOPO_DUMP_FILE"
        )
    gpus: list[_Gpu] = []
    for cpu in system.iter("cpu"):
        where = cpu.get("host_hash", "") + "/" + cpu.get("numaid", "0")
        for device in cpu.findall("pci"):
            _walk(device, where, cpu.get("vendor", ""), (), (), gpus)
    if not gpus:
        raise Unreadable("no <gpu> in it")
    gpus.sort(key=lambda gpu: gpu.number)
    paths = {(a, b): _path(gpus[a], gpus[b]) for b in range(len(gpus)) for a in range(b)}
    return Topology(tuple(f"GPU{gpu.number}" for gpu in gpus), paths, "NCCL's XML")


def _walk(
    pci: ElementTree.Element,
    cpu: str,
    vendor: str,
    bridges: tuple[str, ...],
    bandwidths: tuple[float, ...],
    found: list[_Gpu],
) -> None:
    if len(bridges) > _TOO_DEEP:
        raise Unreadable("devices nested deeper than any host has them")
    here = (*bandwidths, _bandwidth(pci))
    for gpu in pci.findall("gpu"):
        links: dict[str, int] = {}
        for link in gpu.findall("nvlink"):
            switch = link.get("tclass", "").lower() == _SWITCH
            target = "switch" if switch else link.get("target", "").lower()
            links[target] = links.get(target, 0) + _whole(link, "count", 1)
        number = _whole(gpu, "dev", len(found))
        sm = _whole(gpu, "sm", 0)
        bus = pci.get("busid", "").lower()
        found.append(_Gpu(number, sm, cpu, vendor, bridges, here, links, bus))
    for inner in pci.findall("pci"):
        _walk(inner, cpu, vendor, (*bridges, pci.get("busid", "")), here, found)


def _bandwidth(pci: ElementTree.Element) -> float:
    """Virtual machines leave width and speed open; NCCL then takes 16 lanes of 16 GT/s."""
    width = _whole(pci, "link_width", 0) or 16
    speed = re.match(r"\s*([\d.]+)", pci.get("link_speed", ""))
    rate = float(speed[1]) if speed else 16.0
    nearest = min(_SPEEDS, key=lambda known: abs(known - rate))
    return width * _SPEEDS[nearest] / 80 * 1e9


def _whole(element: ElementTree.Element, name: str, otherwise: int) -> int:
    text = element.get(name, "")
    if not text:
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise Unreadable(f'{name}="{text}" of <{element.tag}> is not a number') from None


def _path(a: _Gpu, b: _Gpu) -> Path:
    links = a.links.get(b.bus, 0) or b.links.get(a.bus, 0)
    if not links:
        links = min(a.links.get("switch", 0), b.links.get("switch", 0))
    if links:
        per_link = min(_of_link(a), _of_link(b))
        return Path(DIRECT, links * per_link, _LATENCY[DIRECT], _SOURCE)
    if a.cpu != b.cpu:
        between = min(_SOCKETS.get(gpu.vendor, 6e9) for gpu in (a, b))
        return Path("SYS", min(between, *a.bandwidths, *b.bandwidths), _PCI_LATENCY, _SOURCE)
    common = sum(one == other for one, other in zip(a.bridges, b.bridges, strict=False))
    used = (*a.bandwidths[common:], *b.bandwidths[common:])
    if common == 0:
        kind = "PHB"
    else:
        farther = max(len(a.bridges), len(b.bridges)) - common
        kind = "PIX" if farther == 0 else "PXB"
    return Path(kind, min(used), _PCI_LATENCY, _SOURCE)


def _of_link(gpu: _Gpu) -> float:
    """Bytes a second of one NVLink: of the newest kind that is not newer than the device."""
    return _NVLINK[max((sm for sm in _NVLINK if sm <= gpu.sm), default=60)]
