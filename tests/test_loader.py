"""Batches: every utterance once an epoch, the same for all, from any place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speaking import corpus_of

from regatta.data.augment import Augmentation
from regatta.data.corpora import read
from regatta.data.extract import Extraction, extract
from regatta.data.features import Features
from regatta.data.loader import Loader, Loading
from regatta.data.plan import Batching, Plan
from regatta.data.shards import Storage

AUGMENTED = Augmentation(time_masks=1, mel_masks=1, speed=0.1)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    corpus = read(corpus_of(root, 53))
    return extract(corpus, root / "features", Extraction(per_shard=7))


def same(one, other) -> bool:
    return (
        torch.equal(one.features, other.features)
        and torch.equal(one.frames, other.frames)
        and torch.equal(one.targets, other.targets)
        and np.array_equal(one.numbers, other.numbers)
    )


# -- the plan --------------------------------------------------------------------------------


@st.composite
def plans(draw):
    number = draw(st.integers(1, 120))
    seconds = np.array(draw(st.lists(st.floats(0.1, 16.7), min_size=number, max_size=number)))
    shard_of = np.sort(
        np.array(draw(st.lists(st.integers(0, 9), min_size=number, max_size=number)))
    )
    kept = draw(st.lists(st.booleans(), min_size=number, max_size=number))
    usable = np.flatnonzero(kept)
    batching = Batching(
        size=draw(st.integers(1, 9)),
        seconds=draw(st.sampled_from([0.0, 17.0, 60.0])),
        buckets=draw(st.integers(1, 5)),
        window=draw(st.integers(1, 4)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )
    return batching, usable, seconds, shard_of, draw(st.sampled_from([1, 2, 3]))


@settings(max_examples=150, deadline=None)
@given(plans(), st.integers(0, 3))
def test_every_utterance_at_most_once_and_every_rank_as_many_batches(planned, epoch):
    batching, usable, seconds, shard_of, ranks = planned
    try:
        plan = Plan(batching, usable, seconds, shard_of, ranks)
    except ValueError as error:
        if "make no batch" not in str(error) and "dealt evenly" not in str(error):
            raise
        return
    batches = [plan.batches(epoch, rank) for rank in range(ranks)]
    assert len({len(of_rank) for of_rank in batches}) == 1
    seen = [int(n) for of_rank in batches for batch in of_rank for n in batch]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(usable.tolist())
    sizes = [len(batch) for of_rank in batches for batch in of_rank]
    if batching.seconds:
        longest = [seconds[batch].max() * len(batch) for of in batches for batch in of]
        assert max(longest) <= batching.seconds + 1e-9
    elif batching.shuffle:
        assert set(sizes) <= {batching.size}
        most = len(usable) // batching.size // ranks * ranks * batching.size
        assert len(seen) == most  # nothing waits for another epoch that need not
    if batching.seconds or not batching.shuffle:
        assert sorted(seen) == usable.tolist()  # nobody waits


def plan_of(number: int, **options) -> Plan:
    random = np.random.default_rng(0)
    seconds = random.uniform(1, 15, number)
    batching = Batching(**options)
    return Plan(batching, np.arange(number), seconds, np.arange(number) // 64)


def test_epochs_differ_and_come_back():
    plan = plan_of(640)
    first, second = (np.concatenate(plan.batches(epoch, 0)) for epoch in (0, 1))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, np.concatenate(plan_of(640).batches(0, 0)))
    other = np.concatenate(plan_of(640, seed=1).batches(0, 0))
    assert not np.array_equal(first, other)


def test_buckets_spare_padding():
    """Of 640 utterances of 1 to 15 s, in batches of 16."""

    def padding(plan: Plan) -> float:
        lengths = [plan._seconds[batch] for batch in plan.batches(0, 0)]
        return 1 - sum(map(np.sum, lengths)) / sum(x.max() * len(x) for x in lengths)

    assert padding(plan_of(640, buckets=8)) < 0.15
    assert padding(plan_of(640, buckets=1)) > 0.35


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 0.0), (2, 0.0), (3, 0.0), (1, 120.0)])
def test_no_length_is_seen_less_than_others(ranks, seconds):
    random = np.random.default_rng(1)
    lengths = random.uniform(1, 15, 500)
    plan = Plan(
        Batching(size=16, seconds=seconds), np.arange(500), lengths, np.arange(500) // 64, ranks
    )
    seen = np.zeros(500)
    for epoch in range(60):
        for rank in range(ranks):
            for batch in plan.batches(epoch, rank):
                seen[batch] += 1
    shortest, longest = np.argsort(lengths)[:50], np.argsort(lengths)[-50:]
    assert seen.mean() > 0.9 * 60
    assert abs(seen[shortest].mean() - seen.mean()) < 0.06 * 60
    assert abs(seen[longest].mean() - seen.mean()) < 0.06 * 60


def test_a_long_corpus_is_planned_in_no_time():
    """As many utterances as LibriSpeech has; the plan of an epoch is what a resume costs."""
    import time

    plan = plan_of(281_241)
    began = time.perf_counter()
    plan.batches(5, 0)
    assert time.perf_counter() - began < 5


def test_an_utterance_too_long_for_its_batch_is_refused():
    with pytest.raises(ValueError, match="does not fit in batches of 3 s"):
        plan_of(64, seconds=3.0)


@pytest.mark.parametrize("options", [{"size": 0}, {"buckets": 0}, {"window": 0}, {"seconds": -1.0}])
def test_batching_that_makes_no_sense_is_refused(options):
    with pytest.raises(ValueError, match="batching"):
        Batching(**options)


# -- the loader ------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(data=st.data(), ranks=st.sampled_from([1, 2, 3]), readers=st.integers(0, 3))
def test_resume_gives_exactly_the_remaining_batches(index, data, ranks, readers):
    batching = Batching(
        size=data.draw(st.integers(1, 6)), window=2, seed=data.draw(st.integers(0, 9))
    )
    loading = Loading(batching, augmentation=AUGMENTED, readers=readers)
    epoch = data.draw(st.integers(0, 2))
    for rank in range(ranks):
        whole = list(Loader(index, loading, rank, ranks).batches(epoch))
        killed_at = data.draw(st.integers(0, len(whole)))
        rest = list(Loader(index, loading, rank, ranks).batches(epoch, start=killed_at))
        assert len(rest) == len(whole) - killed_at
        assert all(map(same, rest, whole[killed_at:]))


CHILD = """
import hashlib, sys
from pathlib import Path
from regatta.data.loader import Loader, Loading
from regatta.data.plan import Batching
from regatta.data.augment import Augmentation
from regatta.data.shards import open_index

