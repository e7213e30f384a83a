"""The files of a checkpoint, and of models: damaged, or made to be taken for whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

import torch

from fuzzing import mutate
from fuzzing.target import Target, played, small
from regatta import checkpoint
from regatta.engine import Rank, Surroundings
from regatta.start import file_of
from regatta.worlds.virtual import VirtualWorld

_MODEL = "model.pt"


def checkpoints(folder: Path) -> Target:
    """One file is replaced; most often all digests are made to agree with it."""
    home = played(folder / "run", "parameter-server")
    kept = home / "checkpoints"
    path = checkpoint.newest(kept)
    torch.save({"weight": torch.ones(3)}, kept / _MODEL)
    files = {f"{path.name}/{file.name}": file for file in sorted(path.iterdir())}
    files |= {name: kept / name for name in (checkpoint.BEST, _MODEL)}
    whole = {name: file.read_bytes() for name, file in files.items()}
    rank = _first_rank()

    def feed(data: bytes) -> None:
        head, _, content = data.partition(b"\n")
        name, agrees = head.rstrip(b"+-").decode(errors="replace"), head.endswith(b"+")
        if name not in files:
            raise ValueError(f"there is no {name!r}")
        try:
            _replace(files[name], content)
            if agrees:
                _let_agree(path, files[name])
            checkpoint.load_answer(kept / _MODEL if name == _MODEL else file_of(home))
            found, _ = checkpoint.newest_whole(kept)
            checkpoint.load_answer(found / checkpoint.ANSWER)
            rank._vault.restore(found)
            rank.replica.state()
        finally:
            _replace(files[name], whole[name])
            _replace(path / "checkpoint.json", whole[f"{path.name}/checkpoint.json"])

    seeds = [name.encode() + b"\n" + content for name, content in whole.items()]
    return Target("files of a checkpoint", seeds, _change, feed)


def _change(chance: Random, data: bytes) -> bytes:
    """The first line says which file it is; a sign after it, whether digests are to agree."""
    head, _, content = data.partition(b"\n")
    agrees = b"+" if chance.random() < 0.7 else b"-"
    is_json = head.endswith(b".json") and chance.random() < 0.9
    return head + agrees + b"\n" + (mutate.values if is_json else mutate.bits)(chance, content)


def _first_rank() -> Rank:
    run = small("parameter-server")
    world = VirtualWorld(run.num_ranks, run.cluster, {}, run.workers)
    comm = world.comms[0]
    around = Surroundings("virtual", run.task.open(), lambda event: None)
    return Rank(run, comm, comm.chance, around)


def _replace(file: Path, content: bytes) -> None:
    """As a new file: the old one may have other names."""
    aside = file.with_name("aside")
    aside.write_bytes(content)
    aside.replace(file)


def _let_agree(path: Path, file: Path) -> None:
    manifest = path / "checkpoint.json"
    try:
        values = json.loads(manifest.read_bytes())
        if file != manifest:
            values["sha256"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        values.pop("own_sha256", None)
        values["own_sha256"] = checkpoint._own_digest(values)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return
    _replace(manifest, json.dumps(values).encode())
