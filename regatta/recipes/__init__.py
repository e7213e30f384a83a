"""Recipes: functions that return a `Run`; no loop, no argument parsing.

A recipe is named by its function (`teacher`) or by file and function (`mine.py:small`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from regatta.config import Run, nearest
from regatta.recipes import shipped

SHIPPED: dict[str, Callable[[], Run]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        shipped.teacher,
        shipped.vectors,
        shipped.frames,
        shipped.frames_paper,
        shipped.speech,
        shipped.speech_paper,
        shipped.images,
        shipped.images_paper,
    )
}


def load(name: str) -> Run:
    """The run that a recipe describes."""
    if ":" not in name and not name.endswith(".py"):
        if name not in SHIPPED:
            raise ValueError(nearest(name, sorted(SHIPPED), "recipe") + "; or FILE.py:FUNCTION")
        return SHIPPED[name]()
    file, _, function = name.rpartition(":")
    recipe = getattr(_import(Path(file or name)), function, None) if file else None
    if not callable(recipe):
        raise ValueError(f"recipe {name!r}: name a function of that file, FILE.py:FUNCTION")
    run = recipe()
    if not isinstance(run, Run):
        raise ValueError(f"recipe {name!r} returned {type(run).__name__}, not a regatta.Run")
    return run


def absolute(name: str) -> str:
    """The name, valid from every folder."""
    file, colon, function = name.rpartition(":")
    return f"{Path(file).resolve()}:{function}" if colon else name


def summary(recipe: Callable[[], Run]) -> str:
    return (inspect.getdoc(recipe) or "").split("\n")[0]


def _import(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"recipe file {path} does not exist")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"regatta_recipe_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"recipe file {path} is no Python: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
