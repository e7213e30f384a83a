"""What the papers measured, foretold: clusters fitted to few of their rows, the others predicted.

    python studies/papers.py [--only NAME ...]

    campos     Campos et al., Tables 1 and 2: fitted to one and two nodes of Table 2
    hu         Hu et al., Table 2: fitted to one worker, and to six with the smallest minibatch;
               and what all eight of their processors would do
    ring       iFlytek's speedup of the ring, by its formula and by the clock
    averaging  Su & Chen's speedups: fitted to 16 workers

Nothing is learnt: vectors have the papers' sizes and no numbers. It takes some minutes of one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from regatta.cluster import Cluster
from regatta.cluster.files import load_cluster
from regatta.config import Evaluation, Recording, Run, Stop, component
from regatta.runs import simulate
from regatta.tasks.vectors import Vectors

# As many weights as the papers' networks have; samples are small, for nobody looks at them.
RESNET_50 = (4, 5_120_000)
HU = (4, 8_900_000)
SWITCHBOARD = (
    4,
    8_000_000,
)  # 40 million, as was usual; the abstract does not say

APART = "parameter-server:mode=mixed,group=host,servers={}"
SHARED = APART + ",placement=colocated"


def speed(
    spec: str, workers: int, cluster: Cluster, sizes: Sequence[int], minibatch: int, turns: int = 40
) -> float:
    """Samples a second of all workers, each of which takes so many turns."""
    run = Run(
        task=Vectors(sizes=tuple(sizes), train=workers * minibatch * turns),
        strategy=component("strategy", spec),
        workers=workers,
        minibatch=minibatch,
        cluster=cluster,
        stop=Stop(epochs=1),
        evaluation=Evaluation(every=1e9),
        recording=Recording(usage=0, spans=0),
    )
    ended, _ = simulate(run, timing_only=True)
    return sum(rank.samples for rank in ended) / max(rank.time for rank in ended)


def fitted(of: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function comes to what is wanted, by halving."""
    for _ in range(24):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if of(middle) < wanted else (low, middle)
    return (low * high) ** 0.5


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def error(predicted: float, published: float) -> str:
    return f"{predicted / published - 1:+.1%}"


def of_campos(base: Cluster) -> Cluster:
    def one(seconds: float) -> float:
        return -speed("all-reduce", 4, replace(base, sample_seconds=seconds), RESNET_50, 32)

    timed = replace(base, sample_seconds=fitted(one, -124.18, 0.02, 0.05))

    def two(bandwidth: float) -> float:
        return speed(SHARED.format(1), 8, replace(timed, bandwidth=bandwidth), RESNET_50, 32)

    return replace(timed, bandwidth=fitted(two, 195.60, 5e7, 5e9))


CAMPOS = [
    ("Table 2: 1 node", "all-reduce", 4, 124.18),
    ("2 nodes, 1 server", SHARED.format(1), 8, 195.60),
    ("4 nodes, 3 servers", SHARED.format(3), 16, 383.09),
    ("8 nodes, 7 servers", SHARED.format(7), 32, 809.10),
    ("Table 1: 4 nodes and 3 of servers", APART.format(3), 16, 396.62),
    ("4 nodes, 3 servers", SHARED.format(3), 16, 374.73),
    ("4 nodes, 1 server", SHARED.format(1), 16, 292.22),
]


def campos() -> None:
    """One node tells the time of an image, two the bandwidth of a card; the rest is foretold."""
    ways = {
        "one message after the other": {"sharing": "turns"},
        "shared evenly": {},  # as the shipped cluster has it
        "shared evenly, one way at a time": {"duplex": False},
    }
    columns = []
    for values in ways.values():
        cluster = of_campos(replace(load_cluster("campos"), **values))
        found = [speed(spec, n, cluster, RESNET_50, 32) for _, spec, n, _ in CAMPOS]
        columns.append((cluster.bandwidth, found))
    head = ["configuration", "published, images/s"]
    head += [f"{way}, {band / 1e9:.2f} GB/s" for way, (band, _) in zip(ways, columns, strict=True)]
    table(
        head,
        [
            [name, f"{published:.1f}"]
            + [f"{found[n]:.1f}, {error(found[n], published)}" for _, found in columns]
            for n, (name, _, _, published) in enumerate(CAMPOS)
        ],
    )


