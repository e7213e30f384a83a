"""A model as a row of layers, and where to cut it for the stages of a pipeline."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from regatta.learn.layout import Layout, Stretch

_NOT_IN_ONE_STAGE = (
    "pipeline needs every weight and buffer of a model in one stage, in the order in which the "
    "model defines them, but some belong to no layer, to several or stand elsewhere: use fewer "
    "workers, let layers() return all layers in that order, or use another strategy"
)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that a model applies one after another."""
    if inspect.ismethod(own := getattr(model, "layers", None)):
        return list(own())
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return [
            inner
            for layer in model
            for inner in (layers_of(layer) if type(layer) is nn.Sequential else [layer])
        ]
    raise ValueError(
        f"pipeline splits a model by its layers, and {type(model).__name__} is no nn.Sequential: "
        "give it a method layers() that returns them in order, or use another strategy"
    )


@lru_cache(maxsize=64)
def even_bounds(sizes: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Where to cut a row of layers, so that the largest stage is as small as can be.

    Of several such cuts the most even one; what has no size stays with what stands before it.
    """
    before = list(accumulate(sizes, initial=0))
    impossible: tuple[tuple[float, float], tuple[int, ...]] = ((math.inf, math.inf), ())
    # For every number of first layers: the largest stage so far, the sum of squares, the bounds.
    best = [((0.0, 0.0), (0,)), *[impossible] * len(sizes)]
    for stage in range(1, stages + 1):
        longer = [impossible] * (len(sizes) + 1)
        for stop in range(stage, len(sizes) + 1):
            for start in range(stage - 1, stop):
                (largest, squares), bounds = best[start]
                size = before[stop] - before[start]
                key = (max(largest, size), squares + size * size)
                if bounds and key <= longer[stop][0]:
                    longer[stop] = (key, (*bounds, stop))
        best = longer
    return best[-1][1]


@dataclass(frozen=True)
class Slice:
    """Consecutive layers of a model, and their stretch of its vector."""

    layers: nn.Sequential
    stretch: Stretch
    numbers: Mapping[str, int]  # of parameters within the stretch, by their names in `layers`
    shapes: Sequence[torch.Size]  # of the stretch's parameters
    rooms: Sequence[int]  # that they take up
    buffers: Sequence[str]  # the names in `layers` of the stretch's buffers

    def parameters_in(self, vector: Tensor) -> list[Tensor]:
        """The parameters in a stretch, as views."""
        pieces = vector[: self.stretch.num_parameters].split(list(self.rooms))
        shaped = zip(pieces, self.shapes, strict=True)
        return [piece[: math.prod(shape)].view(shape) for piece, shape in shaped]


def split(model: nn.Module, layout: Layout, stages: int) -> list[Slice]:
    """A model's layers in so many stages, even by their numbers of parameters."""
    layers = layers_of(model)
    if stages > len(layers):
        raise ValueError(
            f"pipeline gives every worker a layer, and the model has {len(layers)} for "
            f"{stages} workers: use --workers {len(layers)} or fewer"
        )
    slices: list[Slice] = []
    parameters = buffers = 0  # that are in a stage
    for start, stop in pairwise(even_bounds(_sizes(layers, layout), stages)):
        part = _slice(nn.Sequential(*layers[start:stop]), layout, parameters, buffers)
        parameters += len(part.shapes)
        buffers += len(part.buffers)
        slices.append(part)
    if parameters < len(layout.parameters) or buffers < len(layout.buffers):
        raise ValueError(_NOT_IN_ONE_STAGE)
    return slices


def _sizes(layers: list[nn.Module], layout: Layout) -> tuple[int, ...]:
    """The numbers of parameters; one that layers share counts where it stands first."""
    new = {id(parameter): parameter.numel() for parameter in layout.parameters}
    return tuple(sum(new.pop(id(p), 0) for p in layer.parameters()) for layer in layers)


def _slice(layers: nn.Sequential, layout: Layout, first: int, first_buffer: int) -> Slice:
    """The slice of these layers, which begins at these parameters and buffers of the layout."""
    place = {id(parameter): number for number, parameter in enumerate(layout.parameters)}
    modules = {id(module): prefix for prefix, module in layers.named_modules()}
    numbers = {
        f"{prefix}.{name}": place[id(parameter)] - first
        for prefix, module in layers.named_modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in place
    }
    own_buffers = [n for n, b in enumerate(layout.buffers) if id(b.module) in modules]
    count, stop_buffer = len(set(numbers.values())), first_buffer + len(own_buffers)
    if set(numbers.values()) != set(range(count)):
        raise ValueError(_NOT_IN_ONE_STAGE)
    if own_buffers != list(range(first_buffer, stop_buffer)):
        raise ValueError(_NOT_IN_ONE_STAGE)
    start, stop = (sum(layout.rooms[:n]) for n in (first, first + count))
    return Slice(
        layers,
        Stretch(layout, start, stop, first_buffer, stop_buffer),
        numbers,
        [parameter.shape for parameter in layout.parameters[first : first + count]],
        layout.rooms[first : first + count],
        [f"{modules[id(b.module)]}.{b.name}" for b in layout.buffers[first_buffer:stop_buffer]],
    )
