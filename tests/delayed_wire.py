"""A cable with a delay between two network namespaces: `delayed_wire.py SECONDS NS DEV NS DEV`.

What the kernel's netem does, by a process, for kernels without it: two tun devices, and every
packet that comes out of one goes into the other when its time has come. Packets keep their order.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MOST_BYTES = 65_536  # of a packet


def end(namespace: str, device: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", device, "netns", namespace], check=True)
    subprocess.run(["ip", "-n", namespace, "link", "set", device, "txqueuelen", "2000"], check=True)
    return file


def carry(seconds: float, one: int, other: int) -> None:
    across = {one: other, other: one}
    under_way: deque[tuple[float, int, bytes]] = deque()
    poll = select.poll()
    for file in across:
        poll.register(file, select.POLLIN)
    while True:
        wait = None
        if under_way:
            wait = max(0.0, under_way[0][0] - time.monotonic()) * 1000
        for file, _ in poll.poll(wait):
            under_way.extend(taken(file, across[file], seconds))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, to, packet = under_way.popleft()
            try:
                os.write(to, packet)
            except (BlockingIOError, OSError):
                continue  # lost, as on any wire: the device is down or full


def taken(file: int, to: int, seconds: float) -> list[tuple[float, int, bytes]]:
    packets = []
    due = time.monotonic() + seconds
    while len(packets) < 64:
        try:
            packets.append((due, to, os.read(file, MOST_BYTES)))
        except (BlockingIOError, OSError):
            break
    return packets


if __name__ == "__main__":
    delay, *ends = sys.argv[1:]
    files = [end(*ends[:2]), end(*ends[2:])]
    print("ready", flush=True)
    carry(float(delay), *files)