FRAMES = 1063.4 * 360_000  # hours of speech, and frames an hour
HU_TABLE = [(1, 256, 18.6), (6, 512, 8.4), (6, 1024, 6.1), (6, 2048, 4.3), (6, 4096, 3.8)]


def epoch(cluster: Cluster, workers: int, minibatch: int) -> float:
    """Hours."""
    spec = "all-reduce" if workers > 1 else "single"
    return FRAMES / speed(spec, workers, cluster, HU, minibatch, turns=100) / 3600


def hu() -> None:
    base = Cluster(per_host=6, sample_seconds=18.6 * 3600 / FRAMES)

    def six(bandwidth: float) -> float:
        return -epoch(replace(base, local_bandwidth=bandwidth), 6, 512)

    cluster = replace(base, local_bandwidth=fitted(six, -8.4, 1e8, 1e11))
    table(
        ["workers", "minibatch", "published, h an epoch", "foretold", "error"],
        [
            [n, m, published, f"{(told := epoch(cluster, n, m)):.2f}", error(told, published)]
            for n, m, published in HU_TABLE
        ],
    )
    box = load_cluster("hu-8")  # the same two figures, and its two sockets
    alone = speed("single", 1, box, HU, 2048, turns=100)
    table(
        ["minibatch", "6 workers, speedup", "8 workers, speedup", "8 over 6"],
        [
            [m, f"{six / alone:.2f}", f"{eight / alone:.2f}", f"{eight / six:.2f}"]
            for m in (512, 1024, 2048)
            for six, eight in [[speed("all-reduce", n, box, HU, m, turns=100) for n in (6, 8)]]
        ],
    )


def ring() -> None:
    rows = []
    for nodes in (1, 2, 4, 6, 8, 10, 12, 16):
        formula, found = of_ring(nodes)
        rows.append([nodes, f"{formula:.2f}", f"{found:.2f}", error(found, formula)])
    table(["nodes", "by the formula", "by the clock", "difference"], rows)


def of_ring(nodes: int) -> tuple[float, float]:
    """Speedup by formula and clock. One minibatch a second; the model takes a tenth to send, a
    fortieth to merge."""
    nbytes, calculate, transmit, merge = 1_000_000, 1.0, 0.1, 0.025
    cluster = Cluster(
        sample_seconds=calculate, latency=0.0,
        bandwidth=nbytes / transmit, merge_bandwidth=nbytes / merge,
    )  # fmt: skip
    sizes = (1, nbytes // 8)  # 4 bytes a weight, weights and biases
    most = (calculate + merge) / (transmit + merge)
    alone = 1 / (calculate + merge)
    # Many turns: the ring starts one node after the other.
    return min(nodes, most), speed("ring", nodes, cluster, sizes, 1, turns=1000) / alone


def averaging() -> None:
    """Means of models every 10 minibatches; the network's bandwidth is fitted to 16 workers."""
    rows = []
    for jitter in (0.0, 0.1, 0.3):
        base = Cluster(sample_seconds=1e-4, latency=20e-6, jitter=jitter)
        one = speed("single", 1, base, SWITCHBOARD, 512, turns=200)

        def speedup(
            workers: int, bandwidth: float, base: Cluster = base, one: float = one
        ) -> float:
            cluster = replace(base, bandwidth=bandwidth)
            return speed("averaging:period=10", workers, cluster, SWITCHBOARD, 512, 200) / one

        bandwidth = fitted(partial(speedup, 16), 9.3, 1e7, 1e11)
        mean = replace(base, bandwidth=bandwidth).all_reduce(4 * 40_000_000, 16) / (512e-4)
        found = [speedup(workers, bandwidth) for workers in (16, 32)]
        rows.append([
            f"{jitter:g}", f"{mean:.2f}", f"{found[0]:.1f}", f"{found[1]:.1f}",
            error(found[1], 17.0),
        ])  # fmt: skip
    table(
        ["jitter", "a mean of 16, in minibatches (fitted)", "16 workers (9.3)", "32 workers (17)",
         "error"],
        rows,
    )  # fmt: skip


PIECES = {"campos": campos, "hu": hu, "ring": ring, "averaging": averaging}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES))
    for name in parser.parse_args(arguments).only:
        print(f"## {name}\n")
        PIECES[name]()


if __name__ == "__main__":
    main()
