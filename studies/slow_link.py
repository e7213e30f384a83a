"""What a slow link between two hosts costs each strategy, measured and foretold.

    sudo .venv/bin/python studies/slow_link.py [--minibatch 40000] [--out studies/out/slow-link]

Two network namespaces are the hosts, a worker on each (and a server beside the second). Every
strategy trains across a cable of their own and across one with 50 ms each way and 100 Mbit/s. The
machine is probed, and the same runs are simulated on it with these links. Runs that are there are
not made again. Needs root, iproute2 and a quiet machine; about four minutes on two cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT)]

from namespaces import TwoHosts, missing  # noqa: E402

from regatta.events import Progress, read  # noqa: E402

SECONDS, BITS = 0.05, 100e6  # each way
STRATEGIES = ["all-reduce", "parameter-server:mode=async", "averaging:period=16", "ring"]
SIZES = "256,256,128"  # 98,688 weights: 395 KB, 32 ms of the link
SETTLED = 16  # turns, after which time is taken
# The worker beside the server is as far from it as one on a host of its own with a server's device.
HOSTS = """
placement = ["one/0", "other/0"]
server_placement = ["other/1"]
[device.core]
curve = {curve}
[link.cable]
bandwidth = {bandwidth}
latency = {latency}
[[host]]
name = "one"
devices = ["core"]
card = "cable"
[[host]]
name = "other"
devices = ["2 core"]
card = "cable"
"""
OF_TWO_HOSTS = ("per_host", "devices", "curve", "crowded", "sum_latency", "sum_bandwidth")


@dataclass(frozen=True)
class Link:
    name: str
    seconds: float  # as the virtual clock takes it
    bits: float


# Between namespaces of one machine: so little that it does not matter beside a gradient.
LINKS = [Link("cable", 50e-6, 10e9), Link("slow", SECONDS, BITS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minibatch", type=int, default=40_000)
    parser.add_argument("--turns", type=int, default=48, help="of a worker")
    parser.add_argument("--measure", action="store_true", help="only what needs a quiet machine")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "slow-link")
    given = parser.parse_args()
    if lacking := missing():
        print(f"slow_link.py: {lacking}", file=sys.stderr)
        return 2
    study = Study(given.out / str(given.minibatch), given.minibatch, given.turns)
    study.folder.mkdir(parents=True, exist_ok=True)
    for link in LINKS:
        study.train_across(link)
    study.probe()
    if given.measure:
        return 0
    for link in LINKS:
        study.simulate(link)
    print(study.table())
    return 0


@dataclass(frozen=True)
class Study:
    folder: Path
    minibatch: int
    turns: int

    @property
    def settings(self) -> list[str]:
        settings = [f"task.sizes={SIZES}", f"minibatch={self.minibatch}",
                    f"task.train={4 * self.minibatch}", f"stop.epochs={self.turns / 2}",
                    "evaluation.every=1000"]  # fmt: skip
        return [word for setting in settings for word in ("--set", setting)]

    def words(self, spec: str, world: str, link: Link) -> list[str]:
        run = self.run(spec, world, link)
        return ["vectors", "-s", spec, "-n", "2", "-o", str(run), *self.settings]

    def run(self, spec: str, world: str, link: Link) -> Path:
        return self.folder / world / f"{spec.partition(':')[0]}-{link.name}"

    def train_across(self, link: Link) -> None:
        """The second host has the server as well."""
        left = [spec for spec in STRATEGIES if not self.run(spec, "real", link).exists()]
        if not left:
            return
        seconds, bits = (link.seconds, link.bits) if link.name == "slow" else (0.0, 0.0)
        with TwoHosts(self.folder, seconds, bits) as hosts:
            for spec in left:
                slots = (1, 2) if "server" in spec else (1, 1)
                done = hosts.regatta(slots, "train", *self.words(spec, "real", link), timeout=120)
                if done.returncode:
                    raise SystemExit(f"{spec} across {link.name}: {done.stderr}")

    def probe(self) -> None:
        file = self.folder / "here.toml"
        if not file.exists():
            self._regatta("probe", "vectors", "--minibatch", str(self.minibatch), "-n", "2",
                          "-o", str(file), *self.settings)  # fmt: skip

    def simulate(self, link: Link) -> None:
        cluster = self.folder / f"{link.name}.toml"
        cluster.write_text(self._two_hosts(link))
        for spec in STRATEGIES:
            if not self.run(spec, "simulated", link).exists():
                self._regatta("simulate", *self.words(spec, "simulated", link), "--timing-only",
                              "--cluster", str(cluster))  # fmt: skip

    def _two_hosts(self, link: Link) -> str:
        """What one host was measured to do with two workers, on two hosts with one each."""
        here = tomllib.loads((self.folder / "here.toml").read_text())
        curve = [[size, taken * here["crowded"]] for size, taken in here["curve"]]
        lines = [f"{name} = {value}" for name, value in here.items() if name not in OF_TWO_HOSTS]
        parts = HOSTS.format(curve=curve, bandwidth=link.bits / 8, latency=link.seconds)
        return "\n".join(lines) + parts

    def _regatta(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "regatta", *words], cwd=ROOT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"regatta {words[0]}: {done.stderr}")

    def steps_a_second(self, spec: str, world: str, link: Link) -> float:
        """Of the worker that is far from the server, once TCP has found how much it may send."""
        events = read(self.run(spec, world, link) / "events.jsonl")
        seen = [(event.time, event.turns) for event in events
                if isinstance(event, Progress) and event.rank == 0]  # fmt: skip
        (began, first), *_, (ended, last) = [at for at in seen if at[1] >= SETTLED]
        return (last - first) / (ended - began)

    def table(self) -> str:
        """Markdown."""
        lines = ["| strategy | without, steps/s | with | ratio | foretold without | with | ratio |",
                 "|---|---|---|---|---|---|---|"]  # fmt: skip
        for spec in STRATEGIES:
            cells = []
            for world in ("real", "simulated"):
                without, with_it = (self.steps_a_second(spec, world, link) for link in LINKS)
                ratio = f"{with_it / without:.2f}"
                cells += [f"{without:.2f}", f"{with_it:.2f}", f"**{ratio}**"]
            lines.append(f"| `{spec}` | {' | '.join(cells)} |")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
