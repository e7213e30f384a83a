"""A batch script for Slurm: ranks by srun, and into the queue again when they had to leave."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regatta.launching import refuse_what_is_no_training
from regatta.worlds.leaving import EXIT_CODE

_VALUE = re.compile(r"[^\s#'\"`$\\]+")


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm."""

    tasks: int = 2  # one a rank
    nodes: int = 1
    cpus: int = 1  # a rank
    time: str = ""  # as Slurm writes it, 1-12:00:00; empty: the partition's own limit
    partition: str = ""
    name: str = "regatta"
    notice: int = 120  # seconds before the time is up at which ranks are asked to leave
    requeues: int = 100  # at most; 0: whoever had to leave is not put into the queue again
    more: Sequence[str] = ()  # other options of sbatch: --gres=gpu:2

    def __post_init__(self) -> None:
        for name in ("tasks", "nodes", "cpus"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be 1 or more, not {getattr(self, name)}")
        if self.notice < 0 or self.requeues < 0:
            raise ValueError("--notice and --requeues must be 0 or more")
        if self.tasks < self.nodes:
            raise ValueError(f"{self.nodes} nodes have no use for {self.tasks} tasks: one a rank")
        for option in self.more:
            if not option.startswith("--"):
                raise ValueError(f"--sbatch {option!r}: write an option of sbatch, --gres=gpu:2")
        for value in (self.time, self.partition, self.name, *self.more):
            if value and not _VALUE.fullmatch(value):
                raise ValueError(f"{value!r} cannot stand in a batch script: leave out blanks")


def script(job: Job, words: Sequence[str]) -> str:
    """The whole text; `words` are those of the command that every rank runs."""
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(job)), ""]
    command = [sys.executable, "-m", "regatta", *_resumable(words)]
    lines.append(f"srun --cpus-per-task={job.cpus} {shlex.join(command)}")
    lines.append("code=$?")
    if job.requeues:
        lines += [
            "",
            f"# {EXIT_CODE}: it had to leave and has saved. In the queue again, it goes on.",
            f'if [ "$code" -eq {EXIT_CODE} ] && '
            f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.requeues} ]; then',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
        ]
    return "\n".join([*lines, 'exit "$code"', ""])


def _options(job: Job) -> Iterator[str]:
    yield f"--job-name={job.name}"
    yield f"--nodes={job.nodes}"
    yield f"--ntasks={job.tasks}"
    yield f"--cpus-per-task={job.cpus}"
    if job.time:
        yield f"--time={job.time}"
    if job.partition:
        yield f"--partition={job.partition}"
    yield "--requeue" if job.requeues else "--no-requeue"
    yield "--open-mode=append"
    if job.notice:
        yield f"--signal=USR1@{job.notice}"
    yield from job.more


def _resumable(words: Sequence[str]) -> list[str]:
    """The same command begins the run and goes on with it."""
    refuse_what_is_no_training(words)
    if "--resume" in words:
        raise ValueError("a job begins a run or goes on with it by itself: leave --resume out")
    if not any(word in ("--out", "-o") or word.startswith("--out=") for word in words):
        raise ValueError("a job that goes on needs the same folder every time: add --out FOLDER")
    return [*words] if "--resumable" in words else [*words, "--resumable"]
