"""Synchronous data parallelism: every worker steps with the mean of all gradients."""

from dataclasses import dataclass

from regatta.comm import Comm
from regatta.compress import NONE, code
from regatta.compress.reduce import reduced_exchange, reducer
from regatta.learn.layout import Layout
from regatta.learn.replica import Replica
from regatta.strategies.base import Exchange, Strategy
from regatta.strategies.fate import IN_STEP


@dataclass(frozen=True)
class AllReduce(Strategy):
    """Synchronous: all workers step together with the mean of their gradients."""

    name = "all-reduce"
    fates = IN_STEP
    source = "Hu et al., section 2.1"
    rests_every = 1
    modes = ("", *(f"compress={code}" for code in ("fp16", "int8", "one-bit", "top-k/0.3")),
             "compress=power-sgd/1", "compress=one-bit,feedback=no")  # fmt: skip

    compress: str = NONE  # fp16, int8, one-bit, top-k/SHARE or power-sgd/RANK
    feedback: bool = True  # add what a code lost to what is sent next

    def __post_init__(self) -> None:
        code(self.compress)

    async def worker(self, comm: Comm, replica: Replica) -> None:
        all_reduce = reducer(code(self.compress), comm, replica, self.feedback)
        coded = self.compress != NONE
        async for total in replica.reduced_by(all_reduce, in_buckets=not coded, written=coded):
            replica.step(total, of=int(total[-1]))  # divided by who contributed

    def check_run(self, minibatch: int, bucket_bytes: int) -> None:
        if bucket_bytes > 0 and self.compress != NONE:
            raise ValueError("all-reduce: compress codes whole gradients: use bucket_bytes=0")

    def exchange(self, workers: int, turns: int, vector: Layout) -> Exchange:
        rounds = turns + 1  # in the last one nobody has anything to add
        messages, nbytes = reduced_exchange(code(self.compress), vector, workers)
        return Exchange(rounds * messages, rounds * nbytes)
