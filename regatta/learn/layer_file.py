"""A pretrained layer on disk: one file that is whole or not there, and says of what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regatta.aside import write_aside

_VERSION = 1
_KEY = "regatta pretrained layer"


def write_layer(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """`about`: what it must be asked for with. `state`: how far it is.

    Both stand in the header, so that no kill can part them from the tensors.
    """
    header = json.dumps({"version": _VERSION, "about": about, "state": state})
    digest = _digest(header, tensors)
    write_aside(path, save(dict(tensors), {_KEY: header, "sha256": digest}))


def read_layer(path: Path, about: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state. Executes no code."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to learn it anew") from None
    header = metadata.get(_KEY)
    if header is None:
        raise ValueError(f"{path} is not a pretrained layer: give another folder")
    if metadata.get("sha256") != _digest(header, tensors):
        raise ValueError(f"{path} is damaged: delete it to learn it anew")
    values = json.loads(header)
    if values["version"] != _VERSION:
        raise ValueError(f"{path} is of another Regatta (version {values['version']}): delete it")
    if values["about"] != about:
        _refuse(path, values["about"], about)
    return tensors, dict(values["state"])


def _refuse(path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in {**there, **wanted}:
        if there.get(name) != wanted.get(name):
            raise ValueError(
                f"{path.parent} was pretrained with {name} = {there.get(name)!r}, not "
                f"{wanted.get(name)!r}: ask for the same, or give another folder"
            )


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()
