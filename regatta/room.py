"""Whether devices have room for what a run keeps on them."""

from __future__ import annotations

from regatta.cluster.site import place_name
from regatta.config import Run
from regatta.learn.layers import split
from regatta.learn.layout import Layout, num_vector_bytes


def refuse_without_room(run: Run) -> None:
    """Too many ranks for a cluster, or too large ones.

    Of memory only vectors are known: weights, a gradient, and what the optimiser remembers.
    Activations come on top, so that what is refused here cannot fit, and what is not may not.
    """
    site = run.cluster.site(run.workers, run.strategy.shares(run.workers))
    if not any(device.memory for device in site.devices):
        return
    needed: dict[int, float] = {}
    for rank, nbytes in enumerate(_vector_bytes(run)):
        owner = site.owners[rank]
        needed[owner] = needed.get(owner, 0.0) + nbytes
    for owner, nbytes in needed.items():
        memory = site.devices[owner].memory
        if memory and nbytes > memory:
            where = place_name(run.cluster, site.places[owner]) if site.places else f"rank {owner}"
            kept = ", ".join(("weights", "a gradient", *run.optimiser.memory))
            raise ValueError(
                f"{where} has {_gigabytes(memory)} of memory, and {_gigabytes(nbytes)} are needed "
                f"there for vectors alone ({kept}): use a smaller model, strategy=pipeline, or a "
                "device with more"
            )


def _vector_bytes(run: Run) -> list[float]:
    """Of every rank, at least. Where there are servers, they have what the optimiser remembers."""
    model, servers = run.task.model(), run.strategy.num_servers
    remembered = len(run.optimiser.memory)
    if run.strategy.needs_layers:
        parts = [part.stretch.nbytes for part in split(model, Layout(model), run.workers)]
        return [(2 + remembered) * nbytes for nbytes in parts]
    nbytes = num_vector_bytes(model)
    everything = (2.0 + remembered) * nbytes
    if not servers:
        return [everything] * run.workers
    return [2.0 * nbytes] * run.workers + [everything / servers] * servers


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB"
