"""Random faults of real runs: what follows, whether the end is right, and what is left behind.

Whoever can be hit is hit: workers, servers, the launcher; by SIGKILL, by SIGSTOP for a while, or by
SIGSTOP for good in a run that gives up who stands still. Where this is root, disks fill up until
somebody makes room, and the network is cut for a while. A run that is deterministic must end with
the weights of one that nobody disturbed; the others must come as far as that, and all must replay.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from regatta import config, runs
from regatta.benchmarks import Case, Result
from regatta.benchmarks.harm import Disk, Late, Story, Subject, may_change_surroundings, until
from regatta.comm import Deadlock, WorldFailed
from regatta.strategies.base import Strategy
from regatta.strategies.fate import GO_ON, RESTART, SHRINK

SPECS = (
    "single", "all-reduce", "averaging:period=4", "elastic", "ring", "pipeline",
    "parameter-server", "parameter-server:mode=sync", "parameter-server:mode=sync,backup=1",
    "parameter-server:servers=2", "elastic:mode=async,period=2", "gossip",
)  # fmt: skip
WORKERS = 3
KILL, STOP, FREEZE = "kill", "stop", "freeze"  # for ever, for a while, until it is given up
FULL, CUT = "fill", "cut"  # until somebody makes room, for a while
LAUNCHER, DISK, NETWORK = -1, -2, -3
_NOT_A_RANK = {LAUNCHER: "launcher", DISK: "disk", NETWORK: "network"}
_SECONDS = 3.0  # that an undisturbed run is to take
_STOP_SECONDS = 1.5
_LIMIT_SECONDS = 180.0
_WORSE = 0.05  # accuracy that chance may cost
_RECIPE = "teacher"
_SETTINGS = (
    "task.train=3072", "task.hidden=64,64", "task.dev=512", "minibatch=16", "stop.target=none",
    "evaluation.every=4", "checkpointing.every=4", "recording.sentences=0",
)  # fmt: skip


class Whole(NamedTuple):
    """How a strategy ends if nobody disturbs it."""

    epochs: float
    digests: dict[int, str]
    accuracy: float


@dataclass(frozen=True)
class Fault:
    spec: str
    kind: str
    victim: int  # a rank, or one of what is no rank
    then: str  # as --on-death has it
    at_start: bool  # while ranks still find each other
    after: float  # seconds

    @property
    def role(self) -> str:
        return _NOT_A_RANK.get(self.victim) or _role(self.victim, _workers(self.spec))

    @property
    def by_hand(self) -> bool:
        """Whether it ends the run, and a person has to go on with it."""
        return self.kind == FULL or (self.victim == LAUNCHER and self.kind == KILL)

    def __str__(self) -> str:
        who = self.role if self.victim in _NOT_A_RANK else f"{self.role} {self.victim}"
        when = f"{self.after:.2f} s after {'it was started' if self.at_start else 'its first step'}"
        return f"{self.spec}: {self.kind} {who} {when}, {self.then}"


@dataclass(frozen=True)
class Outcome:
    fault: Fault
    followed: str  # what did
    recovered: float | None = None  # seconds until ranks computed again; None: they always did
    wrong: str = ""


def faults(pairs: int) -> Result:
    """As many faults as `pairs`."""
    outcomes: dict[str, list[Outcome]] = {}
    whole: dict[str, Whole] = {}
    is_root = may_change_surroundings()
    for number in range(pairs):
        fault = draw(number, is_root)
        with tempfile.TemporaryDirectory(prefix="regatta-") as folder:
            if fault.spec not in whole:
                whole[fault.spec] = undisturbed(fault.spec, Path(folder))
            outcome = suffer(fault, whole[fault.spec], Path(folder))
        if outcome.wrong:
            print(f"{number}: {fault}: {outcome.wrong}", file=sys.stderr, flush=True)
        outcomes.setdefault(fault.spec, []).append(outcome)
    cases = [_case(spec, outcomes[spec]) for spec in outcomes]
    rows = [row for spec in outcomes for row in _rows(spec, outcomes[spec])]
    without = "" if is_root else " (not root: no full disk, no cut)"
    versus = f"random faults{without} / right ends"
    return Result("faults", versus, cases, "share of right ends", rows)


def _case(spec: str, outcomes: list[Outcome]) -> Case:
    right = sum(not outcome.wrong for outcome in outcomes)
    said = f"{right} of {len(outcomes)} right"
    return Case(spec, [right / len(outcomes)], 1.0, said, "nothing left behind")


def _rows(spec: str, outcomes: list[Outcome]) -> Iterator[dict[str, str | float]]:
    for followed in sorted({outcome.followed for outcome in outcomes}):
        alike = [outcome for outcome in outcomes if outcome.followed == followed]
        seconds = [o.recovered for o in alike if o.recovered is not None and not o.wrong]
        yield {
            "strategy": spec,
            "what followed": followed,
            "faults": str(len(alike)),
            "seconds to recover": f"{median(seconds):.2f}" if seconds else "–",
            "at most": f"{max(seconds):.2f}" if seconds else "–",
        }


def draw(number: int, is_root: bool = False) -> Fault:
    """The strategies take turns; the rest is chance, always the same."""
    chance = random.Random(number)
    spec = SPECS[number % len(SPECS)]
    strategy, workers = _strategy(spec), _workers(spec)
    victims = [chance.randrange(workers), LAUNCHER]
    if strategy.num_servers:
        victims.append(workers + chance.randrange(strategy.num_servers))
    victim = chance.choices(victims, weights=[3, 1, *[2] * (len(victims) - 2)])[0]
    kinds: tuple[str, ...] = (KILL, STOP) if victim == LAUNCHER else (KILL, KILL, STOP, FREEZE)
    if is_root and chance.random() < 0.25:
        victim = chance.choice((DISK, NETWORK) if workers > 1 else (DISK,))
        kinds = (FULL,) if victim == DISK else (CUT,)
    at_start = victim not in (DISK, NETWORK) and chance.random() < 0.15
    return Fault(
        spec, chance.choice(kinds), victim, _asked(strategy, chance), at_start,
        chance.uniform(0.0, 0.5 if at_start else 0.7 * _SECONDS),
    )  # fmt: skip


def _asked(strategy: Strategy, chance: random.Random) -> str:
    """Those who can go on do; of the others some shrink, and all can begin again."""
    fate = strategy.fates["worker"]
    if fate.usual == GO_ON:
        return "auto"
    return chance.choice([RESTART, SHRINK] if SHRINK in fate.choices else [RESTART])


# -- one fault -------------------------------------------------------------------------------


def suffer(fault: Fault, whole: Whole, place: Path) -> Outcome:
    """Let it happen to a run of its own, and look at what comes of it."""
    with Disk(place / "disk") if fault.kind == FULL else nullcontext() as disk:
        return _suffer(fault, whole, place, disk)


def _suffer(fault: Fault, whole: Whole, place: Path, disk: Disk | None) -> Outcome:
    more: tuple[str, ...] = ("--silence", "1") if fault.kind == FREEZE else ()
    more += ("--set", "transport=sockets") if fault.kind == CUT else ()
    folder = (place if disk is None else disk.place) / "run"
    words = (*_words(fault.spec, folder, whole.epochs), "--on-death", fault.then, *more)
    subject = Subject(words, place / "tmp", network=fault.kind == CUT)
    try:
        began = _strike(fault, subject, Story(folder), disk)
        code = subject.wait(_LIMIT_SECONDS) if disk is not None else 0
        if disk is not None:
            disk.empty()
            if code and "make room" not in subject.complaint():
                return Outcome(fault, "", wrong="it did not say that the disk is full")
        if fault.by_hand and (code or disk is None):
            return _go_on_by_hand(fault, whole, folder, place, subject, began)
        recovered = _recovered(fault, subject, Story(folder), began)
        code = subject.wait(_LIMIT_SECONDS)
        if code != 0:
            return Outcome(fault, "", wrong=f"it ended with {code}: {subject.complaint()}")
        subject.leaves_nothing()
        return _judged(fault, whole, folder, recovered)
    except Late as late:
        return Outcome(fault, "", wrong=str(late))
    finally:
        subject.end()


def _strike(fault: Fault, subject: Subject, story: Story, disk: Disk | None) -> float:
    """When it happened, on the monotonic clock; a run that is over already is not hit any more."""
    ranks = _num_ranks(fault.spec)
    until(lambda: subject.is_over() or len(subject.ranks()) >= ranks, "its ranks had started", 60.0)
    if not fault.at_start:
        told = ("progress", "ended")
        until(lambda: subject.is_over() or bool(story.told(*told)), "it had made a step", 60.0)
    time.sleep(fault.after)
    if disk is not None:
        disk.fill()
    elif fault.kind == CUT:
        subject.link("down")
        time.sleep(_STOP_SECONDS)
        subject.link("up")
    else:
        return _signal(fault, subject)
    return time.monotonic()


def _signal(fault: Fault, subject: Subject) -> float:
    victim = subject.pid if fault.victim == LAUNCHER else subject.ranks().get(fault.victim)
    began = time.monotonic()
    if victim is None or subject.is_over():
        return began
    os.kill(victim, signal.SIGKILL if fault.kind == KILL else signal.SIGSTOP)
    if fault.kind == STOP:
        time.sleep(_STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    return began


def _recovered(fault: Fault, subject: Subject, story: Story, began: float) -> float | None:
    """Until those who began again compute, or those who go on know that they are fewer."""
    if fault.kind in (STOP, CUT, FULL):
        return None

    def goes_on() -> bool:
        # Who ends a run that is over already may not have been missed.
        if subject.is_over():
            return True
        told = story.told("died", "started", "resumed")
        last = [event["event"] for event in told]
        if not last or "died" not in last:
            return False
        return bool(told[-1]["event"] != "died" or told[-1]["then"] == GO_ON)

    ended = until(goes_on, "somebody had gone on", _LIMIT_SECONDS)
    return ended - began if story.told("died") else None


def _go_on_by_hand(
    fault: Fault, whole: Whole, folder: Path, place: Path, subject: Subject, began: float
) -> Outcome:
    """The run has ended: nothing may be left of its ranks, and a person resumes it."""
    subject.leaves_nothing()
    subject.end()
    has_saved = any((folder / "checkpoints").glob("[0-9]*[0-9]"))
    folder = folder if has_saved else folder.with_name("anew")
    again = ("--resume",) if has_saved else ()
    words = (*_words(fault.spec, folder, whole.epochs), *again)
    before = len(Story(folder).told("started", "resumed"))
    second = Subject(words, place / "tmp-2")
    try:
        story = Story(folder)
        until(
            lambda: second.is_over() or len(story.told("started", "resumed")) > before,
            "it was gone on with", 60.0,
        )  # fmt: skip
        recovered = time.monotonic() - began
        code = second.wait(_LIMIT_SECONDS)
        if code != 0:
            return Outcome(fault, "", wrong=f"resumed, it ended with {code}: {second.complaint()}")
        second.leaves_nothing()
        return _judged(fault, whole, folder, recovered, "resumed" if has_saved else "begun anew")
    finally:
        second.end()


def _judged(
    fault: Fault, whole: Whole, folder: Path, recovered: float | None, followed: str = ""
) -> Outcome:
    story = Story(folder)
    died = story.told("died")
    followed = followed or (died[-1]["then"] if died else "nothing")
    wrong = "; ".join(_complaints(fault, whole, folder, story, {d["then"] for d in died}))
    return Outcome(fault, followed, recovered, wrong)


def _complaints(
    fault: Fault, whole: Whole, folder: Path, story: Story, followed: set[str]
) -> Iterator[str]:
    if _strategy(fault.spec).deterministic and SHRINK not in followed:
        ended = {event["rank"]: event["digest"] for event in story.told("rank_ended")}
        if ended != whole.digests:
            yield "the weights are not those of an undisturbed run"
    accuracy = _accuracy(story)
    if accuracy < whole.accuracy - _WORSE:
        yield f"accuracy {accuracy:.3f}, undisturbed {whole.accuracy:.3f}"
    saved = 0
    for event in story.told("checkpointed", "resumed"):
        if event["event"] == "resumed" and event["segment"] < saved:
            yield f"it went back to {event['segment']}, though {saved} was saved"
        saved = event["segment"]
    try:
        if not runs.replay(folder).identical:
            yield "it does not replay"
    except (ValueError, WorldFailed, Deadlock) as error:
        yield f"it does not replay: {error}"


# -- runs ------------------------------------------------------------------------------------


def undisturbed(spec: str, folder: Path) -> Whole:
    """A run of about so many seconds, twice: to find out how long it must be, and how it ends."""
    epochs = 40.0
    for attempt in ("short", "whole"):
        place = folder / attempt
        subject = Subject(_words(spec, place, epochs), folder / f"{attempt}-tmp")
        if subject.wait(_LIMIT_SECONDS) != 0:
            raise RuntimeError(f"{spec} cannot be trained: {subject.complaint()}")
        story = Story(place)
        seconds = max(story.told("ended")[-1]["training"], 0.05)
        if attempt == "short":
            epochs = max(8.0, 4.0 * round(epochs * _SECONDS / seconds / 4.0))
    digests = {event["rank"]: event["digest"] for event in story.told("rank_ended")}
    return Whole(epochs, digests, _accuracy(story))


def _words(spec: str, folder: Path, epochs: float) -> tuple[Any, ...]:
    settings = (word for setting in _SETTINGS for word in ("--set", setting))
    words = ("train", _RECIPE, "-s", spec, "-n", str(_workers(spec)), "-o", folder)
    return (*words, *settings, "--set", f"stop.epochs={epochs}")


def _accuracy(story: Story) -> float:
    ended = story.told("ended")
    return float(ended[-1]["results"]["accuracy"]) if ended else 0.0


def _strategy(spec: str) -> Strategy:
    strategy: Strategy = config.component("strategy", spec)
    return strategy


def _workers(spec: str) -> int:
    return 1 if spec == "single" else WORKERS


def _num_ranks(spec: str) -> int:
    return _workers(spec) + _strategy(spec).num_servers


def _role(rank: int, workers: int) -> str:
    return "worker" if rank < workers else "server"
