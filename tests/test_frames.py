"""Labelled frames: as the features say, kept once, made anew when anything has changed."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from phones import SMALL, described, spoken
from real import until
from torch import nn

from regatta import config, recipes
from regatta.data import frames as store
from regatta.data.features import Features, Splice
from regatta.data.labels import Labelling
from regatta.data.normalise import NORMALISATIONS, added, sum_of
from regatta.learn.rbm import Rbm
from regatta.tasks import spoken as keep
from regatta.tasks.frames import Frames

FILES = (store.MARKER, store.FRAMES, store.ROWS, store.LABELS)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, Path]:
    """Features of tones: to train with, to evaluate with, and of two languages."""
    root = tmp_path_factory.mktemp("corpora")
    kinds = {
        "train": {"number": 10, "seed": 1},
        "dev": {"number": 4, "seed": 2},
        "two": {"number": 9, "seed": 3, "languages": ("en", "fr", "fr")},
        "two_dev": {"number": 6, "seed": 4, "languages": ("fr", "en")},
        "strange": {"number": 4, "seed": 5, "phones": "abd"},  # training has no d
        "mute": {"number": 3, "timeless": range(3)},
        "half": {"number": 6, "timeless": (1, 4)},
        "nameless": {"number": 4, "languages": ("",)},
    }
    for name, options in kinds.items():
        described(spoken(root / f"speech-{name}", **options), root / name)
    return {name: root / name for name in kinds}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("REGATTA_CACHE", str(folder))
    return folder


def task(corpora: dict[str, Path], train: str = "train", dev: str = "dev", **options) -> Frames:
    usual = {"languages": (), "hidden": (16,), "splice": 2}
    return Frames(str(corpora[train]), str(corpora[dev]), **(usual | options))


def opened(corpora, *names: str) -> list:
    return [keep.own_features(str(corpora[name]), "here") for name in names]


def place(cache: Path, split: str) -> Path:
    (folder,) = (cache / "frames").iterdir()
    return folder / split


# -- what is stored -------------------------------------------------------------------------


def normalised(index, kind: str, sums) -> list[torch.Tensor]:
    """Utterance by utterance, written down once more and in another way."""
    found = []
    for number in range(len(index)):
        shard = index.shard(int(index.shard_of[number]))
        features = shard.features(int(index.row_of[number])).float()
        if kind != "none":
            own = index.sums[index.texts("speaker")[number]]
            scale, shift = (own if kind == "speaker" else sum_of(sums)).scale_and_shift()
            features = torch.addcmul(shift, features, scale)
        found.append(features)
    return found


@pytest.mark.parametrize("kind", NORMALISATIONS)
@pytest.mark.parametrize("splice", [Splice(2, 2), Splice(0, 0), Splice(40, 3), Splice(1, 9)])
def test_windows_are_spliced_utterances_bit_for_bit(corpora, tmp_path, kind, splice):
    train, dev = opened(corpora, "train", "dev")
    framing = store.Framing(splice, normalise=kind)
    first = store.build([train], framing, tmp_path / "train")
    second = store.build([dev], framing, tmp_path / "dev", like=first)
    sums = added(train.sums.items())  # dev is normalised by what training knows
    for folder, index in ((first, train), (second, dev)):
        found = store.open_frames(folder)
        wanted = torch.cat([splice(utterance) for utterance in normalised(index, kind, sums)])
        assert torch.equal(found.inputs(torch.arange(len(found))), wanted)
        assert len(found) == int(index.frames.sum())


def test_labels_are_those_of_the_features(corpora, tmp_path):
    (index,) = opened(corpora, "train")
    found = store.open_frames(store.build([index], store.Framing(), tmp_path / "f"))
    wanted: list[str] = []
    for number, frames in enumerate(index.frames):
        shard = index.shard(int(index.shard_of[number]))
        labels = shard.labels(int(index.row_of[number]), "phones")
        wanted += map(str, Labelling().units(labels, int(frames), 0.01))
    assert [found.classes["en"].names[n] for n in found.labels.tolist()] == wanted
    assert set(wanted) == {"a", "b", "c", "sil"}
    assert found.seconds == 0.01


def test_features_of_half_precision_and_of_several_speeds(tmp_path):
    corpus = spoken(tmp_path / "c", 4)
    index = described(corpus, tmp_path / "f", speeds=(0.9, 1.0))
    found = store.open_frames(store.build([index], store.Framing(), tmp_path / "frames"))
    assert len(found) == int(index.frames.sum())
    assert found.inputs(torch.arange(len(found))).isfinite().all()


def test_features_of_any_size_make_a_network_of_their_own(tmp_path):
    index = described(spoken(tmp_path / "c", 4), tmp_path / "f", Features(mels=20, mfcc=5, hop=80))
    one = Frames(str(index.folder), str(index.folder), (), splice=1, hidden=(7,))
    data, model = one.open(), one.model()
    assert model[0].weight.shape == (7, 3 * 25)
    assert data.audio_seconds(torch.arange(200)) == pytest.approx(1.0)
    assert math.isfinite(data.loss(model, data.batch(torch.arange(9))).item())


def test_words_parts_and_neighbours_are_options(corpora):
    plain, thirds = task(corpora).open(), task(corpora, labels=Labelling(states=3)).open()
    assert plain.symbols == ["en:a", "en:b", "en:c", "en:sil"]
    assert thirds.symbols == [*(f"en:{p}/{n}" for p in "abc" for n in (1, 2, 3)), "en:sil"]
    senones = task(corpora, labels=Labelling(senones=12)).open()
    assert len(senones.symbols) == 12
    assert senones.symbols[:4] == plain.symbols
    with pytest.raises(ValueError, match="no words with times"):
        task(corpora, labels=Labelling(tier="words")).open()


def test_one_head_has_the_bare_names_where_nobody_named_a_language(corpora):
    data = task(corpora, "nameless", "nameless").open()
    assert data.symbols == ["a", "b", "c", "sil"]
    assert data.blocks == {"": slice(0, 4)}


# -- kept once ------------------------------------------------------------------------------


def stamps(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in FILES}


def test_frames_are_made_once(corpora, cache):
    task(corpora).open()
    before = {split: stamps(place(cache, split)) for split in ("train", "dev")}
    task(corpora).open()
    task(corpora, hidden=(3, 3), init="lecun").model()  # another network, the same frames
    assert {split: stamps(place(cache, split)) for split in ("train", "dev")} == before


@pytest.mark.parametrize(
    "other", [{"splice": 3}, {"normalise": "speaker"}, {"labels": Labelling(states=2)}]
)
def test_other_options_are_other_frames(corpora, other):
    first, second = task(corpora).open(), task(corpora, **other).open()
    assert first.identity != second.identity
    assert task(corpora).open().identity == first.identity


def test_features_that_have_changed_are_labelled_anew(tmp_path, cache):
    corpus = spoken(tmp_path / "c", 4)
    described(corpus, tmp_path / "f")
    one = Frames(str(tmp_path / "f"), str(tmp_path / "f"), (), hidden=(4,), splice=0)
    first = one.open()
    spoken(tmp_path / "c", 4, seed=9, phones="abcde")
    described(corpus, tmp_path / "f")
    second = one.open()
    assert second.identity != first.identity
    assert (len(first.symbols), len(second.symbols)) == (4, 6)
    assert one.model()[-1].weight.shape[0] == 6
    assert first.batch(torch.arange(5))[0].isfinite().all()  # who has the old ones keeps them


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut", "gone", "empty"])
def test_files_that_are_not_whole_are_made_again(corpora, cache, name, how):
    whole = task(corpora).open()
    before = whole.batch(torch.arange(whole.train_samples))
    path = place(cache, "train") / name
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -7 if how == "cut" else 0])
    if name == store.MARKER:
        with pytest.raises(ValueError, match="never finished"):
            store.open_frames(path.parent)
    else:
        with pytest.raises(ValueError, match="not whole: delete it"):
            store.open_frames(path.parent)
    again = task(corpora).open().batch(torch.arange(whole.train_samples))
    assert all(torch.equal(a, b) for a, b in zip(before, again, strict=True))


def _build_slowly(features: str, folder: Path, begun: str) -> None:
    def wait(share: float) -> None:
        Path(begun).touch()
        time.sleep(0.2)

    index = keep.own_features(features, "here")
    store.build([index], store.Framing(), folder, progress=wait)


def test_what_was_killed_is_not_taken_for_finished(corpora, tmp_path):
    folder, begun = tmp_path / "frames", tmp_path / "begun"
    child = multiprocessing.get_context("fork").Process(
        target=_build_slowly, args=(str(corpora["train"]), folder, str(begun))
    )
    child.start()
    until(begun.exists, "it began")
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with pytest.raises(ValueError, match="never finished"):
        store.open_frames(folder)
    index = keep.own_features(str(corpora["train"]), "here")
    assert len(store.open_frames(store.build([index], store.Framing(), folder))) == sum(
        index.frames
    )
    assert not list(folder.glob("*.partial"))


def test_two_that_come_at_once_end_with_one_store(corpora, tmp_path):
    folder = tmp_path / "frames"
    fork = multiprocessing.get_context("fork")
    both = [
        fork.Process(
            target=_build_slowly, args=(str(corpora["dev"]), folder, str(tmp_path / f"begun-{n}"))
        )
        for n in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(30)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(list(tmp_path.glob("begun-*"))) == 1  # the other one waited, and found it
    (index,) = opened(corpora, "dev")
    alone = store.open_frames(store.build([index], store.Framing(), tmp_path / "alone"))
    together = store.open_frames(folder)
    everything = torch.arange(len(alone))
    assert torch.equal(alone.inputs(everything), together.inputs(everything))
    assert torch.equal(alone.labels, together.labels)


# -- what cannot be used --------------------------------------------------------------------


def test_utterances_without_times_are_named_and_left_out(corpora):
    one = task(corpora, "half", "dev")
    (told,) = one.prepare()
    assert told == (
        "task.train: 2 x no times, left out: import alignments with the corpus (--align) (u1, u4)"
    )
    (index,) = opened(corpora, "half")
    kept = [n for number, n in enumerate(index.frames) if number not in (1, 4)]
    assert one.open().train_samples == sum(kept)


def test_classes_that_training_never_has_are_errors(corpora):
    one = task(corpora, "train", "strange")
    (told,) = one.prepare()
    data = one.open()
    unknown = int((data._dev.labels == -1).sum())
    assert unknown > 10
    assert f"task.dev: {unknown} of {data.eval_samples} frames are of classes" in told
    perfect = Oracle(data)
    results = data.evaluate(perfect)
    assert results["accuracy"] == (data.eval_samples - unknown) / data.eval_samples
    assert results["loss"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("train", "dev", "options", "told"),
    [
        ("mute", "dev", {}, r"no phones with times in .*mute \(3 x no times\): import alignments"),
        ("train", "mute", {}, r"no frame in .*mute is of a class .*\(3 x no times\).* in en"),
        ("train", "dev", {"languages": ("de",)},
         "with times in .*train for de: .*its utterances are of en; languages=none takes all"),
        ("nameless", "dev", {"languages": ("en",)}, "its utterances are of no language"),
        ("two", "dev", {"languages": ("en", "it")}, "for it: .* of en, fr;"),
        ("train", "nameless", {}, "no frame in .*nameless is of a class"),
    ],
)  # fmt: skip
def test_what_there_is_nothing_to_learn_from_is_refused(corpora, train, dev, options, told):
    with pytest.raises(ValueError, match=told):
        task(corpora, train, dev, **options).prepare()


def test_a_folder_without_features_is_refused(corpora, tmp_path):
    for option, folders in (("train", (tmp_path, corpora["dev"])),
                            ("dev", (corpora["train"], tmp_path / "none"))):  # fmt: skip
        with pytest.raises(ValueError, match=f"task.{option}=.*there are no features in"):
            Frames(*map(str, folders), ()).open()


def test_features_of_other_options_do_not_go_together(corpora, tmp_path):
    described(spoken(tmp_path / "c", 3), tmp_path / "f", Features(mels=10, mfcc=0))
    one = Frames(str(corpora["train"]), str(tmp_path / "f"), ())
    with pytest.raises(ValueError, match=r"unlike .* \(mels 10, not 8\): extract them with the"):
        one.open()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"languages": ("en", "en")}, "every language once"),
        ({"minutes": math.nan}, "task.minutes"),
        ({"dev_minutes": 0.0}, "task.dev_minutes"),
        ({"hidden": ()}, "task.hidden"),
        ({"hidden": (4, 0)}, "task.hidden"),
        ({"activation": "step"}, "task.activation must be one of relu, tanh"),
        ({"init": "zeros"}, "task.init must be one of .*rbm"),
        ({"normalise": "room"}, "normalise must be one of none, global, speaker"),
        ({"splice": -1}, "0 or more"),
        ({"mels": 0}, "mels"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_made(options, told, cache):
    with pytest.raises(ValueError, match=told):
        Frames(**options)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"train": "a"}, "name a folder of features for both"),
        ({"dev": "a"}, "name a folder of features for both"),
        ({"languages": ()}, "name the languages to synthesise, some of en, fr, it"),
        ({"languages": ("en", "xx")}, "some of en, fr, it"),
    ],
)
def test_options_that_do_not_go_together_are_refused_when_all_are_set(options, told, cache):
    task = Frames(**options)  # settings come one by one
    with pytest.raises(ValueError, match=told):
        task.prepare()
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_to_is_named_with_the_remedy(corpora, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGATTA_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"cannot write to .*file.*let REGATTA_CACHE name another"):
        task(corpora).open()


def test_where_things_are_kept(monkeypatch, tmp_path):
    assert keep.cache() == tmp_path / "cache"
    monkeypatch.delenv("REGATTA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert keep.cache() == tmp_path / "xdg" / "regatta"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert keep.cache() == tmp_path / "home" / ".cache" / "regatta"


def test_without_a_home_the_remedy_is_told(monkeypatch):
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("REGATTA_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(ValueError, match=r"no home folder .*REGATTA_CACHE"):
        keep.cache()


# -- learning and scoring -------------------------------------------------------------------


class Oracle(nn.Module):
    """Knows every window of the dev set; of those in `wrong` it says the next class."""

    def __init__(self, data, wrong: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._labels, self._at = data._dev.labels.long(), 0
        self._wrong, self._classes = wrong, len(data.symbols)

    def forward(self, inputs):
        here = self._labels[self._at : self._at + len(inputs)].clone()
        places = torch.arange(self._at, self._at + len(inputs))
        self._at += len(inputs)
        here[here < 0] = 0
        here[places < self._wrong] += 1
        return 50.0 * nn.functional.one_hot(here % self._classes, self._classes).float()


def test_accuracy_by_hand(corpora, monkeypatch):
    monkeypatch.setattr("regatta.tasks.frames._CHUNK", 37)
    data = task(corpora).open()
    assert data.evaluate(Oracle(data))["accuracy"] == 1.0
    results = data.evaluate(Oracle(data, wrong=50))
    assert results["accuracy"] == (data.eval_samples - 50) / data.eval_samples
    assert results["loss"] == pytest.approx(50.0 * 50 / data.eval_samples)
    assert "accuracy en" not in results  # there is only one


def test_a_small_network_learns_tones(corpora):
    one = task(corpora)
    data = one.open()
    torch.manual_seed(0)
    model = one.model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    before = data.evaluate(model)["accuracy"]
    for _ in range(60):
        optimiser.zero_grad()
        data.loss(model, data.batch(torch.randperm(data.train_samples)[:128])).backward()
        optimiser.step()
    assert data.evaluate(model)["accuracy"] > max(0.85, before)


def two(corpora, **options) -> Frames:
    return task(corpora, "two", "two_dev", **options)


def test_a_head_for_each_language(corpora):
    data = two(corpora).open()
    assert data.blocks == {"en": slice(0, 4), "fr": slice(4, 8)}
    assert data.symbols == [f"{lang}:{name}" for lang in ("en", "fr") for name in
                            ("a", "b", "c", "sil")]  # fmt: skip
    named = two(corpora, languages=("fr", "en")).open()
    assert list(named.blocks) == ["fr", "en"]
    alone = two(corpora, languages=("fr",)).open()
    assert alone.symbols == data.symbols[4:]
    assert alone.train_samples < data.train_samples


def test_the_loss_is_a_softmax_over_the_own_block(corpora):
    one = two(corpora)
    data = one.open()
    torch.manual_seed(1)
    model = one.model()
    indices = torch.randperm(data.train_samples)[:64]
    inputs, labels = data.batch(indices)
    assert {int(label) // 4 for label in labels} == {0, 1}  # both languages in one minibatch
    outputs = model(inputs).detach().double()
    by_hand = 0.0
    for row, label in zip(outputs, labels.tolist(), strict=True):
        block = row[:4] if label < 4 else row[4:]
        by_hand -= float(block[label % 4] - block.exp().sum().log())
    assert data.loss(model, (inputs, labels)).item() == pytest.approx(by_hand / 64, rel=1e-5)


def test_a_language_does_not_touch_the_rows_of_another(corpora):
    one = two(corpora)
    data, model = one.open(), one.model()
    english = torch.nonzero(data._train.labels < 4).flatten()[:50]
    data.loss(model, data.batch(english)).backward()
    head = model[int(data.head)]
    assert torch.equal(head.weight.grad[4:], torch.zeros(4, 16))
    assert torch.equal(head.bias.grad[4:], torch.zeros(4))
    assert head.weight.grad[:4].abs().sum() > 0


def test_accuracy_by_language(corpora):
    data = two(corpora).open()
    french = int((data._dev.labels >= 4).sum())
    assert (data._dev.labels[:20] >= 4).all()  # dev begins with French
    results = data.evaluate(Oracle(data, wrong=20))
    assert results["accuracy fr"] == (french - 20) / french
    assert results["accuracy en"] == 1.0
    assert results["accuracy"] == (data.eval_samples - 20) / data.eval_samples


def test_unknown_classes_are_errors_of_their_language_and_languages_may_be_missing(
    corpora, tmp_path
):
    described(spoken(tmp_path / "c", 4, phones="abd", seed=5, languages=("fr",)), tmp_path / "f")
    data = Frames(str(corpora["two"]), str(tmp_path / "f"), (), hidden=(4,), splice=0).open()
    unknown = int((data._dev.labels == -1).sum())
    assert unknown
    results = data.evaluate(Oracle(data))
    assert results["accuracy fr"] == (data.eval_samples - unknown) / data.eval_samples
    assert "accuracy en" not in results


def test_units_that_are_dead_are_counted_and_warned_of(corpora):
    one = task(corpora, hidden=(10, 10))
    data, model = one.open(), one.model()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1.0)
        model[0].bias[:3] = -1.0  # never above 0
        model[2].weight.zero_()
        model[2].bias.fill_(1.0)
    results = data.evaluate(model)
    assert results["dead"] == pytest.approx(3 / 20)
    told = data.complaints(results)
    assert "15% of the rectifiers are dead" in told["dead"]
    assert "optimiser.lr" in told["dead"]
    assert not data.complaints(results | {"dead": 0.04})
    assert not model[1]._forward_hooks  # nothing stays in the model
    assert "dead" not in data.evaluate(task(corpora, activation="tanh").model())


def test_weights_that_are_not_numbers_do_not_stop_an_evaluation(corpora):
    for one in (task(corpora), two(corpora)):
        data, model = one.open(), one.model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        results = data.evaluate(model)
        assert math.isnan(results["loss"])
        assert 0 <= results["accuracy"] < 1
        assert results["dead"] == 0.0  # they are ill otherwise


# -- first weights --------------------------------------------------------------------------


def pretrained(corpora, **options) -> Frames:
    rbm = Rbm(epochs_gaussian=1, minibatch=64)
    return task(corpora, init="rbm", activation="sigmoid", hidden=(12, 8), rbm=rbm, **options)


def test_pretraining_is_done_once_and_loaded_by_all(corpora, cache):
    one = pretrained(corpora)
    told: list[str] = []
    one.prepare(lambda what, share: told.append(what))
    assert {"pretraining layer 1 of 2", "pretraining layer 2 of 2"} <= set(told)
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("layer-*.safetensors")}
    assert len(files) == 2
    told.clear()
    one.prepare(lambda what, share: told.append(what))
    assert not told
    first, second = one.model(), one.model()
    assert torch.equal(first[0].weight, second[0].weight)
    assert torch.equal(first[2].bias, second[2].bias)
    assert not torch.equal(first[4].weight, second[4].weight)  # the head is drawn
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("layer-*")} == files


def test_other_pretraining_has_other_files_and_the_same_has_the_same_bits(corpora, cache, tmp_path):
    one = pretrained(corpora)
    first = one.model()[0].weight
    other = replace(one, rbm=replace(one.rbm, seed=1))
    assert not torch.equal(other.model()[0].weight, first)
    assert len(list(cache.rglob("layer-1.safetensors"))) == 2
    cache.rename(tmp_path / "before")
    assert torch.equal(one.model()[0].weight, first)


def test_pretraining_computes_with_one_thread_whoever_does_it(corpora):
    threads = torch.get_num_threads()
    seen: dict[str, int] = {}
    torch.set_num_threads(2)
    try:
        pretrained(corpora).prepare(
            lambda what, share: seen.update({what: torch.get_num_threads()})
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen["pretraining layer 1 of 2"] == 1


# -- the recipes ----------------------------------------------------------------------------


def test_the_network_of_the_paper(corpora):
    run = recipes.load("frames-paper")
    small = replace(
        run.task, train=str(corpora["train"]), dev=str(corpora["dev"]), languages=(),
        labels=Labelling(states=3, senones=20),
    )  # fmt: skip
    model = small.model()
    sizes = [layer.weight.shape for layer in model if isinstance(layer, nn.Linear)]
    wide = [17 * SMALL.size, 2048, 2048, 60, 2048, 2048, 20]
    assert sizes == [tuple(pair) for pair in zip(wide[1:], wide, strict=False)]
    assert run.task.features.size * run.task.framing.splice.frames == 680
    assert run.task.labels.senones == 16_765


def test_a_task_survives_json_and_settings():
    settings = ["languages=en,fr", "labels.states=3", "rbm.lr=0.1", "hidden=(64, 32)"]
    run = config.assign(recipes.load("frames"), settings)
    assert run.task.languages == ("en", "fr")
    assert run.task.hidden == (64, 32)
    back = config.from_json(json.loads(json.dumps(config.to_json(run))), recipes.load("frames"))
    assert back == run
    assert asdict(back.task) == asdict(run.task)


@pytest.mark.parametrize("text", ["", "none", "()", "None"])
def test_a_list_may_be_empty(text, corpora):
    own = task(corpora, languages=("en",))
    run = config.assign(replace(recipes.load("frames"), task=own), [f"languages={text}"])
    assert run.task.languages == ()
    assert config.assign(run, [f"early_minibatches={text}"]).early_minibatches == ()


def test_dnn_of_the_task_has_its_head_last(corpora):
    one = task(corpora, hidden=(5, 6, 7))
    data = one.open()
    assert [name for name, _ in one.model().named_parameters()][-1] == f"{data.head}.bias"
    assert one.model()[int(data.head)].out_features == len(data.symbols)


def test_the_page_names_every_option():
    page = (Path(__file__).parent.parent / "docs" / "frames.md").read_text()
    named = [option for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
             for option in re.findall(r"`([^`=]+)", row)]  # fmt: skip
    assert set(config.options(Frames)) <= set(named)
    assert {f"labels.{option}" for option in config.options(Labelling)} <= set(named)
