"""Checkpoints: tensors as safetensors, the rest JSON; written aside and renamed when whole.

    checkpoints/000004/            one folder a meeting
        checkpoint.json            what it is, of how many ranks, and every file's digest
        rank-0.json                numbers of a rank
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = "regatta checkpoint"
VERSION = 1
BEST, ANSWER = "best.safetensors", "answer.safetensors"
OF_TORCH = (".pt", ".pth")  # files that `torch.save` wrote
_PART = ".part"
_WRAPPED = "module."
_REMEDY = "delete that checkpoint's folder to resume from the one before"


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
    _write_json(part / f"rank-{rank}.json", numbers)


def save_answer(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a model by its own names, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + _PART)
    _save_tensors(aside, tensors, {"about": json.dumps(about)})
    aside.replace(path)


def copy_answer(source: Path, path: Path) -> None:
    """A model that was saved before, whole or not at all."""
    aside = path.with_name(path.name + _PART)
    shutil.copyfile(source, aside)
    _sync(aside)
    aside.replace(path)


def load_answer(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A model by its own names, and what its file says of it."""
    if path.suffix in OF_TORCH:
        return _state_dict(path), {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(metadata.get("about", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise BadCheckpoint(
            f"{path} is no whole safetensors file ({error}): it was damaged or cut short; "
            "name another"
        ) from None
    return tensors, about if isinstance(about, dict) else {}


def _state_dict(path: Path) -> dict[str, Tensor]:
    """What `torch.save` wrote of a model, alone or among other things; nothing is executed."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, whatever is wrong with the file
        reason = str(error).strip().split("\n")[0]
        raise BadCheckpoint(
            f"{path} is no state dict that can be read ({reason}): save the model's state_dict(), "
            "not the model, with torch.save or safetensors.torch.save_file"
        ) from None
    for name in ("state_dict", "model"):  # where training scripts keep it
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    named = found.items() if isinstance(found, dict) else ()
    tensors = {str(name): tensor for name, tensor in named if isinstance(tensor, Tensor)}
    if not tensors:
        raise BadCheckpoint(f"{path} holds no tensors by name: save the model's state_dict()")
    # DataParallel and DistributedDataParallel put this before every name.
    wrapped = all(name.startswith(_WRAPPED) for name in tensors)
    return {name.removeprefix(_WRAPPED) if wrapped else name: t for name, t in tensors.items()}


def publish(
    checkpoints: Path,
    segment: int,
    ranks: int,
    run_digest: str,
    keep: int,
    members: Mapping[int, int] | None = None,
) -> Path:
    """All ranks have written: make it count, and let go of old ones.

    The `members` are the ranks that are not dead, by the names that they had at first.
    """
    part, path = _part(checkpoints, segment), folder(checkpoints, segment)
    members = dict(zip(range(ranks), range(ranks), strict=True)) if members is None else members
    about = {"format": FORMAT, "version": VERSION, "segment": segment, "ranks": ranks}
    about |= {"members": list(members.items())}
    for rank in set(range(ranks)) - set(members.values()):  # it may have died while it wrote
        for file in part.glob(f"rank-{rank}.*"):
            file.unlink()
    digests = {file.name: sha256_of(file) for file in sorted(part.iterdir())}
    _write_json(part / "checkpoint.json", about | {"run": run_digest, "sha256": digests})
    part.rename(path)
    _sync(checkpoints)
    for old in finished(checkpoints)[:-keep]:
        shutil.rmtree(old)
    return path


def newest(checkpoints: Path) -> Path:
    """The last whole checkpoint, every file of it checked."""
    whole = finished(checkpoints)
    if not whole:
        raise BadCheckpoint(f"{checkpoints} holds no checkpoint to resume from; start without it")
    path = whole[-1]
    for name, digest in about(path)["sha256"].items():
        _check(path / name, digest)
    return path


def about(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    manifest = path / "checkpoint.json"
    try:
        values = json.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{manifest} cannot be read ({error}); {_REMEDY}") from None
    known = isinstance(values, dict) and values.get("format") == FORMAT
    if not known or values.get("version") != VERSION:
        raise BadCheckpoint(f"{path} is not a checkpoint of this Regatta (version {VERSION})")
    return dict(values)


def members(about: dict[str, Any]) -> dict[int, int]:
    """The ranks in a checkpoint by the names that they had at first."""
    ranks = about["ranks"]
    return dict(about.get("members", zip(range(ranks), range(ranks), strict=True)))


def load_rank(path: Path, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    digests = about(path)["sha256"]
    numbers, tensors = path / f"rank-{rank}.json", path / f"rank-{rank}.safetensors"
    for file in (numbers, tensors):
        if file.name not in digests:
            raise BadCheckpoint(f"{path} has nothing of rank {rank}; {_REMEDY}")
        _check(file, digests[file.name])
    return load_file(tensors), json.loads(numbers.read_text())


def discard_unfinished(checkpoints: Path) -> None:
    for part in checkpoints.glob(f"*{_PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


def _check(file: Path, digest: str) -> None:
    try:
        whole = sha256_of(file) == digest
    except OSError as error:
        raise BadCheckpoint(f"{file} cannot be read ({error.strerror}); {_REMEDY}") from None
    if not whole:
        raise BadCheckpoint(f"{file} is damaged: its contents are not what was saved; {_REMEDY}")


def finished(checkpoints: Path) -> list[Path]:
    """Every checkpoint that counts, oldest first."""
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


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