folder, rank, ranks, start = sys.argv[1], *map(int, sys.argv[2:5])
wanted = Augmentation(time_masks=1, mel_masks=1, speed=0.1)
loading = Loading(Batching(size=3, window=2), augmentation=wanted)
loader = Loader(open_index(Path(folder)), loading, rank, ranks)
for batch in loader.batches(1, start):
    print(hashlib.sha256(batch.features.numpy().tobytes()).hexdigest(), flush=True)
    if len(sys.argv) > 5:
        input()  # wait to be told to go on, or to be killed
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_process_that_was_killed_goes_on_where_it_was(index, ranks):
    random = np.random.default_rng(ranks)
    rank = int(random.integers(ranks))
    command = [sys.executable, "-c", CHILD, str(index.folder), str(rank), str(ranks)]
    whole = subprocess.check_output([*command, "0"], text=True).split()
    stop = int(random.integers(1, len(whole)))
    child = subprocess.Popen([*command, "0", "wait"], text=True, stdin=-1, stdout=-1, bufsize=1)
    assert child.stdin is not None
    assert child.stdout is not None
    before = []
    for _ in range(stop):
        before.append(child.stdout.readline().strip())
        child.stdin.write("\n")
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    after = subprocess.check_output([*command, str(stop)], text=True).split()
    assert before + after == whole


def test_readers_change_nothing(index):
    one, many = (
        list(Loader(index, Loading(Batching(size=4), readers=n, buffer=b)).batches(0))
        for n, b in ((0, 1), (3, 7))
    )
    assert len(one) == len(many) == 53 // 4
    assert all(map(same, one, many))


def test_batches_by_seconds_hold_slower_utterances_too(index):
    wanted = Batching(seconds=4.0)
    loader = Loader(index, Loading(wanted, augmentation=Augmentation(speed=0.2)))
    for batch in loader.batches(0):
        assert batch.features.shape[0] * batch.features.shape[1] <= 400 + len(batch.numbers)


