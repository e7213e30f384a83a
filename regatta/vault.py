"""What outlives a process: a rank's state, in a run's folder or in memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regatta import checkpoint, remembered
from regatta.events import Checkpointed
from regatta.fingerprint import run_digest
from regatta.kept import Kept, State
from regatta.start import identity

if TYPE_CHECKING:
    from regatta.engine import Rank


RESIDUAL = "residual"  # the slot of what a code has still to send


class Vault:
    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        folder = rank.around.folder
        self._folder = None if folder is None else folder / "checkpoints"

    def save_best(self) -> None:
        if self._folder is not None:
            more = {"samples": self._rank.samples()}
            self._save_answer(self._folder / checkpoint.BEST, more)

    async def save(self, over: bool) -> bool:
        """All ranks write aside; when all have, one makes it count. Whether it surely does."""
        rank, kept = self._rank, self._rank.around.kept
        rank.chance.flush()
        folder = None if rank.around.timing_only else self._folder
        if over and rank.segment != rank.around.until and folder is None:
            kept = None
        if folder is None and kept is None and not rank.chance.replaying:
            return False
        self._write_aside(folder, kept, over)
        everybody = torch.zeros(1)
        await rank.comm.all_reduce(everybody)  # has written; a replay meets the same deaths here
        publisher = rank.comm.present[0]
        if rank.comm.rank == publisher:
            self._publish(folder, kept)
        if len(rank.comm.present) == rank.comm.size:
            return True
        await rank.comm.all_reduce(everybody)  # who publishes may die over it, too
        if kept is not None and rank.comm.rank == publisher:
            kept.time = rank.time()  # who died until now is to rejoin
        return publisher in rank.comm.present

    def restore(self, source: Path | Kept) -> float:
        """Take up what was saved; when that was."""
        rank, ranks = self._rank, self._rank.around.ranks
        number = ranks[rank.comm.rank] if ranks else rank.comm.rank
        tensors, numbers = _loaded(source, number)
        with _checked(numbers, source, number):
            rank.replica.restore(tensors, numbers)
        rank.segment = numbers["segment"]
        rank.epochs = numbers["epochs"]
        if rank.around.began is None:
            rank.time_before = numbers["time"]
        if rank.comm.rank in rank.around.returned:  # with another's state, not with its past
            rank.replica.slots.pop(RESIDUAL, None)
        else:
            rank.stream.seen, rank.stream.audio = numbers["samples"], numbers["audio"]
            rank.comm.traffic.restore(numbers["traffic"])
        holder = _holder_in(source, rank.run.strategy.answer) if rank.is_holder else number
        if holder != number:  # it was another one then
            _, numbers = _loaded(source, holder)
        with _checked(numbers, source, holder):
            rank.paused = numbers["paused"]
            rank.scores.restore(numbers["scores"])
            rank.pace.restore(numbers["pace"])
            rank.scored_version = numbers["scored_version"]
            rank.evaluations = numbers["evaluations"]
        if ranks:
            rank.begin_among_others()
        return float(numbers["time"])

    def _state(self) -> State:
        rank = self._rank
        tensors, numbers = rank.replica.state()
        more: dict[str, Any] = {
            "segment": rank.segment,
            "epochs": rank.epochs,
            "time": rank.time(),
            "paused": rank.paused,
            "scores": rank.scores.state(),
            "pace": rank.pace.state(),
            "samples": rank.stream.seen,
            "audio": rank.stream.audio,
            "scored_version": rank.scored_version,
            "evaluations": rank.evaluations,
            "traffic": rank.comm.traffic.state(),
        }
        return tensors, numbers | more

    def _write_aside(self, folder: Path | None, kept: Kept | None, over: bool) -> None:
        if folder is None and kept is None:
            return
        state = self._state()
        if kept is not None:
            kept.save_rank(self._rank.comm.rank, *state)
        if folder is not None:
            self._write(folder, state, over)

    def _write(self, checkpoints: Path, state: State, over: bool) -> None:
        rank = self._rank
        checkpoint.save_rank(checkpoints, rank.segment, rank.comm.rank, *state)
        if rank.is_holder:
            part = checkpoints / f"{rank.segment:06d}.part" / checkpoint.ANSWER
            if over and rank.stop.patience:
                checkpoint.copy_answer(checkpoints / checkpoint.BEST, part)
            else:
                self._save_answer(part, {})
            checkpoint.keep_best(checkpoints, rank.segment)

    def _save_answer(self, path: Path, more: dict[str, Any]) -> None:
        rank = self._rank
        about = identity(rank.run, rank.around.data) | {"results": rank.scores.results} | more
        checkpoint.save_answer(path, rank.replica.named_answer(), about)

    def _publish(self, folder: Path | None, kept: Kept | None) -> None:
        rank = self._rank
        names = rank.around.members or range(rank.comm.size)
        members = {names[each]: each for each in rank.comm.present}
        if kept is not None:
            kept.publish(rank.segment, rank.time(), rank.comm.size, members)
        if folder is not None:
            self._publish_files(folder, members)

    def _publish_files(self, checkpoints: Path, members: dict[int, int]) -> None:
        rank = self._rank
        keep, digest, size = rank.run.checkpointing.keep, run_digest(rank.run), rank.comm.size
        path = checkpoint.publish(checkpoints, rank.segment, size, digest, keep, members)
        rank.around.log(
            Checkpointed(
                rank=rank.comm.rank, time=rank.time(), segment=rank.segment, path=path.name
            )
        )


def _loaded(source: Path | Kept, rank: int) -> State:
    return (
        source.load_rank(rank) if isinstance(source, Kept) else checkpoint.load_rank(source, rank)
    )


def _checked(
    numbers: dict[str, Any], source: Path | Kept, rank: int
) -> AbstractContextManager[None]:
    """While they are taken up: what lies in a file may be anything."""
    if isinstance(source, Kept):
        return nullcontext()
    return remembered.checked(numbers, source, rank)


def _holder_in(source: Path | Kept, answer: str) -> int:
    """Workers come first, servers after them; who is dead is not among them."""
    if isinstance(source, Kept):
        members = source.members
    else:
        members = checkpoint.members(checkpoint.about(source))
    return max(members.values()) if answer == "server" else min(members.values())
