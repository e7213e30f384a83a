"""The task `speech`: its batches, its loss, what it writes down, what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import play
from phones import SMALL, described, spoken

from regatta import config, recipes
from regatta.config import Checkpointing, Evaluation, Recording, Run, Stop
from regatta.data.alphabet import Alphabet
from regatta.events import Checkpointed, Evaluated, Sampled, read
from regatta.learn.optimisers import AdaDelta, Adam
from regatta.models.recogniser import PAPER, Network
from regatta.strategies.all_reduce import AllReduce
from regatta.tasks.speech import Speech

TINY = Network(channels=8, kernel=3, stride=1, hidden=12, layers=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """Features of utterances whose letters are tones."""
    root = tmp_path_factory.mktemp("letters")
    made = [
        described(
            spoken(root / f"c{n}", size, phones="abcde", seed=n, repeats=False), root / f"f{n}"
        )
        for n, size in ((1, 40), (2, 8))
    ]
    return str(made[0].folder), str(made[1].folder)


def task(folders: tuple[str, str], **options: object) -> Speech:
    return Speech(*folders, network=replace(TINY, dropout=0.0), **options)


def small(folders: tuple[str, str], workers: int = 1, **changes: object) -> Run:
    run = Run(
        task=task(folders), optimiser=Adam(lr=0.02), workers=workers, minibatch=4,
        strategy=AllReduce(), stop=Stop(epochs=2), evaluation=Evaluation(every=1.0),
        recording=Recording(sentences=0),
    )  # fmt: skip
    return replace(run, **changes)


# -- batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("minibatch", [1, 3, 4])
def test_every_epoch_is_dealt_out_as_it_is_counted(folders, workers, minibatch):
    from regatta.engine import order_of

    data = task(folders).open()
    order = order_of(small(folders, workers, minibatch=minibatch), data)
    for epoch in (0, 3):
        first = order.turns(epoch)
        dealt = [
            order.indices(worker, first + number)
            for worker in range(workers)
            for number in range(order.batches_per_epoch)
        ]
        assert {len(batch) for batch in dealt} == {minibatch}
        numbers = torch.cat(dealt) - epoch * 40
        assert len(set(numbers.tolist())) == len(numbers)
        assert int(numbers.min()) >= 0
        assert int(numbers.max()) < 40
        left_out = 40 - len(numbers)
        assert left_out < minibatch * workers


def test_utterances_of_a_batch_are_of_like_length(folders):
    data = task(folders, buckets=4).open()
    spread = [
        np.ptp(data.batch(batch)[1].numpy()) for batch in data.deal(4, 1, 0, 0)[0]
    ]  # fmt: skip
    mixed = task(folders, buckets=1).open()
    assert np.mean(spread) < 0.6 * np.mean(
        [np.ptp(mixed.batch(batch)[1].numpy()) for batch in mixed.deal(4, 1, 0, 0)[0]]
    )


def test_an_epoch_augments_anew_and_always_alike(folders):
    from regatta.data.augment import Augmentation

    data = task(folders, augmentation=Augmentation(time_masks=2, mel_masks=1, mel_width=3)).open()
    first, again, later = (data.batch(torch.tensor([n]))[0] for n in (5, 5, 45))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert torch.equal(*(task(folders).open().batch(torch.tensor([n]))[0] for n in (5, 45)))


def test_batches_are_padded_and_their_audio_counted(folders):
    data = task(folders).open()
    indices = torch.tensor([0, 1, 2])
    features, frames, targets, symbols = data.batch(indices)
    assert features.shape == (3, int(frames.max()), SMALL.size)
    for row in range(3):
        assert not features[row, frames[row] :].any()
        assert (targets[row, symbols[row] :] == -1).all()
    assert data.audio_seconds(indices) == pytest.approx(float(frames.sum()) / 100, abs=0.02)


# -- the loss ---------------------------------------------------------------------------------


def test_the_loss_is_that_of_all_alignments():
    """By brute force, on outputs of four frames."""
    from itertools import groupby, product

    from regatta.tasks.speech import ctc

    torch.manual_seed(1)
    outputs = torch.randn(4, 1, 3).log_softmax(-1)
    total = sum(
        math.exp(sum(float(outputs[t, 0, s]) for t, s in enumerate(path)))
        for path in product(range(3), repeat=4)
        if [s for s, _ in groupby(path) if s != 2] == [0, 0]
    )
    loss = ctc(outputs, torch.tensor([4]), torch.tensor([[0, 0]]), torch.tensor([2]), blank=2)
    assert float(loss) == pytest.approx(-math.log(total), rel=1e-5)


def test_what_cannot_be_aligned_is_left_out_and_said(folders):
    narrow = Network(channels=8, kernel=3, stride=12, hidden=12, layers=1)
    data = replace(task(folders), network=narrow).open()
    assert data.train_samples < 40
    notes = list(data.notes())
    assert any("transcript too long for its audio, left out" in note for note in notes)
    model = replace(task(folders), network=narrow).model()
    for batch in data.deal(1, 1, 0, 0)[0]:
        assert torch.isfinite(data.loss(model, data.batch(batch)))


# -- training ---------------------------------------------------------------------------------


def test_letters_can_be_learnt(folders):
    played = play(small(folders, 2, stop=Stop(epochs=15), optimiser=Adam(lr=0.05)))
    scores = [e.results for e in played.events if isinstance(e, Evaluated)]
    assert scores[0]["wer"] > 0.9
    assert scores[-1]["cer"] < 0.15
    assert set(scores[0]) == {"wer", "cer", "cer_longer", "loss"}


def test_adadelta_learns_too(folders):
    played = play(small(folders, stop=Stop(epochs=8), optimiser=AdaDelta()))
    losses = [e.results["loss"] for e in played.events if isinstance(e, Evaluated)]
    assert losses[-1] < 0.8 * losses[0]


def test_a_sentence_is_written_down_every_so_many_batches(folders):
    quiet = play(small(folders))
    spoken = play(small(folders, recording=Recording(sentences=4)))
    sampled = [event for event in spoken.events if isinstance(event, Sampled)]
    assert [event.turns for event in sampled] == [4, 8, 12, 16]
    assert all(len(event.reference) == 5 for event in sampled)
    assert set("".join(event.reference for event in sampled)) <= set("abcde")
    assert spoken.digests == quiet.digests  # to look changes nothing
    assert not [event for event in quiet.events if isinstance(event, Sampled)]


def test_checkpoints_come_by_batches(folders, tmp_path):
    from regatta.runs import Plan, simulate

    run = small(folders, checkpointing=Checkpointing(batches=3, keep=9), stop=Stop(epochs=1))
    simulate(run, Plan("speech", run, tmp_path))
    events = read(tmp_path / "events.jsonl")
    saved = [event for event in events if isinstance(event, Checkpointed)]
    assert len(saved) == 4  # after 3, 6 and 9 of 10 batches, and at the end


def test_a_model_describes_itself_to_its_users(folders):
    about = task(folders).open().description()
    assert Alphabet(**about["alphabet"]).outputs == 30
    assert about["features"]["mels"] == 8
    assert len(about["sums"]) == 3
    assert all(set(word) <= set("abcde") for word in about["words"])


def test_blanks_alone_are_complained_of(folders):
    data = task(folders).open()
    assert "nothing but blanks" in data.complaints({"wer": 1.0, "cer": 1.0})["blank"]
    assert not data.complaints({"wer": 1.0, "cer": 0.8})


def test_an_alphabet_may_be_found_in_the_texts(folders):
    data = task(folders, alphabet="auto", separator=False).open()
    assert data.alphabet.symbols == "abcde' "
    assert data.symbols == (*"abcde' ", "")
    assert task(folders, alphabet="auto").open().alphabet.separator == "~"


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("language=xx", "task.language must be one of en, fr, it, not xx"),
        ("minutes=0", "task.minutes and task.dev_minutes must be numbers more than 0"),
        ("train=somewhere", "name a folder of features for both"),
        ("network.cell=rnn", "network.cell must be one of"),
        ("buckets=0", "task.buckets must be 1 or more"),
        ("checkpointing.batches=-1", "checkpointing.batches must be 0 or more"),
        ("recording.sentences=-1", "recording.sentences must be 0 or more"),
    ],
)
def test_options_that_cannot_be_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        config.assign(recipes.load("speech"), [setting]).task.open()


def test_the_papers_recipe_is_the_papers():
    run = recipes.load("speech-paper")
    assert run.task.network == PAPER
    assert isinstance(run.optimiser, AdaDelta)
    assert run.minibatch == 24
    assert run.checkpointing.batches == 250
    assert run.recording.sentences == 50


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"task\.train=.*no features in"):
        Speech(str(tmp_path), str(tmp_path)).open()
