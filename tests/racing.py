"""Hand-made races: event files whose outcome is known beforehand."""

from __future__ import annotations

from pathlib import Path

from regatta.events import Ended, Evaluated, Progress, RankEnded, Spans, Started, Usage, to_line
from regatta.race.entries import Lane, Race, declare, home_of

TARGET = 0.9
Curve = list[tuple[float, float]]  # seconds of training, accuracy


def events_of(
    curve: Curve,
    lane: Lane,
    seed: int = 0,
    last: int = 1,
    price: float | None = None,
    seconds: float | None = None,
    ended: bool = True,
    target: float | None = TARGET,
):
    """A run of 100 samples a second and worker; every evaluation takes half a second."""
    end = curve[-1][0] if seconds is None else seconds
    pause = 0.5 * len(curve)
    yield Started(
        rank=0, time=0.0, world=lane.world, strategy=lane.spec.partition(":")[0], spec=lane.spec,
        workers=lane.workers, ranks=lane.workers, minibatch=lane.minibatch, seed=seed,
        metric="accuracy", higher_is_better=True, target=target, vector_bytes=400, last=last,
        lr=0.1, price_per_hour=price, train_samples=1000, eval_samples=50,
    )  # fmt: skip
    for rank in range(lane.workers):
        yield Spans(rank=rank, time=1.0, kinds="cws", starts=[0.0, 0.5, 0.75],
                    ends=[0.5, 0.75, 0.8])  # fmt: skip
        yield Usage(rank=rank, time=0.0, interval=0.1, cpu=[1.0, 0.5], memory=10_000_000)
    for number, (training, accuracy) in enumerate(curve):
        samples = int(100 * lane.workers * training)
        yield Progress(rank=0, time=training, turns=1, samples=int(100 * training),
                       loss=1.0 - accuracy, computing=training, waiting=0.0, messages=1,
                       bytes=400)  # fmt: skip
        yield Evaluated(rank=0, time=training + 0.5 * number, training=training, samples=samples,
                        epoch=samples / 1000, seconds=0.5,
                        results={"accuracy": accuracy, "loss": 1.0 - accuracy})  # fmt: skip
    if not ended:
        return
    for rank in range(lane.workers):
        yield RankEnded(rank=rank, time=end + pause, role="worker", turns=10, steps=10,
                        samples=int(100 * end), computing=0.75 * end, waiting=0.25 * end,
                        messages=10, bytes=4000,
                        staleness={1: 9, 2: 1} if rank else {})  # fmt: skip
    reached = any(accuracy >= TARGET for _, accuracy in curve)
    yield Ended(rank=0, time=end + pause, training=end, reason="target" if reached else "budget",
                samples=int(100 * lane.workers * end), results={})  # fmt: skip


def straight(arrives: float | None, until: float = 100.0) -> Curve:
    """Better and better in ten evaluations: to the target then, or never quite there."""
    end = until if arrives is None else arrives
    best = TARGET - 0.01 if arrives is None else TARGET
    return [(end * n / 10, best * n / 10) for n in range(1, 11)]


def write_events(home: Path, events) -> Path:
    home.mkdir(parents=True)
    path = home / "events.jsonl"
    path.write_text("".join(to_line(event) + "\n" for event in events))
    return path


def make_race(
    folder: Path, curves: dict[Lane, dict[int, Curve]], last: int = 1, price: float | None = None
) -> Race:
    seeds = tuple(sorted({seed for by_seed in curves.values() for seed in by_seed}))
    race = Race("teacher", tuple(curves), seeds, TARGET, last)
    folder.mkdir(parents=True, exist_ok=True)
    declare(race, folder, "regatta race teacher")
    for lane, by_seed in curves.items():
        for seed, curve in by_seed.items():
            write_events(home_of(folder, lane, seed), events_of(curve, lane, seed, last, price))
    return race
