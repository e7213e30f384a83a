"""Start the ranks of a run elsewhere: by Slurm, or on a list of hosts over ssh."""

from __future__ import annotations

from collections.abc import Sequence

from regatta.worlds.leaving import EXIT_CODE


def refuse_what_is_no_training(words: Sequence[str]) -> None:
    """Only one command can be a rank among others."""
    if not words or words[0] != "train":
        raise ValueError(
            "write the command that each rank is to run after --, as: "
            "-- train teacher --strategy ring --out runs/first"
        )


def first_failure(codes: Sequence[int | None]) -> int | None:
    """Of processes that may still run; one that has to leave has not failed."""
    return next((code for code in codes if code not in (None, 0, EXIT_CODE)), None)


def common(codes: Sequence[int | None], failure: int | None) -> int:
    """The exit code of many that have ended as one."""
    if failure is not None:
        return 128 - failure if failure < 0 else failure  # as a shell tells of a signal
    return EXIT_CODE if EXIT_CODE in codes else 0
