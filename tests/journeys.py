"""One of two ranks: how long a message and its answer, and a sum, take; `journeys.py RANK HOST`."""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from regatta.worlds.processes import ProcessComm, run_blocking
from regatta.worlds.rendezvous import meet
from regatta.worlds.started import INTERFACE, Place

ROUNDS = 4
ONES = torch.ones(1000)  # few enough for TCP to send at once


async def quickest(comm: ProcessComm) -> tuple[float, float]:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        if comm.rank == 0:
            await comm.send(1, ONES)
        await comm.recv(1 - comm.rank)
        if comm.rank == 1:
            await comm.send(0, ONES)
        then = time.perf_counter()
        await comm.all_reduce(ONES)
        rounds.append((then - began, time.perf_counter() - then))
    return min(message for message, _ in rounds), min(a_sum for _, a_sum in rounds)


if __name__ == "__main__":
    rank, address = int(sys.argv[1]), sys.argv[2]
    os.environ[INTERFACE] = os.environ["CABLE"]
    meet(Place("journeys.py", rank, 2, 0, one_host=False, address=address, port=29511))
    comm = ProcessComm({}, hosts=[0, 1])
    answer = run_blocking(quickest(comm))
    comm.close()
    if rank == 0:
        print(json.dumps(answer))
