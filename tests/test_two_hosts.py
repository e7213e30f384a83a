"""Two hosts that share nothing but a cable: network namespaces, made and unmade here."""

import json
import sys
from pathlib import Path

import pytest
from faulty import wide
from namespaces import TwoHosts, missing
from real import RECIPES, light_fuse

from regatta import config, runs
from regatta.events import RankEnded, Started, read
from regatta.learn.layout import Layout
from regatta.strategies import registry

LACKING = missing()
pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(LACKING), reason=LACKING or "two hosts")]
ALONE = ["single"]  # has nobody on another host
MODES = ["averaging:period=4", "ring:chunks=2,compress=int8", "gossip:period=3",
         "elastic:mode=async,period=3", "all-reduce:compress=top-k/0.3",
         "parameter-server:mode=sync", "parameter-server:servers=2"]  # fmt: skip
# Vectors that are stated but stay on one host: a worker's beside another in a sum with the server,
# and what the two servers tell each other.
STAYS = {"elastic:mode=async,period=3": 1, "parameter-server:servers=2": 1}
TO_AGREE = 1000  # bytes at most, of numbers that ranks add up at a meeting
OVERHEAD = 0.02  # of what is stated: headers of packets, acknowledgements
OF_A_MESSAGE = 1500  # bytes at most, of a message or a sum: headers of ours and of gloo's
TO_MEET = 300_000  # bytes at most, until all have found each other and when they part


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with TwoHosts(tmp_path_factory.mktemp("hosts")) as two:
        yield two


def train(hosts, slots, spec, folder, *words, restarts=0):
    return hosts.regatta(slots, "train", f"{RECIPES}:wide", "-s", spec, "-o", folder,
                         "--set", "evaluation.every=100", *words, restarts=restarts)  # fmt: skip


@pytest.mark.parametrize("spec", [*(name for name in registry() if name not in ALONE), *MODES])
def test_a_run_across_two_hosts(spec, hosts, tmp_path):
    """Two workers; where there are servers both are on one host, and the servers on the other."""
    strategy = config.component("strategy", spec)
    servers = strategy.num_servers
    before = hosts.crossed
    done = train(hosts, (2, servers) if servers else (1, 1), spec, tmp_path / "run")
    crossed = hosts.crossed - before
    assert done.returncode == 0, done.stderr
    assert runs.replay(tmp_path / "run").identical

    events = read(tmp_path / "run" / "events.jsonl")
    assert next(e for e in events if isinstance(e, Started)).hosts == 2
    ranks = [e for e in events if isinstance(e, RankEnded)]
    layout = Layout(wide().task.model())
    stated = strategy.exchange(2, max(rank.turns for rank in ranks), layout)
    counted = sum(rank.bytes for rank in ranks)
    if stated.is_all:
        assert stated.nbytes <= counted <= stated.nbytes + TO_AGREE, stated
    least = counted - STAYS.get(spec, 0) * layout.nbytes
    bound = least * (1 + OVERHEAD) + stated.messages * OF_A_MESSAGE + TO_MEET
    assert least <= crossed <= bound, (crossed, stated)


@pytest.mark.parametrize("spec", ALONE)
def test_one_worker_alone_is_not_for_two_hosts(spec, hosts, tmp_path):
    done = train(hosts, (1, 1), spec, tmp_path / "run")
    assert done.returncode == 2
    assert f"strategy {spec} has one worker, not 2" in done.stderr
    assert not (tmp_path / "run").exists()


JOURNEY = 0.4  # seconds


@pytest.mark.parametrize("spec", ["all-reduce", "averaging:period=4", "ring"])
def test_a_run_goes_on_when_the_other_host_has_failed(spec, hosts, tmp_path):
    often = ("--set", "checkpointing.every=0.25", "--resumable")
    whole = train(hosts, (1, 1), spec, tmp_path / "whole", *often)
    assert whole.returncode == 0, whole.stderr
    fuse = [word for setting in light_fuse(tmp_path, 1, 12) for word in ("--set", setting)]
    done = train(hosts, (1, 1), spec, tmp_path / "run", *often, *fuse, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "beginning again" in done.stderr
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    assert runs.replay(tmp_path / "run").identical


def digests(folder):
    return {e.rank: e.digest for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)}


def test_a_message_takes_one_journey_and_a_sum_two(tmp_path):
    """As the virtual clock charges them. Were receives not ready, it would be three and four."""
    with TwoHosts(tmp_path, JOURNEY) as two:
        script = Path(__file__).parent / "journeys.py"
        ranks = [two.start(n, sys.executable, script, n, two.addresses[0]) for n in range(2)]
        told, _ = ranks[0].communicate(timeout=50)
        assert [rank.wait(10) for rank in ranks] == [0, 0]
    there_and_back, a_sum = json.loads(told)
    assert 2 * JOURNEY <= there_and_back < 4 * JOURNEY
    assert 2 * JOURNEY <= a_sum < 3.5 * JOURNEY
