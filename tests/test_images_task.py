"""The task `images`: batches, loss, evaluation, statistics, and runs under strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_images import mnist, pictures
from torch import nn
from torch.nn.functional import cross_entropy

from regatta import recipes
from regatta.config import Run, Stop, component
from regatta.data.images.augment import Augmentation
from regatta.data.images.source import Shape
from regatta.data.order import Order
from regatta.data.seeds import mixed_seed
from regatta.engine import Rank, Surroundings
from regatta.learn.layout import Layout, num_vector_bytes
from regatta.learn.optimisers import Sgd
from regatta.models.normalisation import NORMS
from regatta.models.resnet import SmallResNet
from regatta.tasks.images import Images, Network
from regatta.worlds.virtual import VirtualWorld

SMALL = Network(width=4)


def simulated_answer(run):
    """The model that a simulated run hands over, by its own names."""
    around = Surroundings(world="virtual", data=run.task.open(), log=lambda event: None)
    groups = run.strategy.groups(run.workers, range(run.workers))
    world = VirtualWorld(run.num_ranks, run.cluster, groups, run.workers)
    ranks = [Rank(run, comm, comm.chance, around) for comm in world.comms]
    for rank in ranks:
        rank.begin()
    world.run(lambda comm: ranks[comm.rank].play())
    return ranks[run.strategy.holder(run.workers)].replica.named_answer()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGATTA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def digits():
    return Images(network=SMALL).open()


def test_images_come_normalised(digits):
    images, labels = digits.batch(torch.arange(1438))
    assert images.shape == (1438, 1, 8, 8)
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 1e-4
    assert abs(images.std().item() - 1) < 1e-3
    assert sorted(labels.unique().tolist()) == list(range(10))


def test_an_index_tells_the_epoch_too():
    data = Images(network=SMALL, augmentation=Augmentation(margin=2)).open()
    first, again, later = (
        data.batch(torch.arange(20) + epoch * data.train_samples) for epoch in (0, 0, 1)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], later[0])
    assert torch.equal(first[1], later[1])


def test_every_image_is_dealt_once_an_epoch(digits):
    order = Order(digits.train_samples, 10, 3, seed=4, deal=digits.deal)
    for epoch in range(2):
        turns = range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch)
        seen = torch.cat([order.indices(worker, turn) for turn in turns for worker in range(3)])
        assert (seen // digits.train_samples == epoch).all()
        assert len(seen.unique()) == len(seen) == order.batches_per_epoch * 30


def test_a_batch_made_ahead_is_the_same():
    data = Images(network=SMALL, augmentation=Augmentation(1, flip=True)).open()
    wanted, other = torch.arange(5, 25), torch.arange(30, 40)
    plain = data.batch(wanted)
    data.expect(wanted)
    ahead = data.batch(wanted)
    data.expect(other)  # and then somebody asks for something else
    instead = data.batch(wanted)
    for found in (ahead, instead):
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_an_error_ahead_is_raised_where_the_batch_is_used(digits, monkeypatch):
    def broken(numbers):
        raise OSError("the disk is gone")

    wanted = torch.arange(4)
    digits.batch(wanted)  # while it is there
    monkeypatch.setattr(type(digits._train), "pixels", lambda packed, numbers: broken(numbers))
    digits.expect(wanted)
    with pytest.raises(OSError, match="the disk is gone"):
        digits.batch(wanted)


def test_the_loss_has_half_the_squares_of_matrices_and_kernels(digits):
    model = Images(network=SMALL).model()
    images, labels = batch = digits.batch(torch.arange(16))
    squares = sum(
        (m.weight**2).sum() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)
    )
    expected = cross_entropy(model(images), labels) + 1e-4 / 2 * squares
    torch.testing.assert_close(digits.loss(model, batch), expected)


def test_the_first_five(digits):
    class Shift(nn.Module):
        """Right for digits of which the first five that it names have one: 0 .. 4."""

        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(-torch.arange(10.0))

        def forward(self, images):
            return self.bias.expand(len(images), -1)

    labels = digits._dev.labels
    results = digits.evaluate(Shift())
    assert results["accuracy"] == pytest.approx((labels == 0).float().mean().item())
    assert results["top5"] == pytest.approx((labels < 5).float().mean().item())


def test_folders_of_images_of_any_size(tmp_path):
    task = Images(train=str(pictures(tmp_path / "set")), shape=Shape(20), crop=16, network=SMALL)
    data = task.open()
    images, labels = data.batch(torch.arange(6))
    assert images.shape == (6, 3, 16, 16)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.symbols == ("cat", "dog")
    assert "top5" not in data.evaluate(task.model())


def test_a_new_image_is_noticed(tmp_path):
    home = pictures(tmp_path / "set")
    task = Images(train=str(home), shape=Shape(16), network=SMALL)
    before = task.open()
    content = (home / "train" / "cat" / "0.png").read_bytes()
    (home / "train" / "cat" / "new.png").write_bytes(content)
    after = task.open()
    assert after.train_samples == before.train_samples + 1
    assert after.identity != before.identity


def test_what_is_left_out_is_told(tmp_path):
    home = pictures(tmp_path / "set")
    (home / "test" / "dog" / "1.png").write_bytes(b"")
    notes = Images(train=str(home), shape=Shape(16), network=SMALL).prepare()
    assert notes == [
        "task.dev: 1 x unreadable image, left out: convert it to JPEG or PNG (test/dog/1.png)"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "nowhere"}, r"task.train=nowhere: nowhere is no folder of images"),
        ({"crop": 9}, r"images of task.train have 8 x 8 pixels, which leaves no 9 x 9"),
        ({"network": Network("resnet-50")}, "needs images of 32 pixels or more, and these have 8"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        replace(Images(network=SMALL), **options).open()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Images(crop=-1), "task.crop and task.l2 must be 0 or more"),
        (lambda: Images(statistics="mine"), "must be one of averaged, local, frozen, not mine"),
        (lambda: Network("vgg"), "must be one of small, resnet-50, not vgg"),
        (lambda: Network(blocks=()), "blocks of 1 or more in every stage"),
        (lambda: Shape(channels=2), "1 or 3 channels"),
        (lambda: Augmentation(margin=-1), "augmentation.margin must be 0 or more"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sets_that_do_not_belong_together(tmp_path):
    mnist(tmp_path)
    task = Images(train=str(tmp_path), dev="digits", network=SMALL)
    with pytest.raises(ValueError, match=r"images of task.dev have 8 x 8 pixels, which leaves no"):
        task.open()


# -- statistics -----------------------------------------------------------------------------


def small(statistics):
    torch.manual_seed(2)
    return SmallResNet(10, 1, 4, norm=NORMS[statistics])


def test_local_statistics_are_no_part_of_the_vector():
    sizes = {how: Layout(small(how)) for how in NORMS}
    statistics = sum(
        2 * m.num_features for m in small("averaged").modules() if isinstance(m, nn.BatchNorm2d)
    )
    assert sizes["averaged"].numel == sizes["frozen"].numel == sizes["local"].numel + statistics
    for how, layout in sizes.items():
        assert num_vector_bytes(small(how)) == layout.nbytes


def test_frozen_statistics_are_what_training_normalises_with():
    model = small("frozen").train()
    images = torch.randn(8, 1, 8, 8)
    trained = model(images)
    assert torch.equal(trained, model.eval()(images))
    assert torch.equal(model.bn1.running_mean, torch.zeros(4))
    trained.sum().backward()
    assert model.bn1.weight.grad is not None


def a_run(strategy, workers=2, **options):
    task = Images(network=SMALL, **options)
    return Run(
        task=task, strategy=component("strategy", strategy), workers=workers, minibatch=32,
        optimiser=Sgd(lr=0.05), stop=Stop(epochs=1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "statistics"),
    [
        ("all-reduce", "averaged"), ("all-reduce", "local"), ("all-reduce", "frozen"),
        ("parameter-server:servers=2", "local"),
        ("parameter-server:mode=mixed,group=2", "averaged"),
        ("averaging", "local"), ("ring", "averaged"),
    ],
)  # fmt: skip
def test_statistics_under_strategies(strategy, statistics):
    answer = simulated_answer(a_run(strategy, workers=4, statistics=statistics))
    mean = answer["bn1.running_mean"]
    if statistics == "frozen":
        assert torch.equal(mean, torch.zeros_like(mean))
    else:
        assert mean.abs().sum() > 0.01
    assert all(value.isfinite().all() for value in answer.values())


def test_local_statistics_need_an_answer_that_sees_batches():
    with pytest.raises(ValueError, match=r"task.statistics=local: with parameter-server a server"):
        a_run("parameter-server", statistics="local")


# -- recipes --------------------------------------------------------------------------------


def test_the_recipe_learns_digits():
    run = recipes.load("images")
    run = replace(run, stop=Stop(epochs=8), task=replace(run.task, network=Network(width=8)))
    data = run.task.open()
    model = run.task.model()
    model.load_state_dict(simulated_answer(run))
    with torch.no_grad():
        assert data.evaluate(model.eval())["accuracy"] > 0.9


def test_a_step_of_resnet_50_on_two_workers_is_one_on_the_joint_batch(tmp_path):
    """With statistics that do not depend on who is in a batch. A step is all that is learnt."""
    pictures(tmp_path, each=4)
    task = Images(str(tmp_path), shape=Shape(40), crop=32, network=Network("resnet-50"),
                  statistics="frozen", augmentation=Augmentation(flip=True))  # fmt: skip
    alone = Run(task=task, optimiser=Sgd(lr=1e-4), minibatch=8, stop=Stop(epochs=1))
    both = replace(alone, strategy=component("strategy", "all-reduce"), workers=2, minibatch=4)
    torch.manual_seed(mixed_seed(alone.seed))
    first = dict(task.model().named_parameters())
    one, two = map(simulated_answer, (alone, both))
    for name, weights in first.items():
        step = one[name] - weights.detach()
        error = (two[name] - one[name]).norm()
        assert error <= 1e-3 * step.norm() + 1e-9, name
    assert any((one[name] != weights).any() for name, weights in first.items())


def test_the_papers_recipe_is_the_papers():
    run = recipes.load("images-paper")
    assert run.task.network.kind == "resnet-50"
    assert (run.optimiser.lr, run.optimiser.decay, run.optimiser.eps) == (0.1, 0.9, 1.0)
    assert (run.task.crop, run.minibatch, run.task.l2) == (224, 32, 1e-4)


def test_seeds_make_crops(digits):
    numbers = np.arange(50)
    assert digits._train.pixels(numbers).shape == (50, 1, 8, 8)
    tasks = [Images(network=SMALL, augmentation=Augmentation(2), seed=seed) for seed in (0, 1)]
    first, second = (task.open().batch(torch.from_numpy(numbers))[0] for task in tasks)
    assert not torch.equal(first, second)
