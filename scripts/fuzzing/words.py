"""What people type: settings, names with options, cluster files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

from fuzzing import mutate
from fuzzing.target import Target
from regatta import config, recipes
from regatta.comm import Load
from regatta.config import Run
from regatta.fingerprint import run_digest
from regatta.race.entries import label_lanes, lanes_of
from regatta.race.grid import grid_of
from regatta.resolve import load_cluster, split_specs

_SETTINGS = (
    "stop.epochs=3",
    "workers=4\nminibatch=32",
    "optimiser=adam:lr=0.003\noptimiser.lr=0.1",
    "strategy=averaging:period=16,outer=bmuf",
    "task.hidden=128,128\ntask.train=1e4",
    "stop.target=0.9\nstop.last=3\nstop.patience=2",
    "schedule=hold:until=0.5,final=0.01\nscaling.by=workers\nscaling.warm_up=2",
    "cluster.latency=1e-5\ncluster.faults=crash rank=1 at=4",
    "early_minibatches=8,16\nbucket_bytes=-1\ntransport=sockets",
    "evaluation.every=0.5\ncheckpointing.every=1\ncheckpointing.keep=2\nrecording.usage=0.5",
    "gradient=natural:history=100\nthreads=2\ndevice=cpu\nseed=7",
    "task.train=synth-en\ntask.minutes=20\nstart.run=runs/a\nstart.head=kept",
    "cluster.curve=\ncluster.paces=1,1.1\ncluster.jitter=0.1\ncluster.devices=4",
    "optimiser.lr=0.1,0.3\nstop.epochs=1;2",
)
_SPECS = (
    "parameter-server:mode=async,servers=2,max_staleness=3,damp=staleness",
    "parameter-server:mode=sync,backup=1",
    "averaging:period=16,outer=diloco,momentum=0.9,nesterov=true",
    "averaging:jobs=2,final_lr=0.1,drop=1,state=averaged,compress=int8",
    "ring:chunks=4,compress=one-bit",
    "ring:group=host",
    "elastic:alpha=0.1,mode=async",
    "gossip",
    "pipeline:micro=4",
    "all-reduce:compress=top-k/0.01,feedback=false",
    "all-reduce:compress=power-sgd/2",
    "adam:lr=0.003,beta1=0.9",
    "rmsprop:eps=1",
    "natural:history=100",
    "halving:theta=0.01",
    "hold:until=0.7,final=0.02",
    "kaldi:final=0.1",
    "teacher:hidden=64,64,train=1000",
    "vectors:sizes=3,4",
    "speech:train=a,dev=b",
    "single all-reduce averaging:period=4,state=local;ring@8",
    "gossip,ring:chunks=2,averaging:period=3",
)
_TOML = """toml
latency = 5e-6
bandwidth = 12.5e9
per_host = 2
curve = [[32, 0.004], [256, 0.02]]
paces = [1.0, 1.02]
faults = ["crash rank=1 at=4", "slow rank=1 factor=3 from=2 to=5", "cut host=0 from=1 to=2"]
sharing = "fair"
oversubscribe = true
jitter = 0.1
"""
_YAML = """yaml
latency: 5.0e-6  # seconds
curve: [[32, 0.004], [256, 0.02]]
paces: &paces [1.0, 1.02]
faults:
  - crash rank=1 at=4
sharing: fair
duplex: false
devices: 8
"""
_BOMB = """yaml
a: &a [x,x,x]
b: &b [*a,*a,*a]
c: &c [*b,*b,*b]
latency: &d [*c,*c,*c]
bandwidth: [*d,*d,*d]
"""
_JSON = """json
{"latency": 5e-06, "curve": [[32, 0.004], [256, 0.02]], "paces": [1.0], "pauses": 0.1,
"faults": ["slow rank=1 factor=3 from=2 to=5"], "jitter": 0.2, "jitter_shape": "normal",
"stragglers": 1, "uneven": 0.1, "price_per_hour": 3, "per_host": 2, "devices": 4}
"""
_PARTS = ("strategy", "optimiser", "schedule", "gradient", "task")


def settings(_folder: Path) -> Target:
    shipped = [recipes.load(name) for name in recipes.SHIPPED]
    together = config.component("strategy", "averaging")
    known = [*shipped, *(replace(run, strategy=together, workers=2) for run in shipped)]
    known += [known[0], known[len(shipped)]] * 8  # most examples are of the first task

    def feed(data: bytes) -> None:
        given = [line for line in _as_argument(data).split("\n") if line]
        run = known[len(data) % len(known)]
        if len(data) % 5 == 0:
            grid_of(run, given).runs(run)
        else:
            _use(config.assign(run, given))

    return Target("--set", _bytes(_SETTINGS), mutate.words, feed)


def specs(_folder: Path) -> Target:
    teacher = recipes.load("teacher")

    def feed(data: bytes) -> None:
        text = _as_argument(data)
        if len(data) % 4 == 0:
            label_lanes(lanes_of(teacher, split_specs(text), [2, 4]))
            return
        part = _part_of(text)
        made = config.component(part, text)
        assert config.component(part, config.spec_of(made)) == made
        if part == "strategy":
            _use(Run(strategy=made, workers=1 if made.name == "single" else 4))

    return Target("names with options", _bytes(_SPECS), mutate.words, feed)


def clusters(folder: Path) -> Target:
    def feed(data: bytes) -> None:
        kind, _, content = data.partition(b"\n")
        suffix = kind.decode() if kind in (b"toml", b"yaml", b"json") else "toml"
        path = folder / f"cluster.{suffix}"
        path.write_bytes(content)
        cluster = load_cluster(str(path))
        for rank in range(4):
            cluster.computing(rank, 4)(Load(samples=32, nbytes=1000, stepped=1000))
        hosts = cluster.hosts(4)
        cluster.all_reduce(1 << 20, 4, len(set(hosts)))
        cluster.broadcast(1 << 20, 4, len(set(hosts)))
        cluster.faults_of(5, max(hosts) + 1)

    return Target("cluster files", _bytes((_TOML, _JSON, _YAML, _JSON, _BOMB)), _change, feed)


def _change(chance: Random, data: bytes) -> bytes:
    kind, _, content = data.partition(b"\n")
    in_values = kind == b"json" and chance.random() < 0.9
    return kind + b"\n" + (mutate.values if in_values else mutate.words)(chance, content)


def _use(run: Run) -> None:
    """What every command does with a run before anything is learnt."""
    assert config.from_json(config.to_json(run), run) == run
    run_digest(run)
    config.spec_of(run.strategy)
    few = min(run.workers, 8)
    run.strategy.groups(few, [0] * few)
    assert run.num_ranks >= run.workers


def _part_of(text: str) -> str:
    name = text.partition(":")[0]
    return next((p for p in _PARTS if name in config._REGISTRIES[p]()), _PARTS[len(text) % 5])


def _as_argument(data: bytes) -> str:
    """As the system hands words to a program."""
    return data.decode(errors="surrogateescape").replace("\0", "")


def _bytes(texts: tuple[str, ...]) -> list[bytes]:
    return [text.encode() for text in texts]