def test_a_batch_that_is_not_there_is_refused(index):
    loader = Loader(index, Loading(Batching(size=4)))
    assert list(loader.batches(0, start=len(loader))) == []
    for start in (-1, len(loader) + 1):
        with pytest.raises(ValueError, match=f"there is no batch {start} in an epoch of 13"):
            next(loader.batches(0, start=start))


def test_padding_is_zero_and_the_rest_is_normal(index):
    loader = Loader(index, Loading(Batching(size=53, buckets=1)))
    (batch,) = loader.batches(0)
    real = torch.arange(batch.features.shape[1])[None] < batch.frames[:, None]
    assert (batch.features[~real] == 0).all()
    heard = batch.features[real]
    torch.testing.assert_close(heard.mean(0), torch.zeros(93), atol=1e-3, rtol=0)
    torch.testing.assert_close(heard.std(0, correction=0), torch.ones(93), atol=1e-3, rtol=0)
    assert batch.seconds == pytest.approx(float(index.seconds.sum()))


def test_speakers_are_normalised_one_by_one(index):
    loader = Loader(index, Loading(Batching(size=53, buckets=1), normalise="speaker"))
    (batch,) = loader.batches(0)
    speakers = np.array(index.texts("speaker"))[batch.numbers]
    for speaker in set(speakers):
        rows = np.flatnonzero(speakers == speaker)
        heard = torch.cat([batch.features[n, : batch.frames[n]] for n in rows])
        torch.testing.assert_close(heard.mean(0), torch.zeros(93), atol=1e-3, rtol=0)


def test_features_can_be_normalised_as_others_were(index):
    sums = {speaker: found for speaker, found in index.sums.items() if speaker == "s0"}
    wanted = Loading(Batching(size=53, buckets=1))
    (own,), (others,) = (Loader(index, wanted, sums=s).batches(0) for s in (None, sums))
    assert not torch.equal(own.features, others.features)


def test_what_is_read_is_what_was_extracted(index):
    from regatta.data.audio import read as read_audio
    from regatta.data.features import Extractor

    loader = Loader(index, Loading(Batching(size=1, shuffle=False), normalise="none"))
    corpus = read(index.folder.parent)
    extractor = Extractor()
    for batch in loader.batches(0):
        name = index.texts("id")[batch.numbers[0]]
        path = corpus.root / f"audio/{name}.wav"
        expected = extractor(torch.from_numpy(read_audio(path, 16_000).samples))
        assert torch.equal(batch.features[0], expected)


def test_long_utterances_are_left_out_and_named(index):
    checks = replace(Loading().checks, max_seconds=0.8)
    loader = Loader(index, Loading(Batching(size=2), checks))
    too_long = int((index.seconds > 0.8).sum())
    assert loader.utterances.problems.counts() == {"too long": too_long}
    assert len(loader) == (53 - too_long) // 2
    nothing = replace(checks, max_seconds=0.01)
    with pytest.raises(ValueError, match="no utterance can be used"):
        Loader(index, Loading(Batching(size=2), nothing))


def test_a_batch_that_nobody_can_fill_is_refused(index):
    with pytest.raises(ValueError, match="make no batch of 54 utterances for each of 1 ranks"):
        Loader(index, Loading(Batching(size=54)))
    with pytest.raises(ValueError, match="rank 3 is none of 3"):
        Loader(index, rank=3, ranks=3)


def test_shards_are_read_once_and_forgotten(index, monkeypatch):
    reads: list[int] = []
    real = type(index).shard
    monkeypatch.setattr(type(index), "shard", lambda self, n: reads.append(n) or real(self, n))
    loader = Loader(index, Loading(Batching(size=2, buckets=2, window=2), readers=3))
    list(loader.batches(0))
    assert set(reads) == set(range(8))
    assert len(reads) <= 9  # who fits in no batch till the very end is read again
    assert len(loader.utterances._shards._there) <= 4


def test_an_iterator_that_is_dropped_leaves_no_thread_behind(index):
    import threading

    batches = Loader(index, Loading(Batching(size=2))).batches(0)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("regatta-reader")]


