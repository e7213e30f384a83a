"""Runs from the outside: prepare a folder, choose a world, train, simulate, resume, replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regatta import checkpoint, config, lock, recipes, start
from regatta.aside import CannotWrite
from regatta.choices import Chance, Live, Recorders
from regatta.comm import WorldFailed
from regatta.config import Run
from regatta.engine import Surroundings
from regatta.events import Event, RankEnded, Tail, Writer, standing
from regatta.events import read as read_events
from regatta.folders import (
    Crew,
    Plan,
    Stops,
    open_plan,
    refuse_if_taken,
    run_of,
    write_plan,
)
from regatta.learn.layers import split
from regatta.learn.layout import Layout
from regatta.opening import identity_of, open_data
from regatta.outlook import Pulse, Share
from regatta.overseeing import RunOverseer
from regatta.playing import play_virtual
from regatta.playing_processes import play_process
from regatta.replaying import Replay, replay
from regatta.resuming import (
    NOTHING_SAVED,
    Resume,
    Saved,
    Tell,
    begin_again,
    begin_or_go_on,
    is_done,
    tell_nobody,
)  # fmt: skip
from regatta.room import refuse_without_room
from regatta.strategies.fate import RESTART, SHRINK, STOP
from regatta.worlds import started
from regatta.worlds.launch import RankFailed, launch
from regatta.worlds.leaving import Asked, Notice, never
from regatta.worlds.processes import connect
from regatta.worlds.rendezvous import meet
from regatta.worlds.roll_call import Line
from regatta.worlds.started import Place

__all__ = ["Plan", "Replay", "Watcher", "ignore", "replay", "simulate", "train"]

Watcher = Callable[[Sequence[Event | Share]], None]


def ignore(events: Sequence[Event | Share]) -> None: ...


def refuse_if_not_in_layers(run: Run) -> None:
    """Before anything is written: can the model be split, if the strategy splits it?"""
    if run.strategy.needs_layers:
        model = run.task.model()
        split(model, Layout(model), run.workers)


def _refuse_to_wait_in_vain(run: Run) -> None:
    if run.death.rejoin and not run.checkpointing.on_the_way:
        raise ValueError(
            "who died is back after the next checkpoint, and there is none before the end: "
            "set checkpointing.every, or leave --rejoin out"
        )


# -- real ------------------------------------------------------------------------------------


def train(
    plan: Plan,
    resume: Resume | bool = False,
    watch: Watcher = ignore,
    leaving: Asked = never,
    tell: Tell = tell_nobody,
) -> list[RankEnded]:
    """Train on processes of this machine, or as one rank of a world that others started."""
    if plan.run.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA device for PyTorch: use --device cpu")
    refuse_if_not_in_layers(plan.run)
    plan.run.follows_death_of(0)  # a strategy that does not state it is refused
    _refuse_to_wait_in_vain(plan.run)
    resume = Resume(resume)
    place = started.place()
    if place is not None:
        return _train_as_rank(place, plan, resume, watch, leaving, tell)
    with lock.held(plan.folder) as held:
        if resume is Resume.IF_ANY and is_done(plan):
            return _recorded(plan)
        plan, saved = begin_or_go_on(plan, resume, tell)
        try:
            return _launched(plan, saved, held, RunOverseer(plan, watch, leaving), tell)
        except CannotWrite:
            checkpoint.discard_unfinished(plan.checkpoints)  # it takes room and is worth nothing
            raise


def _launched(
    plan: Plan, saved: Saved, held: lock.Lock, overseer: RunOverseer, tell: Tell
) -> list[RankEnded]:
    """On processes of this machine; once more, and more often, if they die and the run says so."""
    while True:
        recipe, values = recipes.absolute(plan.recipe), config.to_json(plan.run)
        rejoining = overseer.aftermath.may_rejoin()
        sent = (recipe, values, plan.folder, plan.stops, plan.crews, saved, rejoining, held)
        try:
            ended = launch(plan.run.num_ranks, _rank_body, sent, overseer)
            if all(ended):
                return ended
            if overseer.interrupted:  # as all ended to begin again: nothing is lost
                raise KeyboardInterrupt
            overseer.aftermath.rejoins()
            dead = None
        except RankFailed as death:
            then = overseer.aftermath.begins_again(death.rank, death.how, death.account)
            overseer.tick()
            if then == STOP:
                raise
            dead = plan.members[death.rank] if then == SHRINK else None
        plan, saved = begin_again(plan, dead, tell)
        overseer.aftermath.take_up(plan.run)


def _rank_body(
    rank: int, size: int, init_method: str,
    recipe: str, values: dict[str, Any], folder: Path, stops: Stops, crews: tuple[Crew, ...],
    saved: Saved, rejoining: bool,
    _held: lock.Lock,  # for as long as this process lives
    line: Line,
) -> RankEnded | None:  # fmt: skip
    leaving = Notice().listen()
    run = run_of(values, recipe)
    connect(rank, size, init_method, run.device)
    plan = Plan(recipe, run, folder, stops, crews)
    return play_process(plan, saved, leaving, line=line, rejoining=rejoining)


def _train_as_rank(
    place: Place, plan: Plan, resume: Resume, watch: Watcher, leaving: Asked, tell: Tell
) -> list[RankEnded]:
    _refuse_other_size(plan, place)
    death = plan.run.death
    asked = "--rejoin" if death.rejoin else f"--on-death {death.then}"
    if death.rejoin or death.then in (RESTART, SHRINK):
        raise ValueError(
            f"ranks that {place.starter} has started cannot begin again by themselves: leave "
            f"{asked} out, and let {place.starter} start the same command again, with --resumable"
        )
    meet(place, plan.run.device)
    with lock.held(plan.folder) if place.rank == 0 else nullcontext():
        return _play_as_rank(place, plan, resume, watch, leaving, tell)


def _refuse_other_size(plan: Plan, place: Place) -> None:
    if place.size != plan.run.num_ranks:
        raise ValueError(
            f"{plan.run.strategy.name} with {plan.run.workers} workers needs "
            f"{plan.run.num_ranks} processes, but {place.starter} started {place.size}"
        )


def _play_as_rank(
    place: Place, plan: Plan, resume: Resume, watch: Watcher, leaving: Asked, tell: Tell
) -> list[RankEnded]:
    """Rank 0 finds out how to begin, and the others hear of it."""
    done, saved = False, NOTHING_SAVED
    if place.rank == 0:
        done = resume is Resume.IF_ANY and is_done(plan)
        if not done:
            plan, saved = begin_or_go_on(plan, resume, tell)
            _refuse_other_size(plan, place)
    begins = plan.run.start
    ranks = json.dumps([saved.ranks, saved.returned])
    done_text, folder, path, ranks, source, digest = _from_rank_0(
        "done" if done else "", str(plan.folder), str(saved.path or ""), ranks,
        begins.run, begins.sha256,
    )  # fmt: skip
    begins = replace(begins, run=source, sha256=digest)
    plan = replace(plan, folder=Path(folder), run=replace(plan.run, start=begins))
    if done_text:
        dist.destroy_process_group()
        return _recorded(plan)
    if path:  # as rank 0 has written it
        plan, _ = open_plan(plan.folder)
    tail = Tail(plan.events)
    saved = Saved(Path(path), *map(tuple, json.loads(ranks))) if path else NOTHING_SAVED
    ended = play_process(plan, saved, leaving, place.local)
    watch(tail())
    return [ended] if ended else []


def _recorded(plan: Plan) -> list[RankEnded]:
    """How the ranks of a run that is done ended."""
    last = {e.rank: e for e in read_events(plan.events) if isinstance(e, RankEnded)}
    return [last[rank] for rank in sorted(last)]


def _from_rank_0(*texts: str) -> list[str]:
    """Rank 0's texts, on every rank."""
    text = "\0".join(texts).encode()
    length = torch.tensor([len(text)])
    try:
        dist.broadcast(length, 0)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if dist.get_rank() == 0:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        dist.broadcast(data, 0)
    except RuntimeError:
        raise WorldFailed("rank 0 could not begin: it says why") from None
    return bytes(data.tolist()).decode().split("\0")


