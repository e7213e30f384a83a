"""Several hosts, as far as one machine can be several: memory inside, sockets between."""

from pathlib import Path

import pytest
from real import torchrun

from regatta import folders, runs

pytestmark = pytest.mark.real
RECIPE = f"{Path(__file__).parent / 'faulty.py'}:on_hosts"
CASES = {"all-reduce": 4, "ring:group=host": 4, "averaging": 3, "parameter-server:mode=mixed": 3}


@pytest.mark.parametrize(("strategy", "workers"), CASES.items(), ids=CASES)
@pytest.mark.parametrize("transport", ["auto", "sockets"])
def test_a_run_on_several_hosts_replays(strategy, workers, transport, tmp_path):
    folder = tmp_path / "run"
    servers = int("server" in strategy)
    done = torchrun(
        workers + servers, "train", RECIPE, "-s", strategy, "-n", str(workers), "-o", folder,
        "--set", "stop.epochs=1", "--set", f"transport={transport}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, stored = folders.open_plan(folder)
    assert stored["hosts"] == [rank // 2 for rank in range(workers + servers)]
    assert runs.replay(folder).identical
