"""A model as one flat vector: [parameters | buffers | count].

Parameters become views into the vector. The buffer part of a *weights* vector holds the statistics
that evaluation uses; that of a *gradient* holds what the batch was observed to have, and a step
folds it in with the layer's own momentum (BatchNorm's is set to 1 while training, so that the layer
leaves the bare observation in its buffer). The last element counts how many models or gradients a
vector stands for: the mean of any sum is `total / total[-1]`, and a sum that nobody had anything
to add to counts 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _NormBase

T = TypeVar("T")
# So many elements of all vectors in a step stay in the cache from one operation to the next.
# Measured for 20 M parameters with momentum: 2**14 47 ms, 2**16 29, 2**18 19, 2**22 26, torch's 25.
CHUNK = 2**18
LARGE = 2**16  # elements of a parameter that is worth a place of its own in the cache
_LINE = 16  # elements of a cache line, or two
NOTHING_TO_LEARN = "the model has no parameters to learn"
_OWN_MOMENTUM = "_regatta_own_momentum"


@dataclass(frozen=True)
class Buffer:
    module: nn.Module
    name: str
    momentum: float | None  # None: the running mean of all observations; 1: take the newest
    is_input: bool  # forward reads it, so it must hold the weights' part before

    @property
    def tensor(self) -> Tensor:
        """As it is now: a forward may put another in its place."""
        tensor = self.module._buffers[self.name]
        assert tensor is not None
        return tensor


class Span:
    """A stretch of a model's vector: some parameters, some buffers, and a count."""

    def __init__(
        self,
        num_parameters: int,
        buffers: Sequence[Buffer],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_parameters = num_parameters
        self.buffers = buffers
        self.dtype, self.device = dtype, device
        self._buffer_sizes = [buffer.tensor.numel() for buffer in buffers]
        self.numel = num_parameters + sum(self._buffer_sizes) + 1
        self.nbytes = self.numel * dtype.itemsize

    def empty(self) -> Tensor:
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def zeros(self) -> Tensor:
        return self.zeros_of(self.numel)

    def fold(self, old: Tensor, new: Tensor, tail: Tensor, of: int, share: float) -> None:
        """Fold the observations in the tail of a sum of `of` gradients into weights' statistics.

        `share` is their part in all observations so far, for layers that average all alike.
        """
        if new is not old:
            new[self.num_parameters :] = old[self.num_parameters :]
        if not self.buffers:
            return
        mean = tail[:-1] / of
        pairs = zip(self._tail_pieces(new), mean.split(self._buffer_sizes), strict=True)
        for buffer, (kept, seen) in zip(self.buffers, pairs, strict=True):
            momentum = share if buffer.momentum is None else buffer.momentum
            kept.lerp_(seen, momentum) if momentum != 1.0 else kept.copy_(seen)

    def statistics(self, vector: Tensor) -> list[Tensor]:
        """The buffers in a vector, as views of their own shapes."""
        pieces = zip(self.buffers, self._tail_pieces(vector), strict=True)
        return [piece.view(buffer.tensor.shape) for buffer, piece in pieces]

    def zeros_of(self, numel: int) -> Tensor:
        return torch.zeros(numel, dtype=self.dtype, device=self.device)

    def _tail_pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        if not self.buffers:
            return ()
        pieces: tuple[Tensor, ...] = vector[self.num_parameters : -1].split(self._buffer_sizes)
        return pieces


class Stretch(Span):
    """Parameters `start` .. `stop` of a layout and its buffers `first` .. `last`."""

    def __init__(self, whole: Layout, start: int, stop: int, first: int, last: int) -> None:
        super().__init__(stop - start, whole.buffers[first:last], whole.dtype, whole.device)
        self.start, self.stop = start, stop
        tail = whole.num_parameters + sum(whole._buffer_sizes[:first])
        self._places = (slice(start, stop), slice(tail, tail + sum(self._buffer_sizes)))
        self.matrices = whole.matrices_between(start, stop)

    def cut(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """This stretch of a vector, with the vector's count."""
        return torch.cat([*(vector[place] for place in self._places), vector[-1:]], out=out)

    def paste(self, piece: Tensor, vector: Tensor) -> None:
        """Write a stretch to its place, without its count."""
        parameters, buffers = self._places
        vector[parameters] = piece[: self.num_parameters]
        vector[buffers] = piece[self.num_parameters : -1]


class Layout(Span):
    def __init__(self, model: nn.Module) -> None:
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in self.named]
        if not self.parameters:
            raise ValueError(NOTHING_TO_LEARN)
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) > 1:
            raise ValueError(f"all parameters must share one dtype and device, found {kinds}")
        dtype, device = kinds.pop()
        self.rooms = _rooms([p.numel() for p in self.parameters])
        offsets = accumulate(self.rooms, initial=0)
        self._places = [
            (p.shape, torch.empty(p.shape, device="meta").stride(), offset)
            for p, offset in zip(self.parameters, offsets, strict=False)
        ]
        super().__init__(sum(self.rooms), _float_buffers(model, dtype), dtype, device)
        self._stripes: dict[tuple[int, int], Stretch] = {}
        self._one = torch.ones(1, dtype=self.dtype, device=self.device)

    def initial(self, out: Tensor | None = None) -> Tensor:
        """The model's present parameters and buffers as a vector."""
        pieces = [self.filling(p.detach(), room) for p, room in self._with_rooms(self.parameters)]
        return torch.cat([*pieces, *self._observations(), self._one], out=out)

    def gradient(
        self, gradients: Sequence[Tensor | None], out: Tensor, written: Collection[int] = ()
    ) -> Tensor:
        """These gradients and what the batch left in the buffers, as a vector that counts 1.

        `written` has the numbers of parameters whose places in `out` hold gradients already.
        """
        pieces: list[Tensor] = []  # for the place from `start` to `stop`
        start = stop = 0
        for number, (gradient, room) in enumerate(self._with_rooms(gradients)):
            if number not in written:
                pieces.append(self.filling(gradient, room))
                stop += room
                continue
            if pieces:
                torch.cat(pieces, out=out[start:stop])
                pieces = []
            start = stop = stop + room
            padding = room - self.parameters[number].numel()
            if padding:
                out[stop - padding : stop] = 0.0
        torch.cat([*pieces, *self._observations(), self._one], out=out[start:])
        return out

    def pieces(
        self, gradients: Sequence[Tensor | None], longest: int
    ) -> Iterator[tuple[Tensor, slice]]:
        """These gradients as they lie, cut where they are longer, and where they belong."""
        stop = self.num_parameters
        for gradient, room in zip(reversed(gradients), reversed(self.rooms), strict=True):
            start, stop = stop - room, stop - room
            size = 0 if gradient is None else gradient.numel()
            if gradient is not None:
                flat = gradient.reshape(-1)
                for first in range(0, size, longest):
                    last = min(first + longest, size)
                    piece = flat if size <= longest else flat[first:last]
                    yield piece, slice(start + first, start + last)
            if size < room:
                yield self.zeros_of(room - size), slice(start + size, start + room)

    def tail(self) -> Tensor:
        """The part of a gradient after the parameters."""
        return torch.cat([*self._observations(), self._one]) if self.buffers else self._one

    def stripe(self, number: int, of: int) -> Stretch:
        """One of `of` equal parts of the parameters; the buffers go with the last."""
        if (number, of) not in self._stripes:
            start, stop = (self.num_parameters * n // of for n in (number, number + 1))
            buffers = len(self.buffers)
            first = 0 if number == of - 1 else buffers
            self._stripes[number, of] = Stretch(self, start, stop, first, buffers)
        return self._stripes[number, of]

    @cached_property
    def matrices(self) -> list[tuple[int, int]]:
        return self.matrices_between(0, self.num_parameters)

    def matrices_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Rows and columns of the matrices in a stretch of the parameters, cut where it ends.

        A row is what feeds one unit of a layer; a bias is one row.
        """
        found: list[tuple[int, int]] = []
        for (shape, _, offset), room in self._with_rooms(self._places):
            size = math.prod(shape)
            columns = math.prod(shape[1:]) if len(shape) > 1 else size
            found += _rows_between(start - offset, stop - offset, size, columns)
            padding = room - size
            found += _rows_between(start - offset - size, stop - offset - size, padding, padding)
        return found

    def offset(self, number: int) -> int:
        return self._places[number][2]

    def view(self, vector: Tensor, number: int) -> Tensor:
        """A parameter's place in a vector, in the parameter's shape."""
        return vector.as_strided(*self._places[number])

    def parameters_in(self, vector: Tensor) -> Sequence[Tensor]:
        """The parameters' places in a vector: the model's own, if it points there."""
        if self.points_to(vector):
            return self.parameters
        return [vector.as_strided(*where) for where in self._places]

    def point(self, vector: Tensor) -> None:
        """Make the model's parameters views into this vector."""
        for parameter, where in zip(self.parameters, self._places, strict=True):
            parameter.data = vector.as_strided(*where)

    def points_to(self, vector: Tensor) -> bool:
        address, width = vector.data_ptr(), vector.element_size()
        for parameter, room in self._with_rooms(self.parameters):
            if parameter.data_ptr() != address:
                return False
            address += room * width
        return True

    def fill_buffers(self, vector: Tensor, only_inputs: bool = False) -> None:
        """Copy the weights' statistics to the model's buffers."""
        for buffer, piece in zip(self.buffers, self._tail_pieces(vector), strict=True):
            if buffer.is_input or not only_inputs:
                buffer.tensor.copy_(piece.view(buffer.tensor.shape))

    def _observations(self) -> list[Tensor]:
        return [buffer.tensor.reshape(-1) for buffer in self.buffers]

    def _with_rooms(self, of_parameters: Sequence[T]) -> Iterable[tuple[T, int]]:
        return zip(of_parameters, self.rooms, strict=True)

    def filling(self, tensor: Tensor | None, room: int) -> Tensor:
        """The numbers of one parameter and zeros, as many as there is room for."""
        if tensor is None:
            return self.zeros_of(room)
        flat = tensor.reshape(-1)
        return flat if flat.numel() == room else pad(flat, (0, room - flat.numel()))


def _rooms(sizes: Sequence[int]) -> list[int]:
    """The elements that parameters take in a vector: large ones begin at a cache line.

    Matrix products write their gradients faster there; zeros before them fill the gap.
    """
    rooms: list[int] = []
    offset = 0
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        padding = -(offset + size) % _LINE if following >= LARGE else 0
        rooms.append(size + padding)
        offset += size + padding
    return rooms


def _rows_between(start: int, stop: int, size: int, columns: int) -> list[tuple[int, int]]:
    """Of a matrix of so many elements, cut at elements `start` and `stop`."""
    first, last = max(start, 0), min(stop, size)
    if first >= last:
        return []
    head = min(-first % columns, last - first)  # the rest of a row that was cut
    rows, rest = divmod(last - first - head, columns)
    return [m for m in ((1, head), (rows, columns), (1, rest)) if m[0] and m[1]]


def _float_buffers(model: nn.Module, dtype: torch.dtype) -> list[Buffer]:
    """Every buffer of the parameters' type; others (counters) stay local to their replica."""
    buffers: list[Buffer] = []
    for module in model.modules():
        if getattr(module, "statistics_are_local", False):
            continue
        normalises = (
            isinstance(module, _NormBase)
            and module.track_running_stats
            and not getattr(module, "statistics_are_frozen", False)
        )
        momentum = leave_bare_observations(module) if isinstance(module, _NormBase) else 1.0
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype == dtype:
                buffers.append(Buffer(module, name, momentum, is_input=not normalises))
    return buffers


def leave_bare_observations(module: _NormBase) -> float | None:
    """Let a layer write what it sees to its buffers, and tell its own momentum."""
    if not hasattr(module, _OWN_MOMENTUM):
        setattr(module, _OWN_MOMENTUM, module.momentum)
        module.momentum = 1.0
    momentum: float | None = getattr(module, _OWN_MOMENTUM)
    return momentum


def restore_momentum(model: nn.Module) -> None:
    """Give a model back as it came."""
    for module in model.modules():
        if isinstance(module, _NormBase) and hasattr(module, _OWN_MOMENTUM):
            module.momentum = getattr(module, _OWN_MOMENTUM)
            delattr(module, _OWN_MOMENTUM)


def num_vector_bytes(model: nn.Module) -> int:
    """The size of a model's vector, without making one."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError(NOTHING_TO_LEARN)
    dtype = trained[0].dtype
    buffers = [
        buffer
        for module in model.modules()
        if not getattr(module, "statistics_are_local", False)
        for buffer in module.buffers(recurse=False)
        if buffer.dtype == dtype
    ]
    rooms = _rooms([p.numel() for p in trained])
    return dtype.itemsize * (1 + sum(rooms) + sum(b.numel() for b in buffers))
