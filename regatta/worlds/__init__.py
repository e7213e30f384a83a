"""Where ranks live: real processes or a virtual clock."""

from multiprocessing import forkserver


def warm_up() -> None:
    """Start the process that ranks are forked from; it imports PyTorch while others still think."""
    forkserver.set_forkserver_preload(["regatta.worlds.preload"])
    forkserver.ensure_running()
