"""Checkpoints: tensors as safetensors, the rest JSON; written aside and renamed when whole.

    checkpoints/000004/            one folder a meeting
        checkpoint.json            what it is, of how many ranks, every file's digest and its own
        rank-0.json                numbers of a rank
        rank-0.safetensors
        answer.safetensors         the model by its own names
        best.safetensors           the best model until then
    checkpoints/best.safetensors   the best model so far, by the task's metric

Loading executes no code, and a file that is cut short or changed is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from regatta import plain
from regatta.aside import CannotWrite, sync, write_aside, writing

FORMAT = "regatta checkpoint"
VERSION = 2  # version 1 had no digest of its own in checkpoint.json
BEST, ANSWER = "best.safetensors", "answer.safetensors"
OF_TORCH = (".pt", ".pth")  # files that `torch.save` wrote
_PART, _DAMAGED = ".part", ".damaged"
_WRAPPED = "module."
_REMEDY = "delete that checkpoint's folder to use the one before"


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
    _make(part)
    _save_tensors(part / f"rank-{rank}.safetensors", tensors)
    _write_json(part / f"rank-{rank}.json", numbers)


def save_answer(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a model by its own names, whole or not at all."""
    _make(path.parent)
    aside = path.with_name(path.name + _PART)
    digest = _digest_of(tensors, about)  # in one text: of several the file would mix the order
    _save_tensors(aside, tensors, {"about": json.dumps(about | {"sha256": digest})})
    with writing(path):
        aside.replace(path)


def copy_answer(source: Path, path: Path) -> None:
    """A model that was saved before, whole or not at all."""
    aside = path.with_name(path.name + _PART)
    with writing(path):
        aside.unlink(missing_ok=True)
        try:
            os.link(source, aside)  # nobody writes to it again: what is better is another file
        except OSError:
            shutil.copyfile(source, aside)
            sync(aside)
        aside.replace(path)


def keep_best(checkpoints: Path, segment: int) -> None:
    """The best model until now, for who goes on from here."""
    if (checkpoints / BEST).exists():
        copy_answer(checkpoints / BEST, _part(checkpoints, segment) / BEST)


def take_up_best(path: Path) -> None:
    """What was found later than this checkpoint is found anew."""
    best = path.parent / BEST
    if (path / BEST).exists():
        copy_answer(path / BEST, best)
    elif about(path)["version"] == VERSION:
        best.unlink(missing_ok=True)


