"""How a run begins or goes on: anew, or from its newest checkpoint, with those who are left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from regatta import checkpoint, choices, recipes, start
from regatta.events import Ended, Resumed, read_what_there_is
from regatta.fingerprint import run_digest
from regatta.folders import Plan, open_plan, read_stored, refuse_if_taken, write_plan
from regatta.mending import mend

UNFINISHED = ("interrupt", "preempted")  # reasons to stop that leave something to be done

Tell = Callable[[str], None]  # of what was found damaged, and what is done about it


def tell_nobody(text: str) -> None: ...


class Resume(Enum):
    NO = False
    YES = True
    IF_ANY = "if there is anything to go on with"


@dataclass(frozen=True)
class Saved:
    """A checkpoint to go on from, if there is one."""

    path: Path | None = None
    ranks: tuple[int, ...] = ()  # in it, in the place of the present ones; none: the same
    returned: tuple[int, ...] = ()  # present ones that were dead when it was saved


NOTHING_SAVED = Saved()


def begin_or_go_on(plan: Plan, resume: Resume, tell: Tell) -> tuple[Plan, Saved]:
    """The plan, and the checkpoint to go on from; only who holds the folder's lock may ask."""
    if resume is Resume.IF_ANY and (plan.folder / "run.json").exists():
        if checkpoint.finished(plan.checkpoints):
            return take_up(_as_begun(plan), tell)
        _clear(plan)
    if resume is Resume.YES:
        return take_up(plan, tell)
    refuse_if_taken(plan.folder)
    return replace(plan, run=start.pinned(plan.run, plan.folder)), NOTHING_SAVED


def is_done(plan: Plan) -> bool:
    """Whether the run has come to the end that it is to have."""
    if not (plan.folder / "run.json").exists() or not plan.events.exists():
        return False
    before, _ = open_plan(plan.folder)
    events = read_what_there_is(plan.events).events
    last = next((e for e in reversed(events) if isinstance(e, Ended | Resumed)), None)
    came_to_an_end = isinstance(last, Ended) and last.reason not in UNFINISHED
    return came_to_an_end and before.all_stops[-1][1] == plan.run.stop


def _as_begun(plan: Plan) -> Plan:
    """The same run as its folder knows it: where it stopped before, and what it began with."""
    before, stored = open_plan(plan.folder)
    if recipes.absolute(plan.recipe) != stored["recipe"]:
        raise ValueError(f"{plan.folder} was made by recipe {stored['recipe']}, not {plan.recipe}")
    if stored["world"] != "processes":
        raise ValueError(f"{plan.folder} was simulated: train to another --out")
    _refuse_other_ranks(plan, before)
    run, began_with = replace(plan.run, workers=before.run.workers), before.run.start
    if run.start.run and _is_within(Path(began_with.run), Path(run.start.run)):
        run = replace(run, start=replace(began_with, head=run.start.head))
    return replace(plan, run=run, stops=before.stops, crews=before.crews)


def _refuse_other_ranks(plan: Plan, before: Plan) -> None:
    """Some may be gone since, perhaps from before the first checkpoint; nobody can be added."""
    asked, first = plan.run.num_ranks, before.run.num_ranks
    if before.crews:
        first = max(first, *(max(crew.members) + 1 for crew in before.crews))
    if asked < first or (asked > first and not before.crews):
        raise ValueError(
            f"{plan.folder} belongs to a run that was configured differently: it began with "
            f"{first} ranks, not {asked}"
        )


def _is_within(file: Path, source: Path) -> bool:
    source = source.expanduser().resolve()
    return source in (file, *file.parents)


def _clear(plan: Plan) -> None:
    """What a run left that did not come to its first checkpoint."""
    for path in (plan.events, plan.choices, plan.folder / "run.json"):
        path.unlink(missing_ok=True)
    choices.Beside.forget(plan.choices)
    shutil.rmtree(plan.checkpoints, ignore_errors=True)


def begin_again(plan: Plan, dead: int | None, tell: Tell) -> tuple[Plan, Saved]:
    """From the last checkpoint, without the dead; if there is none, from the very beginning."""
    if checkpoint.finished(plan.checkpoints):
        return take_up(plan, tell, dead)
    checkpoint.discard_unfinished(plan.checkpoints)
    (plan.checkpoints / checkpoint.BEST).unlink(missing_ok=True)
    choices.forget_from(plan.choices, 0)
    if dead is not None:
        members = [member for member in plan.members if member != dead]
        plan = plan.with_members(members, 0, [0] * plan.run.num_ranks)  # all on this host
    return plan, NOTHING_SAVED


def take_up(plan: Plan, tell: Tell, dead: int | None = None) -> tuple[Plan, Saved]:
    """Find the checkpoint to go on from; forget what a broken-off run did after it.

    Who was dead when it was saved is back with the state of another, unless it is the `dead` one.
    """
    checkpoint.discard_unfinished(plan.checkpoints)
    path, complaints = checkpoint.newest_whole(plan.checkpoints)
    about = checkpoint.about(path)
    _refuse_another_run(plan, path, about)
    checkpoint.set_aside_after(path)
    checkpoint.take_up_best(path)
    segment, before = about["segment"], read_stored(plan.folder)
    complaints += choices.forget_from(plan.choices, segment)
    complaints += mend(plan.events)
    for complaint in complaints:
        tell(complaint)
    stops = [entry for entry in plan.all_stops if entry[0] < segment]
    plan = replace(plan, stops=(*stops, (segment, plan.run.stop)))
    members = [member for member in plan.members if member != dead]
    saved = places_of(members, checkpoint.members(about), about["ranks"])
    plan = plan.with_members(members, segment, before["hosts"], bool(saved.returned))
    began, data = before["began"], before["data"]
    hosts = plan.crews[-1].hosts if plan.crews else before["hosts"]
    write_plan(plan, "processes", hosts=hosts, began=began, data=data)
    return plan, replace(saved, path=path)


def places_of(members: Sequence[int], saved: Mapping[int, int], ranks: int) -> Saved:
    """Where these find their state among so many ranks; who is not `saved`, the first worker's."""
    places = tuple(saved.get(member, min(saved.values())) for member in members)
    returned = tuple(rank for rank, member in enumerate(members) if member not in saved)
    return Saved(None, () if places == tuple(range(ranks)) else places, returned)


def _refuse_another_run(plan: Plan, path: Path, about: dict[str, Any]) -> None:
    crews = [crew.members for crew in plan.crews if crew.segment < about["segment"]]
    saved_by = crews[-1] if crews else plan.members
    workers = len(saved_by) - plan.run.strategy.num_servers
    same = about["run"] == run_digest(replace(plan.run, workers=max(workers, 1)))
    if not same or about["ranks"] != len(saved_by):
        raise ValueError(f"{path} belongs to a run that was configured differently")
