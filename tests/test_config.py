"""A run's configuration: settings by name, files, and what is said about mistakes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers import Quadratic

from regatta import strategies, tasks
from regatta.cluster import CLUSTERS, Cluster, machines
from regatta.config import (
    Checkpointing,
    Evaluation,
    Run,
    Stop,
    assign,
    component,
    from_json,
    option_notes,
    options,
    to_json,
)
from regatta.learn import optimisers
from regatta.learn.optimisers import Adam, Sgd
from regatta.resolve import load_cluster
from regatta.strategies import registry
from regatta.strategies.averaging import Averaging
from regatta.strategies.parameter_server import ParameterServer
from regatta.strategies.ring import Ring
from regatta.strategies.single import Single
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors


@pytest.fixture
def run():
    return Run(strategy=Averaging(), workers=4)


# -- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "read", "wanted"),
    [
        ("workers=7", lambda r: r.workers, 7),
        ("workers=1e2", lambda r: r.workers, 100),
        ("seed=-3", lambda r: r.seed, -3),
        ("device=cuda", lambda r: r.device, "cuda"),
        ("stop.epochs=2.5", lambda r: r.stop.epochs, 2.5),
        ("stop.epochs=3", lambda r: r.stop.epochs, 3.0),
        ("stop.target=0.9", lambda r: r.stop.target, 0.9),
        ("stop.target=none", lambda r: r.stop.target, None),
        ("stop.target=", lambda r: r.stop.target, None),
        ("cluster.latency=1e-3", lambda r: r.cluster.latency, 0.001),
        ("optimiser.nesterov=yes", lambda r: r.optimiser.nesterov, True),
        ("optimiser.nesterov=0", lambda r: r.optimiser.nesterov, False),
        ("strategy.period=16", lambda r: r.strategy.period, 16),
        ("task.hidden=64,32,8", lambda r: r.task.hidden, (64, 32, 8)),
        ("task.hidden=(64,32)", lambda r: r.task.hidden, (64, 32)),
        ("task.hidden=64", lambda r: r.task.hidden, (64,)),
        (" stop.samples = 12 ", lambda r: r.stop.samples, 12),
        ("strategy=ring", lambda r: r.strategy, Ring()),
        ("strategy=averaging:period=3", lambda r: r.strategy, Averaging(period=3)),
        ("optimiser=adam", lambda r: r.optimiser, Adam()),
        ("task=vectors:sizes=3,4,train=100", lambda r: r.task, Vectors(sizes=(3, 4), train=100)),
    ],
)  # fmt: skip
def test_every_type_can_be_set(run, setting, read, wanted):
    value = read(assign(run, [setting]))
    assert value == wanted
    assert type(value) is type(wanted)


def test_settings_apply_in_order_and_leave_the_rest(run):
    changed = assign(run, ["stop.epochs=2", "seed=5", "stop.epochs=3"])
    assert changed == replace(run, stop=Stop(epochs=3.0), seed=5)
    assert run.seed == 0


def test_naming_the_present_component_keeps_its_options(run):
    run = assign(run, ["strategy.period=3", "strategy=averaging"])
    assert run.strategy == Averaging(period=3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("wrokers=3", r"unknown setting 'wrokers': did you mean workers\?"),
        ("stop.epoch=3", r"unknown part of stop.epoch: 'epoch': did you mean epochs\?"),
        ("strategy=rign", r"unknown strategy 'rign': did you mean ring\?"),
        ("strategy=averaging:perod=3", r"unknown averaging option 'perod': did you mean period\?"),
        ("strategy=averaging:period", r"strategy option 'period' is not of the form name=value"),
        ("optimiser=sgdd", r"unknown optimiser 'sgdd': did you mean sgd\?"),
        ("task=techer", r"unknown task 'techer': did you mean teacher\?"),
        ("zzzzzzzz=1", r"unknown setting 'zzzzzzzz': \(known: task, strategy,"),
        ("workers", "--set 'workers' is not of the form name=value"),
        ("workers.more=1", "workers has no parts"),
        ("stop=3", "stop cannot be set as a whole; set one of its parts: stop.NAME=VALUE"),
        ("workers=three", "workers='three': expected a value of type int"),
        ("workers=2.5", "workers='2.5': expected a value of type int"),
        ("stop.epochs=long", "stop.epochs='long': expected a value of type float"),
        ("optimiser.nesterov=maybe", "optimiser.nesterov='maybe': expected a value of type bool"),
        ("task.hidden=3,x", "task.hidden='3,x': expected a value of type"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_the_nearest(run, setting, message):
    with pytest.raises(ValueError, match=message):
        assign(run, [setting])


@pytest.mark.parametrize("setting", ["workers=2.5e0", "stop.samples=1e400", "minibatch=1e-1"])
def test_a_number_that_is_not_whole_is_refused_however_written(run, setting):
    with pytest.raises(ValueError, match="expected a value of type int"):
        assign(run, [setting])


# -- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Run(workers=0), "workers must be 1 or more, not 0"),
        (lambda: Run(minibatch=0), "minibatch must be 1 or more"),
        (lambda: Run(threads=-1), "threads must be 1 or more"),
        (lambda: Run(bucket_bytes=-2), "bucket_bytes must be 0 or more"),
        (lambda: Run(device="tpu"), "device must be cpu or cuda, not tpu"),
        (lambda: Run(workers=2), "strategy single has one worker, not 2: use --workers 1"),
        (lambda: Averaging(period=0), "averaging: period must be 1 or more, not 0"),
        (lambda: Stop(epochs=0), "stop.epochs must be a number more than 0"),
        (lambda: Stop(samples=-1), "stop.samples"),
        (lambda: Stop(seconds=-1), "stop.seconds"),
        (lambda: Evaluation(every=0), "evaluation.every must be more than 0"),
        (lambda: Checkpointing(every=-1), "checkpointing.every"),
        (lambda: Checkpointing(keep=0), "checkpointing.keep"),
        (lambda: Cluster(bandwidth=0), "cluster.bandwidth must be more than 0"),
        (lambda: Cluster(merge_bandwidth=-1), "cluster.merge_bandwidth must be more than 0"),
        (lambda: Cluster(straggle=0), "cluster.straggle must be more than 0"),
        (lambda: Cluster(latency=-1), "cluster.latency must not be negative"),
        (lambda: Cluster(jitter=-0.1), "cluster.jitter must not be negative"),
        (lambda: Cluster(stragglers=-1), "cluster.stragglers must not be negative"),
        (lambda: Vectors(sizes=(3,)), "task.sizes needs at least an input and an output"),
    ],
)  # fmt: skip
def test_bad_values_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


@pytest.mark.parametrize("epochs", [float("nan"), float("inf")])
def test_an_endless_run_is_refused(epochs):
    """Turns are whole numbers: a run of so many epochs could not even begin."""
    with pytest.raises(ValueError, match=r"stop\.epochs"):
        Stop(epochs=epochs)


def test_servers_are_further_ranks():
    assert Run(strategy=Ring(), workers=4).num_ranks == 4
    assert Run(strategy=ParameterServer(), workers=4).num_ranks == 5


# -- there and back -------------------------------------------------------------------------


def there_and_back(run, base=None):
    return from_json(json.loads(json.dumps(to_json(run))), base or Run())


@pytest.mark.parametrize("name", strategies.registry())
def test_every_strategy_survives_json(name):
    run = Run(strategy=strategies.registry()[name]())
    assert there_and_back(run) == run


@pytest.mark.parametrize("name", tasks.registry())
def test_every_task_survives_json(name):
    run = Run(task=tasks.registry()[name]())
    assert there_and_back(run) == run


@pytest.mark.parametrize("name", optimisers.registry())
def test_every_optimiser_survives_json(name):
    run = Run(optimiser=optimisers.registry()[name]())
    assert there_and_back(run) == run


def test_every_field_survives_json():
    run = Run(
        task=Teacher(hidden=(5, 4), train=100),
        strategy=Averaging(period=3),
        optimiser=Sgd(lr=0.3, momentum=0.5, weight_decay=0.1, nesterov=True),
        workers=3,
        minibatch=7,
        seed=11,
        stop=Stop(epochs=1.5, samples=99, seconds=3.5, target=0.5),
        evaluation=Evaluation(every=0.5),
        checkpointing=Checkpointing(every=0.25, keep=5),
        cluster=Cluster(latency=1.0, jitter=0.5, stragglers=2),
        threads=2,
        device="cuda",
        bucket_bytes=17,
    )
    assert there_and_back(run) == run


def test_a_task_of_ones_own_survives_json_by_its_recipe():
    run = Run(task=Quadratic(inputs=3))
    assert there_and_back(run, base=Run(task=Quadratic())) == run
    with pytest.raises(ValueError, match="unknown task 'quadratic'"):
        there_and_back(run)


def test_an_unknown_field_in_json_is_refused():
    values = to_json(Run(strategy=Averaging()))
    values["strategy"]["perod"] = 3
    with pytest.raises(ValueError, match=r"unknown field of Averaging 'perod': did you mean perio"):
        from_json(values, Run())


# -- components -----------------------------------------------------------------------------


def test_components_from_text():
    assert component("strategy", "averaging") == Averaging()
    assert component("strategy", "averaging:") == Averaging()
    assert component("strategy", "averaging:period=4") == Averaging(period=4)
    assert component("optimiser", "sgd:lr=1,momentum=0.5") == Sgd(lr=1.0, momentum=0.5)
    assert component("task", "teacher:hidden=3,4,5,train=8") == Teacher(hidden=(3, 4, 5), train=8)


def test_options_have_their_defaults():
    assert options(Averaging)["period"] == 10
    assert options(Ring)["chunks"] == 1
    assert options(Single) == {}


@pytest.mark.parametrize("name", registry())
def test_every_option_says_what_it_means(name):
    kind = registry()[name]
    assert set(option_notes(kind)) == set(options(kind))


# -- cluster files --------------------------------------------------------------------------


def test_shipped_clusters_go_by_name():
    assert load_cluster("default") == Cluster()
    assert {load_cluster(name) for name in CLUSTERS} == set(CLUSTERS.values())


@pytest.mark.parametrize("name", machines.described())
def test_shipped_machines_say_what_they_are_and_where_it_comes_from(name):
    assert load_cluster(name) != Cluster()
    first, *others = machines.described()[name].splitlines()
    assert first.startswith("# ")
    values = [line for line in others if "=" in line]
    # These are names, and no figures.
    named = ("per_host", "name", "count", "devices", "link", "card", "paths", "groups")
    assert all("#" in line for line in values if not line.startswith(named))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("mine.toml", "latency = 0.5\nstragglers = 1\n"),
        ("mine.json", '{"latency": 0.5, "stragglers": 1}'),
        ("mine.yaml", "latency: 0.5  # seconds\nstragglers: 1\n"),
    ],
)
def test_cluster_files(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    assert load_cluster(str(tmp_path / file)) == Cluster(latency=0.5, stragglers=1)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mine.toml", "latencies = 1", r"unknown field of Cluster 'latencies': did you mean laten"),
        ("mine.toml", "latency = ", "mine.toml cannot be read"),
        ("mine.json", "{", "mine.json cannot be read"),
        ("mine.json", '{"bandwidth": 0}', "cluster.bandwidth must be more than 0"),
        ("mine.toml", 'latency = "fast"', "latency"),
        ("mine.json", '{"stragglers": null}', "stragglers"),
        ("mine.json", "[]", "mine.json"),
        ("mine.yaml", "latency: [", "mine.yaml cannot be read"),
        ("mine.yaml", "!!python/object/apply:os.getcwd []", "mine.yaml cannot be read"),
        ("mine.toml", "bandwidth = -1", r"mine.toml: cluster.bandwidth must be more than 0"),
        ("mine.toml", "bandwidth = nan", r"bandwidth must be more than 0"),
        ("mine.toml", "pauses = 2", "a chance, 1 at most"),
    ],
)
def test_bad_cluster_files_are_named(tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_cluster(str(tmp_path / file))


def test_a_missing_cluster_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.toml: No such file"):
        load_cluster(str(tmp_path / "nowhere.toml"))


def test_an_unknown_cluster_gets_the_nearest():
    with pytest.raises(ValueError, match=r"unknown cluster 'ethernet': did you mean ethernet-1"):
        load_cluster("ethernet")
