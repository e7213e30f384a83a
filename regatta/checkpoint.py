"""Checkpoints: tensors as safetensors, the rest JSON; written aside and renamed when whole.

    checkpoints/000004/            one folder a meeting
        checkpoint.json            what it is, and of how many ranks
        rank-0.json                numbers of a rank, and the digest of its tensors
        rank-0.safetensors
        answer.safetensors         the model by its own names
    checkpoints/best.safetensors   the best model so far, by the task's metric

Loading executes no code, and a file that is cut short or changed is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = "regatta checkpoint"
VERSION = 1
_PART = ".part"


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used; the message names the file and the remedy."""


def folder(checkpoints: Path, segment: int) -> Path:
    return checkpoints / f"{segment:06d}"


def _part(checkpoints: Path, segment: int) -> Path:
    return checkpoints / f"{segment:06d}{_PART}"


def save_rank(
    checkpoints: Path, segment: int, rank: int, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Write one rank's share, aside."""
    part = _part(checkpoints, segment)
    part.mkdir(parents=True, exist_ok=True)
    path = part / f"rank-{rank}.safetensors"
    _save_tensors(path, tensors)
    _write_json(part / f"rank-{rank}.json", numbers | {"sha256": _digest(path)})


def save_answer(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a model by its own names, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + _PART)
    _save_tensors(aside, tensors, {"about": json.dumps(about)})
    aside.replace(path)


def publish(checkpoints: Path, segment: int, ranks: int, run_digest: str, keep: int) -> Path:
    """All ranks have written: make it count, and let go of old ones."""
    part, path = _part(checkpoints, segment), folder(checkpoints, segment)
    about = {"format": FORMAT, "version": VERSION, "segment": segment, "ranks": ranks}
    _write_json(part / "checkpoint.json", about | {"run": run_digest})
    part.rename(path)
    _sync(checkpoints)
    for old in _finished(checkpoints)[:-keep]:
        shutil.rmtree(old)
    return path


def newest(checkpoints: Path) -> Path:
    """The last whole checkpoint, every file of it checked."""
    finished = _finished(checkpoints)
    if not finished:
        raise BadCheckpoint(f"{checkpoints} holds no checkpoint to resume from; start without it")
    path = finished[-1]
    try:
        about = json.loads((path / "checkpoint.json").read_text())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path / 'checkpoint.json'} cannot be read ({error})") from None
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise BadCheckpoint(f"{path} is not a checkpoint of this Regatta (version {VERSION})")
    for rank in range(about["ranks"]):
        _read_numbers(path, rank)
    return path


def about(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "checkpoint.json").read_text()))


def load_rank(path: Path, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    numbers = _read_numbers(path, rank)
    try:
        return load_file(path / f"rank-{rank}.safetensors"), numbers
    except SafetensorError as error:
        raise BadCheckpoint(f"{path / f'rank-{rank}.safetensors'}: {error}") from None


def discard_unfinished(checkpoints: Path) -> None:
    for part in checkpoints.glob(f"*{_PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


def _read_numbers(path: Path, rank: int) -> dict[str, Any]:
    tensors = path / f"rank-{rank}.safetensors"
    try:
        numbers: dict[str, Any] = json.loads((path / f"rank-{rank}.json").read_text())
        whole = numbers["sha256"] == _digest(tensors)
    except (OSError, ValueError, KeyError) as error:
        raise BadCheckpoint(
            f"{path} cannot be read ({error}); delete it to use the one before"
        ) from None
    if not whole:
        raise BadCheckpoint(
            f"{tensors} is damaged: its contents are not what was saved; "
            f"delete {path} to resume from the checkpoint before"
        )
    return numbers


def _finished(checkpoints: Path) -> list[Path]:
    return sorted(p for p in checkpoints.glob("[0-9]*") if p.suffix != _PART)


def _save_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():  # safetensors refuses two names for one memory
        tensor = tensor.detach().contiguous()
        own[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(own, path, metadata)
    _sync(path)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(values, indent=1) + "\n")
    _sync(aside)
    aside.replace(path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
