"""Synchronous training by two real workers against plain DistributedDataParallel on gloo."""

from __future__ import annotations

from regatta.benchmarks import Result
from regatta.benchmarks.duel import duel
from regatta.benchmarks.peers import Ddp
from regatta.benchmarks.world import DNN, LARGE, LSTM
from regatta.learn.overlap import BUCKET_BYTES

_BARS = ((DNN, 1.20), (LARGE, 1.10), (LSTM, 1.02))


def all_reduce(pairs: int) -> Result:
    cases = [duel("all-reduce", net, Ddp, pairs).case(net.name, bar) for net, bar in _BARS]
    # Why sums are not overlapped with backward here: see learn/overlap.py.
    in_buckets = duel("all-reduce", LARGE, Ddp, pairs, bucket_bytes=BUCKET_BYTES)
    cases.append(in_buckets.case(f"{LARGE.name}, in buckets", None))
    return Result("all-reduce", "two real workers / DistributedDataParallel on gloo", cases)
