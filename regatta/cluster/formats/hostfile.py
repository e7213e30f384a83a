"""Lists of hosts as MPI programs read them: `host slots=8`, `host:8`, or a host a line."""

from __future__ import annotations

import json
import re

from regatta.cluster.formats import Unreadable

_NAME = re.compile(r"^[A-Za-z0-9._-]+$|^\[[0-9A-Fa-f:.]+\]$")


def read_hostfile(text: str) -> dict[str, int]:
    """Slots by host, in the order of the file; a host that comes again has more of them."""
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, count = _split(words[0])
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise Unreadable(
                    f"line {number}: {word!r} is not understood; write: {name} slots=8"
                )
            if key in ("slots", "cpus"):
                count = value
        if not _NAME.match(name):
            raise Unreadable(f"line {number}: {name!r} is not the name of a host")
        if not count.isdigit() or int(count) < 1:
            raise Unreadable(f"line {number}: {count!r} slots; a whole number above 0")
        slots[name] = slots.get(name, 0) + int(count)
    if not slots:
        raise Unreadable("no host in it; write a host a line, as: node1 slots=8")
    return slots


def hostfile_as_toml(text: str) -> str:
    """As a cluster file: a device a slot. Nothing is known of how fast any of it is."""
    slots = read_hostfile(text)
    lines = [
        f"# {sum(slots.values())} slots on {len(slots)} hosts. What a hostfile does not tell is as "
        "everywhere: say how fast devices and links are.",
        "\n[device.slot]",
    ]
    for name, count in slots.items():
        lines += ["\n[[host]]", f"name = {json.dumps(name)}", f'devices = ["{count} slot"]']
    return "\n".join(lines) + "\n"


def _split(word: str) -> tuple[str, str]:
    if word.startswith("["):  # an IPv6 address has colons of its own
        name, _, rest = word.partition("]")
        return name + "]", rest.lstrip(":") or "1"
    name, _, count = word.partition(":")
    return name, count or "1"
