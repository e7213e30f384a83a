"""The time to an accuracy, foretold from a probe of this machine, against the race itself.

    python studies/foretell.py [--out studies/out/foretell] [--seeds 5]

Measures the machine for the recipe `frames`, then races what `make race` does, every lane on two
real workers and simulated on the machine as measured, with the same seeds. Leave the machine alone
meanwhile. Four to eight minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from commands import once, regatta

from regatta.race.foretold import foretold, orders
from regatta.race.outcome import of_race
from regatta.report.forms import markdown_of
from regatta.report.tables import predictions

STRATEGIES = "single all-reduce averaging:period=16 ring parameter-server"
TARGET = 0.5
BAR = 0.15  # of the error, in the median of the strategies


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "foretell")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    here, race = given.out / "here.toml", given.out / "race"
    once(here, "probe", "frames", "--seconds", "2")
    if race.exists() and not (race / "report.html").exists():  # it was broken off
        regatta("race", "frames", "--out", race, "--resume")
    once(
        race, "race", "frames", "--both", "--cluster", here, "--oversubscribe",
        "--strategies", STRATEGIES, "--seeds", str(given.seeds), "--target", str(TARGET),
    )  # fmt: skip
    return judge(race)


def judge(race: Path) -> int:
    """Print what was foretold and what came; 0 if both bars hold."""
    outcome = of_race(race)
    table = predictions(outcome)
    if table is None:
        raise SystemExit(f"{race} was not run in both worlds: delete it and begin anew")
    lanes = foretold(outcome)
    error = median(abs(lane.error) for lane in lanes)
    wrong = [order for order in orders(lanes) if not order.is_foretold]
    print(markdown_of(table))
    print(f"error in the median of {len(lanes)} strategies: {error:.1%} (bar {BAR:.0%})")
    for order in wrong:
        names = order.first.real.lane.spec, order.second.real.lane.spec
        print(f"order not foretold: {names[0]} before {names[1]}")
    return int(not error <= BAR or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