def load_answer(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A model by its own names, and what its file says of it."""
    if path.suffix in OF_TORCH:
        return _state_dict(path), {}
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = plain.loads(metadata.get("about", "{}"))
        about = found if isinstance(found, dict) else {}
        digest = about.pop("sha256", None)  # others' files have none
        if digest not in (None, _digest_of(tensors, about)):
            raise ValueError("its contents are not what was saved")
    except (OSError, SafetensorError, ValueError) as error:
        raise BadCheckpoint(
            f"{path} is no whole safetensors file ({error}): it was damaged or cut short; "
            "name another"
        ) from None
    return tensors, about


def _state_dict(path: Path) -> dict[str, Tensor]:
    """What `torch.save` wrote of a model, alone or among other things; nothing is executed."""
    try:
        with warnings.catch_warnings():  # of protocols that it may not know
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, whatever is wrong with the file
        reason = plain.shortened(plain.printable(str(error).strip().split("\n")[0]))
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
    for record in checkpoints.parent.glob("*.jsonl"):  # what was written down until here counts too
        with writing(record):
            sync(record)
    part, path = _part(checkpoints, segment), folder(checkpoints, segment)
    members = dict(zip(range(ranks), range(ranks), strict=True)) if members is None else members
    about = {"format": FORMAT, "version": VERSION, "segment": segment, "ranks": ranks}
    about |= {"members": list(members.items())}
    for rank in set(range(ranks)) - set(members.values()):  # it may have died while it wrote
        for file in part.glob(f"rank-{rank}.*"):
            file.unlink()
    digests = {file.name: sha256_of(file) for file in sorted(part.iterdir())}
    about |= {"run": run_digest, "sha256": digests}
    _write_json(part / "checkpoint.json", about | {"own_sha256": _own_digest(about)})
    with writing(path):
        sync(part)
        part.rename(path)
        sync(checkpoints)
    for old in finished(checkpoints)[:-keep]:
        with suppress(OSError):  # first of all it counts no more; what is left over does no harm
            shutil.rmtree(old.rename(old.with_suffix(_PART)))
    return path


@dataclass(frozen=True)
class _About:
    """Of what types the values of a checkpoint.json are."""

    format: str
    version: int
    segment: int
    ranks: int
    run: str
    sha256: dict[str, str]
    own_sha256: str = ""
    members: list[tuple[int, int]] | None = None  # earlier versions: all that there are

    def __post_init__(self) -> None:
        if self.members is not None and not self.members:
            raise ValueError("nobody is a member")


def newest(checkpoints: Path) -> Path:
    """The last checkpoint, every file of it checked."""
    path = _some(checkpoints)[-1]
    check(path)
    return path


def newest_whole(checkpoints: Path) -> tuple[Path, list[str]]:
    """The last checkpoint that is whole, and what is wrong with those after it."""
    complaints: list[str] = []
    for path in reversed(_some(checkpoints)):
        try:
            check(path)
        except BadCheckpoint as error:
            complaints.append(str(error).removesuffix(f"; {_REMEDY}"))
        else:
            return path, [f"{complaint}; going on from {path.name}" for complaint in complaints]
    raise BadCheckpoint("; ".join(complaints) + ": no checkpoint is whole, begin anew")


def set_aside_after(path: Path) -> None:
    """Checkpoints after this one are damaged: another run's meetings will have their numbers."""
    for later in finished(path.parent):
        if later.name > path.name:
            with writing(later):
                shutil.rmtree(later.with_suffix(_DAMAGED), ignore_errors=True)
                later.rename(later.with_suffix(_DAMAGED))


def _some(checkpoints: Path) -> list[Path]:
    if whole := finished(checkpoints):
        return whole
    raise BadCheckpoint(f"{checkpoints} holds no checkpoint to resume from; start without it")


def check(path: Path) -> None:
    """Every file of a checkpoint against its digest."""
    for name, digest in about(path)["sha256"].items():
        _check(path / name, digest)


def about(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    manifest = path / "checkpoint.json"
    try:
        values = plain.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{manifest} cannot be read ({error}); {_REMEDY}") from None
    known = isinstance(values, dict) and values.get("format") == FORMAT
    if not known or values.get("version") not in (1, VERSION):
        raise BadCheckpoint(f"{manifest} is none of this Regatta (version {VERSION}); {_REMEDY}")
    own = values.pop("own_sha256", "")
    try:
        told = plain.made(_About, values)
        if told.version == VERSION and own != _own_digest(values):
            raise ValueError("its contents are not what was saved")
        if path.name != folder(path, told.segment).name or any("/" in n for n in told.sha256):
            raise ValueError("it is of another folder")
    except ValueError as error:
        raise BadCheckpoint(f"{manifest} is damaged: {error}; {_REMEDY}") from None
    return dict(values)


def members(about: dict[str, Any]) -> dict[int, int]:
    """The ranks in a checkpoint by the names that they had at first."""
    ranks = about["ranks"]
    return dict(about.get("members") or zip(range(ranks), range(ranks), strict=True))


def _own_digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load_rank(path: Path, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    digests = about(path)["sha256"]
    numbers, tensors = path / f"rank-{rank}.json", path / f"rank-{rank}.safetensors"
    for file in (numbers, tensors):
        if file.name not in digests:
            raise BadCheckpoint(f"{path} has nothing of rank {rank}; {_REMEDY}")
        _check(file, digests[file.name])
    try:
        values = plain.loads(numbers.read_text())
        if not isinstance(values, dict):
            raise ValueError(f"{numbers.name} holds no JSON object")
        return load_file(tensors), values
    except (OSError, SafetensorError, ValueError) as error:
        raise BadCheckpoint(f"{path} cannot be read ({error}); {_REMEDY}") from None


def discard_unfinished(checkpoints: Path) -> None:
    for part in checkpoints.glob(f"*{_PART}"):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


def _check(file: Path, digest: str) -> None:
    try:
        whole = file.is_file() and sha256_of(file) == digest
    except OSError as error:
        raise BadCheckpoint(f"{file} cannot be read ({error.strerror}); {_REMEDY}") from None
    if not whole:
        raise BadCheckpoint(f"{file} is damaged: its contents are not what was saved; {_REMEDY}")


def finished(checkpoints: Path) -> list[Path]:
    """Every checkpoint that counts, oldest first."""
    return sorted(p for p in checkpoints.glob("[0-9]*") if p.name.isdecimal())


def _save_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():  # safetensors refuses two names for one memory
        tensor = tensor.detach().contiguous()
        own[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    with writing(path):
        try:
            save_file(own, path, metadata)
        except SafetensorError as error:
            number = re.search(r"\(os error (\d+)\)", str(error))
            raise CannotWrite(
                int(number[1]) if number else None, f"cannot write to {path}: {error}"
            ) from None
        sync(path)


def _digest_of(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """Of all that a file of a model says, however it lies there."""
    digest = hashlib.sha256(json.dumps(about).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(errors="replace"))
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_aside(path, (json.dumps(values, indent=1) + "\n").encode())


def _make(folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
