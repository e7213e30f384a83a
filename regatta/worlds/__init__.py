"""Where ranks live: real processes or a virtual clock."""

import os
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir

from regatta.worlds.leaving import unheard

FOLDER_VARIABLE = "REGATTA_FOLDER_OF_PROCESSES"


def warm_up() -> None:
    """Start the process that ranks are forked from; it imports PyTorch while others still think."""
    os.environ[FOLDER_VARIABLE] = get_temp_dir()
    forkserver.set_forkserver_preload(["regatta.worlds.preload"])
    with unheard():
        forkserver.ensure_running()