# -- virtual ---------------------------------------------------------------------------------


def simulate(
    run: Run, plan: Plan | None = None, timing_only: bool = False, watch: Watcher = ignore
) -> tuple[list[RankEnded], list[Event]]:
    """Train under a virtual clock, in this process; kept in the plan's folder, if there is one."""
    refuse_if_not_in_layers(run)
    _refuse_to_wait_in_vain(run)
    refuse_without_room(run)
    if plan is None:
        return _simulate(run, None, timing_only, watch)
    with lock.held(plan.folder):
        refuse_if_taken(plan.folder)
        return _simulate(run, plan, timing_only, watch)


def _simulate(
    run: Run, plan: Plan | None, timing_only: bool, watch: Watcher
) -> tuple[list[RankEnded], list[Event]]:
    folder = plan.folder if plan else None
    run, data = start.pinned(run, folder), open_data(run, timing_only)
    kept = None
    if plan is not None:
        start.check(run, data, plan.folder)
        start.keep(run, plan.folder)
        kept = _Folder(replace(plan, run=run), timing_only, identity_of(data))
    log = Writer(plan.events if plan else None, lambda event: watch([event]))
    around = Surroundings(
        "virtual",
        data,
        log,
        (lambda: log.events) if plan is None else partial(read_events, plan.events),
        folder,
        start=start.place(run, folder),
        timing_only=timing_only,
        hosts=run.cluster.hosts(run.workers, run.strategy.shares(run.workers)),
        pulse=Pulse(1 if timing_only else run.workers, lambda share: watch([share])),
    )
    try:
        if kept is None:
            ended = play_virtual(run, around, lambda rank: Live())
        else:
            ended = play_virtual(run, around, kept.chance_of, kept.again)
    finally:
        log.close()
        if kept is not None:
            kept.close()
    return ended, standing(log.events)


class _Folder:
    """What a simulation writes besides events and checkpoints."""

    def __init__(self, plan: Plan, timing_only: bool, data: str) -> None:
        self._plan, self._timing_only, self._data = plan, timing_only, data
        self._began = time.time()
        self._write()
        # What was simulated for its timing only, nobody can replay.
        self._recorders = None if timing_only else Recorders(plan.choices, plan.run.num_ranks)

    def chance_of(self, rank: int) -> Chance:
        return Live() if self._recorders is None else self._recorders.of(rank)

    def close(self) -> None:
        if self._recorders is not None:
            self._recorders.close()

    def again(self, crew: Crew, returned: bool) -> None:
        """These ranks play again from a segment on; what was recorded from there is forgotten."""
        if self._recorders is not None:
            self._recorders.forget_from(crew.segment)
        run, crews = self._plan.run, self._plan.crews
        first = run.cluster.hosts(run.workers, run.strategy.shares(run.workers))
        hosts = crews[-1].hosts if crews else first
        self._plan = self._plan.with_members(crew.members, crew.segment, hosts, returned)
        self._write()

    def _write(self) -> None:
        write_plan(self._plan, "virtual", self._timing_only, began=self._began, data=self._data)
