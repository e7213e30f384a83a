"""A corpus to features on disk: by several processes, and further where it was interrupted."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from regatta.aside import write_aside
from regatta.data.features import Features
from regatta.data.jobs import one_thread, processes
from regatta.data.manifest import Corpus, Utterance
from regatta.data.normalise import Sums, added
from regatta.data.problems import BadUtterance, Problem, Problems
from regatta.data.shards import (
    INDEX,
    MARKER,
    PROBLEMS,
    SUMS,
    UTTERANCES,
    BadShard,
    Described,
    Index,
    Storage,
    open_index,
    read_shard_without_features,
    shard_name,
    sums_of,
    write_index,
    write_shard,
)

_SHARD = re.compile(r"shard-\d{5}\.arrow(\.partial)?")
MADE = "made.jsonl"  # which shards are made, while others are not


@dataclass(frozen=True)
class Extraction:
    """What is made of a corpus."""

    features: Features = field(default_factory=Features)
    storage: Storage = field(default_factory=Storage)
    per_shard: int = UTTERANCES
    speeds: tuple[float, ...] = (1.0,)  # every utterance at each of them, as Kaldi perturbs

    def __post_init__(self) -> None:
        if self.per_shard < 1:
            raise ValueError(f"a shard holds 1 or more utterances, not {self.per_shard}")
        if not self.speeds or not all(0.5 <= speed <= 2 for speed in self.speeds):
            raise ValueError("speeds must be from 0.5 to 2, as in 0.9,1,1.1")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError("every speed may be named once")


@dataclass(frozen=True)
class _Part:
    """What one shard is made of; all that a process needs to make it."""

    number: int
    utterances: tuple[tuple[Utterance, float], ...]  # and at which speed
    root: Path
    allow_outside: bool
    allow_pipes: bool
    out: Path
    extraction: Extraction

    @property
    def path(self) -> Path:
        return self.out / shard_name(self.number)

    @property
    def recipe(self) -> str:
        """A digest of what decides the shard's bytes, the audio files' dates and sizes included."""
        digest = hashlib.sha256(json.dumps(asdict(self.extraction), sort_keys=True).encode())
        for utterance, speed in self.utterances:
            digest.update(json.dumps([utterance.to_json(), speed]).encode())
            digest.update(repr(_stamp(self.root / utterance.audio)).encode())
        return digest.hexdigest()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def extract(
    corpus: Corpus,
    out: Path,
    extraction: Extraction = Extraction(),  # noqa: B008
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    force: bool = False,
) -> Index:
    """Features of all utterances that can be used; `progress` is told of shards.

    A folder that holds features of other utterances, or made with other options, is refused unless
    `force` says that they may go.
    """
    parts = list(_parts(corpus, out, extraction))
    if not parts:
        why = corpus.problems.why()
        raise ValueError(f"there is no utterance in {corpus.root} to make features of{why}")
    _claim(out)
    identity = _identity(corpus, extraction)
    if not force and _identity_there(out) not in (None, identity):
        raise ValueError(
            f"{out} holds features of other utterances or made with other options: name another "
            "folder, or let them go with --force"
        )
    recipes = [part.recipe for part in parts]
    made = _made_before(out, recipes)
    stale = _stale(out, len(parts))
    if len(made) == len(parts) and not stale and (out / MARKER).exists():
        with suppress(BadShard):
            index = open_index(out)
            known = index.problems.to_json()[: len(corpus.problems)]
            if index.sums and known == corpus.problems.to_json():
                return index  # nothing has changed
    for path in [*stale, out / MARKER, out / INDEX, out / SUMS]:
        path.unlink(missing_ok=True)
    with (out / MADE).open("w") as ledger:
        ledger.write(json.dumps(identity) + "\n")
        for number, checksum in made.items():
            _enter(ledger, number, recipes[number], checksum)
        progress(len(made), len(parts))
        todo = [part for part in parts if part.number not in made]
        for number, checksum in _made(todo, jobs):
            made[number] = checksum
            _enter(ledger, number, recipes[number], checksum)
            progress(len(made), len(parts))
    entries = [(made[n], recipe) for n, recipe in enumerate(recipes)]
    _finish(corpus, out, extraction, identity, entries)
    (out / MADE).unlink()
    return open_index(out)


def _parts(corpus: Corpus, out: Path, extraction: Extraction) -> Iterator[_Part]:
    spoken = [(u, speed) for speed in extraction.speeds for u in corpus.utterances]
    for number, first in enumerate(range(0, len(spoken), extraction.per_shard)):
        some = tuple(spoken[first : first + extraction.per_shard])
        allowed = corpus.allow_outside, corpus.allow_pipes
        yield _Part(number, some, corpus.root, *allowed, out, extraction)


def _claim(out: Path) -> None:
    """A folder that is empty, or has features in it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder for features")
    there = {path.name for path in out.iterdir()} if out.exists() else set()
    ours = (MARKER, INDEX, SUMS, PROBLEMS, MADE)
    foreign = sorted(n for n in there if n not in ours and not _SHARD.fullmatch(n))
    if foreign or (there and not there & {MARKER, MADE}):
        foreign = foreign or sorted(there)
        raise ValueError(f"{out} is not empty ({foreign[0]}): name a folder of its own")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make {out}: {error.strerror}") from None
    for partial in out.glob("*.partial"):
        partial.unlink()


def _identity(corpus: Corpus, extraction: Extraction) -> str:
    """A digest of what is made of what; audio that has changed is still the same corpus."""
    digest = hashlib.sha256(json.dumps(asdict(extraction), sort_keys=True).encode())
    for utterance in corpus.utterances:
        digest.update(utterance.id.encode() + b"\0")
    return digest.hexdigest()


