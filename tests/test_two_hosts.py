"""Two hosts that share nothing but a cable: network namespaces, made and unmade here."""

import pytest
from faulty import wide
from namespaces import TwoHosts, missing
from real import RECIPES

from regatta import config, runs
from regatta.events import RankEnded, Started, read
from regatta.learn.layout import Layout

LACKING = missing()
pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(LACKING), reason=LACKING or "two hosts")]
# Two workers, and on the second host a server where there is one.
STRATEGIES = {"all-reduce": (1, 1), "averaging:period=4": (1, 1), "ring": (1, 1),
              "parameter-server": (2, 1)}  # fmt: skip
OVERHEAD = 0.02  # of what is stated: headers of packets, acknowledgements
OF_A_MESSAGE = 1500  # bytes at most, of a message or a sum: headers of ours and of gloo's
TO_MEET = 300_000  # bytes at most, until all have found each other and when they part


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with TwoHosts(tmp_path_factory.mktemp("hosts")) as two:
        yield two


@pytest.mark.parametrize(("spec", "slots"), STRATEGIES.items(), ids=STRATEGIES)
def test_a_run_across_two_hosts(spec, slots, hosts, tmp_path):
    before = hosts.crossed
    done = hosts.regatta(slots, "train", f"{RECIPES}:wide", "-s", spec, "-n", "2", "-o",
                         tmp_path / "run", "--set", "evaluation.every=100")  # fmt: skip
    crossed = hosts.crossed - before
    assert done.returncode == 0, done.stderr
    assert runs.replay(tmp_path / "run").identical
    events = read(tmp_path / "run" / "events.jsonl")
    assert next(e for e in events if isinstance(e, Started)).hosts == 2
    turns = max(e.turns for e in events if isinstance(e, RankEnded))
    strategy = config.component("strategy", spec)
    stated = strategy.exchange(2, turns, Layout(wide().task.model()))
    assert stated.nbytes <= crossed
    bound = stated.nbytes * (1 + OVERHEAD) + stated.messages * OF_A_MESSAGE + TO_MEET
    assert crossed <= bound, (crossed, stated)
