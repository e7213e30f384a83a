"""Where a run's weights begin if not with a draw: with those of another run.

The file is found and its digest taken when the run begins. The run keeps a copy, so that it goes on
and is replayed from its own folder, whatever becomes of the source.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from regatta import aside, checkpoint
from regatta.checkpoint import BadCheckpoint
from regatta.config import Run, Start, to_json
from regatta.folders import make_folder, read_stored
from regatta.learn.takeover import Head, Weights, take_over
from regatta.tasks import Data

FILE = "start.safetensors"  # in the folder of a run, and of a race for all its runs; or .pt, .pth
_RACE, _RUN = "race.json", "run.json"  # what their folders hold


# -- the source -------------------------------------------------------------------------------


def pinned(run: Run, folder: Path | None = None) -> Run:
    """The run with its source as one file and that file's digest.

    A copy of the wanted digest in the run's own folder will do: the source may be gone.
    """
    start = run.start
    if not start.run or (folder is not None and _is_kept(start, folder)):
        return run
    file = file_of(Path(start.run).expanduser().resolve())
    checkpoint.load_answer(file)  # it must be whole
    digest = checkpoint.sha256_of(file)
    if start.sha256 not in ("", digest):
        raise ValueError(
            f"{file} has changed: its sha256 is {digest}, not {start.sha256} as start.sha256 says; "
            "bring that file back, or begin anew with this one"
        )
    return replace(run, start=replace(start, run=str(file), sha256=digest))


def as_settings(start: Start) -> list[str]:
    """As --set takes them."""
    return [f"start.run={start.run}", f"start.sha256={start.sha256}"] if start.run else []


def file_of(path: Path) -> Path:
    """A file with a model: itself, or a run's best, or what its newest checkpoint answers."""
    if path.is_dir():
        return _model_of_run(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: name the folder of a run or a file of weights")
    if path.suffix not in (".safetensors", *checkpoint.OF_TORCH):
        raise ValueError(
            f"{path} is no .safetensors, .pt or .pth file: name the folder of a run, or save the "
            "model's state_dict with safetensors.torch.save_file"
        )
    return path


def _model_of_run(folder: Path) -> Path:
    if (folder / _RACE).exists():
        runs = sorted(path.parent for path in folder.glob(f"runs/*/*/{_RUN}"))
        example = f", for instance {runs[0]}" if runs else ""
        raise ValueError(f"{folder} is a race: name one of its runs{example}")
    try:
        stored = read_stored(folder)
    except ValueError as error:
        raise ValueError(
            f"{folder} holds no run that can be read ({error}): name the folder of a "
            "run or a .safetensors file"
        ) from None
    if stored["timing_only"]:
        raise ValueError(
            f"{folder} was simulated for its timing only and has no weights: simulate it again "
            "without --timing-only"
        )
    checkpoints = folder / "checkpoints"
    best = checkpoints / "best.safetensors"
    if best.exists():
        return best
    if not checkpoint.finished(checkpoints):
        raise ValueError(
            f"{folder} has neither a best model nor a checkpoint: let it come to its first "
            "evaluation, or name another run"
        )
    return checkpoint.newest(checkpoints) / "answer.safetensors"


# -- the copy ---------------------------------------------------------------------------------


def place(run: Run, folder: Path | None) -> Path | None:
    """Where to read the weights to begin with: the folder's copy; None if they are drawn."""
    if not run.start.run:
        return None
    return Path(run.start.run) if folder is None else _copy(run.start, folder)


def _copy(start: Start, folder: Path) -> Path:
    """Its name tells of which kind it is."""
    suffix = Path(start.run).suffix
    return (folder / FILE).with_suffix(suffix) if suffix in checkpoint.OF_TORCH else folder / FILE


def keep(run: Run, folder: Path) -> None:
    """Put a copy into the folder, if it is not there."""
    if not run.start.run or _is_kept(run.start, folder):
        return
    source = Path(run.start.run)
    content = source.read_bytes()
    if hashlib.sha256(content).hexdigest() != run.start.sha256:
        raise ValueError(f"{source} has changed while this run began: start it again")
    make_folder(folder)
    aside.write_aside(_copy(run.start, folder), content)


def hand_down(run: Run, race: Path, home: Path) -> Run:
    """Let a run of a race have the race's copy: one file under two names where that can be."""
    if not run.start.run:
        return run
    copy, own = (_copy(run.start, folder) for folder in (race, home))
    digest = run.start.sha256 or checkpoint.sha256_of(copy)
    make_folder(home)
    try:
        os.link(copy, own)
    except OSError:
        aside.write_aside(own, copy.read_bytes())
    return replace(run, start=replace(run.start, sha256=digest))


def _is_kept(start: Start, folder: Path) -> bool:
    copy = _copy(start, folder)
    return copy.is_file() and checkpoint.sha256_of(copy) == start.sha256


# -- the weights ------------------------------------------------------------------------------


def check(run: Run, data: Data, folder: Path | None = None) -> None:
    """Refuse weights that do not fit, before anything is written."""
    if run.start.run:
        is_kept = folder is not None and _is_kept(run.start, folder)
        path = place(run, folder if is_kept else None)
        assert path is not None
        begin_with(path, run.task.model(), run, data)


def begin_with(path: Path, model: nn.Module, run: Run, data: Data) -> str:
    """Fill a model with the weights of a file; says in words where they came from, and which."""
    start = run.start
    if not path.is_file() or checkpoint.sha256_of(path) != start.sha256:
        raise BadCheckpoint(
            f"{path} is missing or not what this run began with: copy {start.run} there if its "
            f"sha256 is {start.sha256}"
        )
    tensors, about = checkpoint.load_answer(path)
    task = about.get("task")
    source = Weights(
        start.run,
        tensors,
        Head(str(about.get("head", "")), _texts(about.get("symbols"))),
        task if isinstance(task, dict) else {},
    )
    target = Weights("the model", model.state_dict(), head_of(data), to_json(run.task))
    taken = take_over(source, target, keeps_head=start.head == "kept")
    return f"{source}, sha256 {start.sha256[:12]}: {taken}"


def identity(run: Run, data: Data) -> dict[str, Any]:
    """What an answer's file says of the model, for runs that begin with it and for its users."""
    head = head_of(data)
    describe = getattr(data, "description", None)
    known = {
        "head": head.prefix,
        "symbols": list(head.symbols),
        "description": describe() if describe else None,
    }
    return {"task": to_json(run.task)} | {name: value for name, value in known.items() if value}


def head_of(data: Data) -> Head:
    return Head(getattr(data, "head", ""), _texts(getattr(data, "symbols", ())))


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values)) if isinstance(values, Sequence) else ()
