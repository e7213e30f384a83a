"""Hu et al. and Su & Chen again, on synthetic speech: races, and the tables made of them.

    python studies/frames.py [--out studies/out] [--only learning|averaging] [--full]

Every piece is a `regatta race`, printed before it starts; a piece that is there is not run again.
Races on processes run alone, because their times count; simulated ones run two at a time. About
half an hour on two cores. `--full` takes 7.2 hours of speech, 5 seeds and 10 epochs, and days.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from regatta.race.outcome import Outcome, Standing, of_race
from regatta.statistics import mean_interval

HERE = Path(__file__).parent
CLUSTERS = HERE / "clusters"
PERIODS = (1, 10, 100)
SMALL = ["--seeds", "3", "--set", "stop.epochs=10", "--set", "evaluation.every=1"]
FULL = [
    "--seeds", "5", "--set", "stop.epochs=10", "--set", "evaluation.every=1",
    "--set", "minutes=432", "--set", "dev_minutes=40",
]  # fmt: skip
AVERAGING_EPOCHS = {False: "5", True: "10"}
MULTILINGUAL = [
    "train", "frames", "-s", "all-reduce", "-n", "2", "--set", "languages=en,fr,it",
    "--set", "optimiser.lr=0.2", "--set", "stop.epochs=1",
]  # fmt: skip


def strategy_of_hu(lr: float, first: int, start: Path) -> list[str]:
    """Small minibatches first, a rate that is halved, a multilingual start."""
    return [
        "--set", f"early_minibatches={first}", "--set", "schedule=halving",
        "--set", f"optimiser.lr={lr}", "--from", str(start),
    ]  # fmt: skip


def real_pieces(out: Path) -> dict[str, list[str]]:
    """By name, the arguments of races on processes."""
    return {
        "activations": [
            "--strategies", "single", "--set", "activation=relu,tanh,softplus,sigmoid",
        ],
        "minibatches": [
            "--strategies", "all-reduce", "--workers", "1,2", "--minibatch", "256,1024,4096",
        ],
        "strategy-2": [
            "--strategies", "all-reduce", "--workers", "2", "--minibatch", "512,1024,2048,4096",
            *strategy_of_hu(0.2, 256, out / "multilingual"),
        ],
        "parts-2": [
            "--strategies", "all-reduce", "--workers", "2", "--minibatch", "512",
            "--set", "schedule=fixed,halving", "--set", "early_minibatches=512;256",
            "--set", "optimiser.lr=0.2",
        ],
    }  # fmt: skip


def virtual_pieces(out: Path, full: bool) -> dict[str, list[str]]:
    pieces = {
        "baseline-6": [
            "--strategies", "single", "--minibatch", "256", "--simulate", "--cluster", "hu",
        ],
    }  # fmt: skip
    small = str(CLUSTERS / "hu-small.toml")
    for name, cluster in (("strategy-6", "hu"), ("scaled-6", small)):
        pieces[name] = [
            "--strategies", "all-reduce", "--workers", "6", "--minibatch", "128,256,512,1024",
            "--simulate", "--cluster", cluster,
            *strategy_of_hu(0.2, 64, out / "multilingual"),
        ]  # fmt: skip
    specs = " ".join(["single", *(f"averaging:period={period}" for period in PERIODS)])
    for init in ("xavier", "rbm"):
        pieces[f"averaging-{init}"] = [
            "--strategies", specs, "--workers", "8,16", "--minibatch", "128",
            "--set", "gradient=plain,natural", "--set", f"init={init}",
            "--set", "activation=sigmoid", "--set", "optimiser.lr=3", "--tune", "2",
            "--set", f"stop.epochs={AVERAGING_EPOCHS[full]}",
            "--simulate", "--cluster", str(CLUSTERS / "su-small.toml"),
        ]  # fmt: skip
    return pieces


def race(name: str, piece: Sequence[str], out: Path, common: Sequence[str]) -> None:
    folder = out / name
    if (folder / "report.html").exists():
        return
    began = time.time()
    arguments = ["race", "frames", *common, *piece, "--out", str(folder)]
    if (folder / "race.json").exists():
        arguments = ["race", "frames", "--out", str(folder), "--resume"]
    regatta(arguments, out / f"{name}.log")
    print(f"  {name} took {time.time() - began:.0f} s", flush=True)


def regatta(arguments: Sequence[str], log: Path) -> None:
    command = [str(Path(sys.executable).with_name("regatta")), *arguments]
    print(shlex.join(["regatta", *arguments]), flush=True)
    with log.open("a") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)


def run_all(out: Path, full: bool, only: str) -> None:
    common = FULL if full else SMALL
    learning, averaging = only in ("", "learning"), only in ("", "averaging")
    if learning and not (out / "multilingual" / "checkpoints").exists():
        size = FULL[6:] if full else []
        regatta(
            [*MULTILINGUAL, *size, "--out", str(out / "multilingual")], out / "multilingual.log"
        )
    for name, piece in real_pieces(out).items():
        if learning:
            race(name, piece, out, common)
    chosen = {
        name: piece
        for name, piece in virtual_pieces(out, full).items()
        if (averaging if name.startswith("averaging") else learning)
    }
    with ThreadPoolExecutor(2) as pool:  # a simulation has one thread
        for done in [pool.submit(race, name, piece, out, common) for name, piece in chosen.items()]:
            done.result()


# -- tables ---------------------------------------------------------------------------------


def accuracies(standing: Standing) -> dict[int, float]:
    """Of the final answers, by seed, in percent."""
    return {f.seed: 100 * (f.summary.final or 0.0) for f in standing.finishes}


def epoch_seconds(standing: Standing) -> float:
    return fmean(f.summary.epoch_seconds or 0.0 for f in standing.finishes)


def with_interval(values: Sequence[float], digits: int = 1) -> str:
    interval = mean_interval(list(values), 0.9)
    width = "" if interval is None else f" ± {(interval.high - interval.low) / 2:.{digits}f}"
    return f"{fmean(values):.{digits}f}{width}"


def apart(mine: Standing, other: Standing) -> str:
    """By how much, seed by seed: both have the same first weights and data order."""
    own, others = accuracies(mine), accuracies(other)
    text = with_interval([own[seed] - others[seed] for seed in own if seed in others])
    return text if text.startswith("-") else f"+{text}"


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def in_order(outcome: Outcome) -> list[Standing]:
    """As they were declared."""
    by_lane = {standing.lane: standing for standing in outcome.standings}
    return [by_lane[lane] for lane in outcome.lanes if lane in by_lane]


def grid_rows(outcome: Outcome, baseline: Standing) -> list[list[str]]:
    return [
        [
            ", ".join(standing.lane.values.values()) or standing.lane.spec,
            str(standing.lane.workers),
            str(standing.lane.minibatch),
            f"{epoch_seconds(standing):.2f}",
            f"{epoch_seconds(baseline) / epoch_seconds(standing):.2f}",
            with_interval(list(accuracies(standing).values())),
            apart(standing, baseline) if standing is not baseline else "",
        ]
        for standing in in_order(outcome)
    ]


def learning_tables(out: Path) -> None:
    head = [
        "", "workers", "minibatch", "s/epoch", "speedup", "accuracy, %", "against the baseline",
    ]  # fmt: skip
    activations = of_race(out / "activations")
    relu = in_order(activations)[0]
    print_table("Activation (Table 1)", head, grid_rows(activations, relu))
    minibatches = of_race(out / "minibatches")
    baseline = in_order(minibatches)[0]
    print_table("Minibatch and workers (Table 1)", head, grid_rows(minibatches, baseline))
    print_table(
        "The learning strategy on 2 processes (Table 2)",
        head,
        [
            *grid_rows(minibatches, baseline)[:1],
            *grid_rows(of_race(out / "parts-2"), baseline),
            *grid_rows(of_race(out / "strategy-2"), baseline),
        ],
    )
    simulated = of_race(out / "baseline-6")
    alone = in_order(simulated)[0]
    print_table(
        "The learning strategy on 6 virtual workers (Table 2)",
        head,
        [*grid_rows(simulated, alone), *grid_rows(of_race(out / "strategy-6"), alone)],
    )
    print_table(
        "The same where a sum takes as large a part as in the paper",
        head,
        [*grid_rows(simulated, alone), *grid_rows(of_race(out / "scaled-6"), alone)],
    )


def averaging_tables(out: Path) -> None:
    for init in ("xavier", "rbm"):
        standings = in_order(of_race(out / f"averaging-{init}"))
        rows = []
        for gradient in ("plain", "natural"):
            of_kind = [s for s in standings if s.lane.values["gradient"] == gradient]
            alone = next(s for s in of_kind if s.lane.is_single)
            rows += [
                [
                    gradient,
                    str(standing.lane.workers),
                    standing.lane.spec.partition("period=")[2],
                    f"{standing.lr:g}",
                    f"{epoch_seconds(alone) / epoch_seconds(standing):.1f}",
                    with_interval(list(accuracies(standing).values())),
                    apart(standing, alone) if standing is not alone else "",
                ]
                for standing in of_kind
            ]
        head = [
            "gradient", "workers", "period", "rate", "speedup", "accuracy, %", "against one worker",
        ]  # fmt: skip
        print_table(f"Averaging, first weights: {init}", head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--only", choices=["learning", "averaging"], default="")
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    run_all(given.out.resolve(), given.full, given.only)
    print(f"all pieces: {(time.time() - began) / 60:.0f} minutes")
    if given.only != "averaging":
        learning_tables(given.out)
    if given.only != "learning":
        averaging_tables(given.out)


if __name__ == "__main__":
    main()