# -- extraction ------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_shards_are_the_same_whoever_writes_them(tmp_path):
    corpus = read(corpus_of(tmp_path / "c", 20))
    for jobs in (1, 2):
        extract(corpus, tmp_path / f"f{jobs}", Extraction(per_shard=4), jobs=jobs)
    assert digests(tmp_path / "f1") == digests(tmp_path / "f2")


def test_extraction_goes_on_where_it_was_killed(tmp_path):
    corpus_of(tmp_path / "c", 30)
    out = tmp_path / "f"
    code = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from regatta.data.corpora import read\n"
        "from regatta.data.extract import Extraction, extract\n"
        "def tell(done, total):\n"
        "    if done == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "extract(read(sys.argv[1]), Path(sys.argv[2]), Extraction(per_shard=4), 1, tell)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c"), str(out)], check=False)
    assert told.returncode == -signal.SIGKILL
    stamps = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    assert len(stamps) == 3
    corpus = read(tmp_path / "c")
    index = extract(corpus, out, Extraction(per_shard=4))
    assert len(index) == 30
    again = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    assert stamps.items() <= again.items()  # they were not made again
    extract(corpus, tmp_path / "whole", Extraction(per_shard=4))
    assert digests(out) == digests(tmp_path / "whole")


def test_what_has_changed_is_made_again_and_nothing_else(tmp_path):
    from speaking import record

    corpus = read(corpus_of(tmp_path / "c", 12))
    extract(corpus, tmp_path / "f", Extraction(per_shard=4))
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "f").glob("shard-*")}
    record(tmp_path / "c" / "audio" / "u005.wav", 0.9)
    extract(corpus, tmp_path / "f", Extraction(per_shard=4))
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "f").glob("shard-*")}
    changed = {name for name in stamps if stamps[name] != again[name]}
    assert changed == {"shard-00001.arrow"}
    other = Extraction(Features(mels=40), per_shard=5)
    with pytest.raises(ValueError, match="made with other options"):
        extract(corpus, tmp_path / "f", other)
    extract(corpus, tmp_path / "f", other, force=True)
    assert sorted(p.name for p in (tmp_path / "f").glob("shard-*"))[-1] == "shard-00002.arrow"


def test_half_the_size_for_three_digits(tmp_path):
    corpus = read(corpus_of(tmp_path / "c", 8))
    full, half = (
        extract(corpus, tmp_path / kind, Extraction(storage=Storage(kind)))
        for kind in ("float32", "float16")
    )
    sizes = [(i.folder / "shard-00000.arrow").stat().st_size for i in (full, half)]
    assert sizes[1] < 0.6 * sizes[0]
    wanted = Loading(Batching(size=8, buckets=1))
    (one,), (other,) = (Loader(i, wanted).batches(0) for i in (full, half))
    torch.testing.assert_close(one.features, other.features, atol=0.02, rtol=0)
    for wrong in ({"dtype": "int8"}, {"level": 0}):
        with pytest.raises(ValueError, match=r"float32 or float16|level"):
            Storage(**wrong)


def test_every_utterance_at_every_speed(tmp_path):
    corpus = read(corpus_of(tmp_path / "c", 6))
    index = extract(corpus, tmp_path / "f", Extraction(speeds=(0.9, 1.0, 1.1)))
    seconds = dict(zip(index.texts("id"), index.seconds, strict=True))
    assert len(seconds) == 18
    for n in range(6):
        name = f"u{n:03d}"
        assert seconds[f"{name}@0.9"] == pytest.approx(seconds[name] / 0.9, abs=1e-3)
        assert seconds[f"{name}@1.1"] == pytest.approx(seconds[name] / 1.1, abs=1e-3)
    with pytest.raises(ValueError, match="speeds"):
        Extraction(speeds=(3.0,))


def test_labels_come_with_their_shard(tmp_path):
    root = corpus_of(tmp_path / "c", 3)
    rows = [json.loads(line) for line in (root / "manifest.jsonl").read_text().splitlines()]
    rows[1]["phones"] = [[0.1, 0.2, "a"], [0.2, 0.3, "b"]]
    (root / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    index = extract(read(root), tmp_path / "f", Extraction(speeds=(1.0, 2.0)))
    shard = index.shard(0)
    assert [label.name for label in shard.labels(1, "phones")] == ["a", "b"]
    assert shard.labels(4, "phones")[0].start == pytest.approx(0.05)
    assert shard.labels(0, "phones") == []
