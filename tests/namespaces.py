"""Two hosts as two network namespaces of this machine, joined by a cable that can be counted.

The kernel's netem delays what goes through, or a process where the kernel has none. Nothing in the
namespaces can reach the world outside. `ssh` is a program that runs a command in the namespace
which has that address: a launcher finds it on its PATH, and the ranks are told apart as hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from real import REGATTA

ROOT = Path(__file__).parent.parent
WIRE = Path(__file__).parent / "delayed_wire.py"
# A window that was found stays, however long a rank computes in between; and what is under way on a
# long link has room from the beginning.
FOR_LONG_LINKS = ["net.ipv4.tcp_slow_start_after_idle=0",
                  "net.ipv4.tcp_rmem=4096 2097152 8388608",
                  "net.ipv4.tcp_wmem=4096 2097152 8388608"]  # fmt: skip
_MADE = count()
SSH = """#!/bin/sh
# The last two words are the host and the command; what stands before are options.
while [ $# -gt 2 ]; do shift; done
REGATTA_HOST=$1; export REGATTA_HOST
"""


def missing() -> str:
    """What this machine lacks, in a few words; empty if two hosts can be made."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs iproute2's ip and tc"
    tried = f"regatta-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", tried], capture_output=True, check=False).returncode:
        return "this system makes no network namespaces"
    run("ip", "netns", "del", tried)
    return ""


def run(*words: object) -> str:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=True
    ).stdout


class TwoHosts:
    """Joined directly, or with `seconds` of delay each way, at so many bits a second."""

    def __init__(self, folder: Path, seconds: float = 0.0, bits: float = 0.0) -> None:
        self.folder, self._seconds, self._bits = folder, seconds, bits
        name = f"{os.getpid()}-{next(_MADE)}"  # what was there before may not be quite gone yet
        self._names = [f"regatta-{name}-{end}" for end in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self._devices = [f"r{name}{end}" for end in "ab"]  # of 15 letters at most
        self._wire: subprocess.Popen[str] | None = None

    def __enter__(self) -> TwoHosts:
        for name in self._names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        if self._seconds and not self._has_netem():
            self._join_by_a_wire()
        else:
            self._join_directly()
        for name, device, address in zip(self._names, self._devices, self.addresses, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "netns", "exec", name, "sysctl", "-q", "-w", *FOR_LONG_LINKS)
            if shape := self._shape():
                run("tc", "-n", name, "qdisc", "add", "dev", device, "root", *shape)
        return self

    def __exit__(self, *_: object) -> None:
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _has_netem(self) -> bool:
        """Tried on the loopback of one of the hosts."""
        words = ["tc", "-n", self._names[0], "qdisc", "add", "dev", "lo", "root", "netem", "delay"]
        tried = subprocess.run([*words, "0ms"], capture_output=True, check=False)
        if tried.returncode == 0:
            run("tc", "-n", self._names[0], "qdisc", "del", "dev", "lo", "root")
        return tried.returncode == 0

    def _shape(self) -> list[str]:
        """What the kernel is to do to each end; a wire of our own has the delay in it."""
        rate = ["rate", f"{self._bits:.0f}bit"] if self._bits else []
        if self._seconds and self._wire is None:
            return ["netem", "delay", f"{self._seconds * 1000:g}ms", *rate, "limit", "10000"]
        return ["tbf", *rate, "burst", "64kb", "latency", "1s"] if rate else []

    def _join_directly(self) -> None:
        one, other = self._devices
        run("ip", "link", "add", one, "type", "veth", "peer", "name", other)
        for name, device in zip(self._names, self._devices, strict=True):
            run("ip", "link", "set", device, "netns", name)

    def _join_by_a_wire(self) -> None:
        """A process that hands every packet on when its time has come."""
        ends = [word for pair in zip(self._names, self._devices, strict=True) for word in pair]
        self._wire = subprocess.Popen(
            [sys.executable, str(WIRE), str(self._seconds), *ends],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._wire.stdout is not None
        assert self._wire.stdout.readline() == "ready\n"

    @property
    def crossed(self) -> int:
        """Bytes that have gone through the cable, both ways, headers and all."""
        name, device = self._names[0], self._devices[0]
        told = json.loads(run("ip", "-n", name, "-s", "-j", "link", "show", "dev", device))
        return int(told[0]["stats64"]["rx"]["bytes"] + told[0]["stats64"]["tx"]["bytes"])

    def start(self, host: int, *words: object) -> subprocess.Popen[str]:
        """A command on one of them, 0 or 1; it finds the device of the cable in CABLE."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self._names[host], *map(str, words)],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"CABLE": self._devices[host]},
        )  # fmt: skip

    def ssh(self) -> Path:
        """The folder of a program that runs a command on one of the hosts."""
        program = self.folder / "bin" / "ssh"
        program.parent.mkdir(parents=True, exist_ok=True)
        cases = "".join(
            f'[ "$1" = {address} ] && exec ip netns exec {name} sh -c "$2"\n'
            for address, name in zip(self.addresses, self._names, strict=True)
        )
        program.write_text(SSH + cases + 'echo "no such host: $1" >&2; exit 255\n')
        program.chmod(0o755)
        return program.parent

    def regatta(
        self, slots: Sequence[int], *words: object, timeout: float = 50, restarts: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """`regatta launch hosts` over both, started where the first one is."""
        options = ("--env", "PYTHONPATH", "--restarts", str(restarts))
        where = ",".join(f"{a}:{n}" for a, n in zip(self.addresses, slots, strict=True))
        return subprocess.run(
            [*REGATTA, "launch", "hosts", where, *options, "--", *map(str, words)],
            capture_output=True, text=True, timeout=timeout, check=False,
            env=os.environ | {
                "PATH": f"{self.ssh()}:{os.environ['PATH']}",
                "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
            },
        )  # fmt: skip
