"""A model that replicas compute with, one at a time.

A rank of its own process has a model of its own. The ranks of a virtual world share one: each lets
it point at its own weights when its turn comes, so a thousand workers need one model and as many
vectors as there are different weights: ranks that step from the same weights with the same sum
share what comes of it. Counters and frozen parameters, which are no part of the
vector, are put aside and brought back when the tenant changes. What a module keeps elsewhere (in
plain Python attributes) is no replica's state: it is neither put aside nor saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from regatta.learn.direct import Direct
from regatta.learn.layout import Layout
from regatta.learn.natural import Preconditioner, take_up

if TYPE_CHECKING:
    from regatta.learn.buckets import Backward
    from regatta.learn.part import Memory
    from regatta.learn.replica import Replica


class Step(NamedTuple):
    """One that a replica has made into new memory; it keeps nothing of it alive."""

    maker: Replica
    how: tuple[float, ...]
    start: tuple[ref[Tensor], ref[Memory], ref[Tensor]]  # weights, optimiser's memory, the sum
    end: tuple[ref[Tensor], ref[Memory]]

    def is_from(self, start: tuple[Tensor, Memory, Tensor], how: tuple[float, ...]) -> bool:
        return how == self.how and all(map(_is, self.start, start))

    def is_held_by_its_maker(self) -> bool:
        return all(map(_is, self.end, (self.maker._vector, self.maker._memory)))


class Body:
    def __init__(self, model: nn.Module, shared: bool = False, origin: str = "") -> None:
        self.is_shared = shared
        self.origin = origin  # of its weights, in words, if they were not drawn
        self.last_step: Step | None = None
        self._last_join: tuple[list[ref[Tensor]], ref[Tensor]] | None = None
        self.model = model.train()
        self.layout = Layout(model)
        self.backward: Backward | None = None  # made by the first reduction in buckets
        self._initial = self.layout.initial() if shared else None
        self._nothing = torch.zeros(1, dtype=self.layout.dtype, device=self.layout.device)
        self._points_to = 0  # the address of the weights, which live as long as it does so
        self._tenant: object = None
        self._put_aside: dict[object, dict[str, Tensor]] = {None: self._copy_of_local()}

    @cached_property
    def direct(self) -> Direct:
        """Made by the first gradient: a model that others differentiate is left alone."""
        return Direct(self.model, self.layout)

    def initial(self, empty: Callable[[], Tensor]) -> Tensor:
        """The weights that the model came with: for all tenants, or in memory of the only one's."""
        return self.layout.initial(empty()) if self._initial is None else self._initial

    def enter(
        self, tenant: object, weights: Tensor, preconditioner: Preconditioner | None = None
    ) -> None:
        """Be this tenant's, with these weights and what it has learnt of its layers."""
        take_up(preconditioner)
        if self._tenant is not tenant:
            self._change_tenant(tenant)
        if not self.points_to(weights):
            self.layout.point(weights)
            self._points_to = weights.data_ptr()

    def leave(self) -> None:
        """Point nowhere until somebody enters, so that the memory of the weights can be free.

        Parameters keep their shapes: whoever looks at a model's layers must not mind.
        """
        if not self.is_shared:
            for parameter in self.layout.parameters:
                parameter.data = self._nothing.expand(parameter.shape)
            self._points_to = 0

    def points_to(self, weights: Tensor) -> bool:
        return weights.data_ptr() == self._points_to

    @cached_property
    def nowhere(self) -> Tensor:
        """What stands for the weights of who has none at present."""
        return self.layout.zeros()

    def joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """Pieces in one vector; ranks that share the pieces share the vector."""
        if self._last_join is not None:
            known, whole = self._last_join
            vector, same = whole(), len(known) == len(pieces)
            if vector is not None and same and all(map(_is, known, pieces)):
                return vector
        vector = torch.cat(list(pieces))
        if self.is_shared:
            self._last_join = ([ref(piece) for piece in pieces], ref(vector))
        return vector

    def local(self) -> dict[str, Tensor]:
        """Counters and frozen parameters, as the present tenant has them."""
        within = {id(p) for p in self.layout.parameters}
        within |= {id(buffer.tensor) for buffer in self.layout.buffers}
        everything = self.model.state_dict(keep_vars=True)
        return {name: t.detach() for name, t in everything.items() if id(t) not in within}

    def _change_tenant(self, tenant: object) -> None:
        initial = self._put_aside[None]
        if initial and self._tenant is not None:
            self._put_aside[self._tenant] = self._copy_of_local()
            for name, value in self.local().items():
                value.copy_(self._put_aside.get(tenant, initial)[name])
        self._tenant = tenant

    def _copy_of_local(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.local().items()}


def _is(known: Any, thing: object) -> bool:
    return known() is thing