def _identity_there(out: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((out / MARKER).read_text())["identity"])
    with suppress(OSError, ValueError, IndexError):
        return str(json.loads((out / MADE).read_text().splitlines()[0]))
    return None


def _stale(out: Path, parts: int) -> list[Path]:
    names = {shard_name(number) for number in range(parts)}
    return [p for p in out.iterdir() if _SHARD.fullmatch(p.name) and p.name not in names]


def _enter(ledger: TextIO, number: int, recipe: str, checksum: int) -> None:
    ledger.write(json.dumps([shard_name(number), checksum, recipe]) + "\n")
    ledger.flush()


def _made_before(out: Path, recipes: Sequence[str]) -> dict[int, int]:
    """Checksums of shards that earlier starts have made of the very same, and that are whole."""
    known = {(name, recipe): checksum for name, checksum, recipe in _known(out)}
    found: dict[int, int] = {}
    for number, recipe in enumerate(recipes):
        path = out / shard_name(number)
        checksum = known.get((path.name, recipe))
        if checksum is not None and path.is_file() and zlib.crc32(path.read_bytes()) == checksum:
            found[number] = checksum
    return found


def _known(out: Path) -> Iterator[tuple[str, int, str]]:
    """What the ledger of an interrupted start says, or the marker of a finished one."""
    lines = (out / MADE).read_text().splitlines() if (out / MADE).is_file() else []
    for line in lines:
        with suppress(ValueError):  # the last may have been cut short
            name, checksum, recipe = json.loads(line)
            yield name, checksum, recipe
    with suppress(OSError, ValueError, LookupError, TypeError):
        yield from json.loads((out / MARKER).read_text())["shards"]


def _made(parts: Sequence[_Part], jobs: int) -> Iterator[tuple[int, int]]:
    if jobs <= 1 or len(parts) <= 1:
        for part in parts:
            with one_thread():
                made = _make(part)
            yield part.number, made
        return
    with processes(min(jobs, len(parts)), "makes features", _one_thread) as pool:
        waiting: dict[Future[int], int] = {}
        todo = iter(parts)
        while True:
            for part in islice(todo, 2 * jobs - len(waiting)):  # enough to keep all busy
                waiting[pool.submit(_make, part)] = part.number
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _make(part: _Part) -> int:
    """One shard, from audio to disk."""
    from regatta.data.features import Extractor

    extractor = Extractor(part.extraction.features)
    corpus = Corpus(part.root, [], Problems(), part.allow_outside, part.allow_pipes)
    rows: list[Described] = []
    problems: list[Problem] = []
    for utterance, speed in part.utterances:
        try:
            rows.append(_described(utterance, speed, corpus, extractor, part.extraction, problems))
        except BadUtterance as error:
            problems.append(error.of(_named(utterance.id, speed)))
    try:
        return write_shard(part.path, rows, problems, part.extraction.storage)
    except OSError as error:
        raise ValueError(
            f"{error.strerror}: make room and run the same command again; it goes on from here"
        ) from None


def _named(name: str, speed: float) -> str:
    return name if speed == 1 else f"{name}@{speed:g}"


def _described(
    utterance: Utterance,
    speed: float,
    corpus: Corpus,
    extractor: Any,
    extraction: Extraction,
    problems: list[Problem],
) -> Described:
    import torch

    from regatta.data import audio

    rate = extraction.features.rate
    source = corpus.source(utterance)
    found = audio.read(source, rate, utterance.start, utterance.duration, utterance.channel)
    name = _named(utterance.id, speed)
    problems += [Problem(kind, name, detail, used=True) for kind, detail in found.notes]
    samples = audio.at_speed(found.samples, speed)
    seconds = len(samples) / rate
    features = extractor(torch.from_numpy(samples))
    return Described(
        name,
        utterance.text,
        utterance.speaker if speed == 1 else f"{utterance.speaker}@{speed:g}",
        utterance.language,
        seconds,
        features,
        [label.faster(speed) for label in utterance.words],
        [label.faster(speed) for label in utterance.phones],
    )


def _finish(
    corpus: Corpus,
    out: Path,
    extraction: Extraction,
    identity: str,
    made: list[tuple[int, str]],
) -> None:
    """Index and marker, from what the shards themselves say."""
    names = ("id", "text", "speaker", "language", "seconds", "frames")
    rows: dict[str, list[Any]] = {name: [] for name in ("shard", "row", *names)}
    problems = list(corpus.problems)
    sums: list[tuple[str, Sums]] = []
    for number in range(len(made)):
        shard = read_shard_without_features(out / shard_name(number))
        count = shard.batch.num_rows
        rows["shard"] += [number] * count
        rows["row"] += range(count)
        for name in names:
            rows[name] += shard.batch.column(name).to_pylist()
        problems += [Problem(**row) for row in shard.about["problems"]]
        sums += sums_of(shard.about).items()
    lines = "".join(json.dumps(asdict(problem)) + "\n" for problem in problems).encode()
    write_aside(out / PROBLEMS, lines)
    if not rows["id"]:
        why = Problems(problems).why()
        raise ValueError(f"no utterance could be used{why}; see {out / PROBLEMS}")
    about = {
        "identity": identity,
        "features": asdict(extraction.features),
        "storage": asdict(extraction.storage),
        "utterances": len(rows["id"]),
        "seconds": sum(rows["seconds"]),
        "shards": [[shard_name(n), *of_shard] for n, of_shard in enumerate(made)],
    }
    write_index(out, rows, dict(sorted(added(sums).items())), about, {PROBLEMS: zlib.crc32(lines)})
