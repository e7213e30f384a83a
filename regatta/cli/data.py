"""Speech data: make it, look at it, split it, and turn it into features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regatta.cli.common import AsJson, app, cores, count, out
from regatta.cli.telling import (
    bar,
    features_as_json,
    going_on,
    print_features,
    print_survey,
    say_outside,
    say_problems,
)

if TYPE_CHECKING:
    from regatta.data.checks import Checks
    from regatta.data.manifest import Corpus
    from regatta.data.problems import Problems
    from regatta.data.shards import Index

data = typer.Typer(no_args_is_help=True, help="Speech corpora: make, inspect, split, extract.")
app.add_typer(data, name="data")

Source = Annotated[Path, typer.Argument(help="a corpus: a folder, a .jsonl manifest, a .tsv file")]
Kind = Annotated[str, typer.Option("--kind", help="how to read it; found out if not given")]
Split = Annotated[str, typer.Option("--split", help="only this split of the corpus's own")]
Outside = Annotated[bool, typer.Option("--allow-outside", help="audio may lie outside the corpus")]
Pipes = Annotated[bool, typer.Option("--allow-pipes", help="run the programs that wav.scp names")]
Name = Annotated[str, typer.Option("--name", help="what file names say: {text}_{speaker}_{index}")]
Words = Annotated[str, typer.Option("--words", help="how words are spoken: 0=zero,1=one")]
Align = Annotated[
    Path | None, typer.Option("--align", help="a CTM or TextGrid file, or a folder of them")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="processes; all cores if not given")
]
Letters = Annotated[
    str, typer.Option("--alphabet", help="all symbols of texts, or auto: those of the corpus")
]
MaxSeconds = Annotated[
    float, typer.Option("--max-seconds", min=0.0, help="longer utterances are left out")
]
OutFile = Annotated[Path, typer.Option("--out", "-o", help="the manifest to write, a .jsonl file")]
OutFolder = Annotated[Path, typer.Option("--out", "-o", help="the folder to write to")]


@data.command()
def synth(
    folder: OutFolder = Path("corpora/synth"),
    hours: Annotated[float, typer.Option("--hours", help="of speech, in all splits")] = 1.0,
    languages: Annotated[str, typer.Option("--languages", help="some of en,fr,it")] = "en",
    styles: Annotated[
        str, typer.Option("--styles", help="some of digits,commands,sentences")
    ] = "digits,commands,sentences",
    snr: Annotated[str, typer.Option("--snr", help="dB of speech over noise: LOW,HIGH")] = "5,30",
    rt60: Annotated[str, typer.Option("--rt60", help="seconds of echo: LOW,HIGH")] = "0.1,0.5",
    clean: Annotated[float, typer.Option("--clean", help="share without noise and echo")] = 0.2,
    shares: Annotated[str, typer.Option("--shares", help="of train, dev and test")] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option("--seed", help="decides everything")] = 0,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Make speech on the spot, with exact times of words and phones."""
    from regatta.data.synth.corpus import MANIFEST, Synth, make
    from regatta.data.synth.room import Room

    room = Room(clean, _pair(snr, "--snr"), _pair(rt60, "--rt60"))
    train, dev, test = _numbers(shares, "--shares", 3)
    wanted = Synth(hours, _list(languages), _list(styles), (train, dev, test), room=room, seed=seed)
    with going_on(), bar("speaking", hours * 3600, "s of speech", quiet=as_json) as advance:
        made = make(wanted, folder, jobs or cores(), lambda seconds, total: advance(seconds))
    seconds = sum(utterance.duration or 0.0 for utterance in made)
    told = {
        "manifest": str(folder / MANIFEST),
        "utterances": len(made),
        "hours": seconds / 3600,
        "speakers": len({utterance.speaker for utterance in made}),
    }
    if as_json:
        print(json.dumps(told))
        return
    out.print(
        f"{count(len(made), 'utterance')}, {seconds / 3600:.2f} h, {told['speakers']} speakers: "
        f"{told['manifest']}",
        soft_wrap=True,
    )


@data.command()
def inspect(
    source: Source,
    kind: Kind = "",
    split: Split = "",
    name: Name = "",
    words: Words = "",
    align: Align = None,
    alphabet: Letters = "",
    max_seconds: MaxSeconds = 16.7,
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
    as_json: AsJson = False,
) -> None:
    """Hours, speakers, lengths, symbols, problems; of a corpus, or of features."""
    if (index := _features_in(source)) is not None:
        _tell_features(index, alphabet, max_seconds, as_json)
        return
    corpus = _read(source, kind, split, name, words, align, allow_outside, allow_pipes)
    _survey(corpus, alphabet, max_seconds, thorough=False, jobs=1, as_json=as_json)


@data.command()
def validate(
    source: Source,
    kind: Kind = "",
    split: Split = "",
    name: Name = "",
    words: Words = "",
    align: Align = None,
    alphabet: Letters = "",
    max_seconds: MaxSeconds = 16.7,
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Read every sample of every utterance, or all features; exit 1 if any cannot be used."""
    if (index := _features_in(source)) is not None:
        index.verify()
        _tell_features(index, alphabet, max_seconds, as_json)
        return
    corpus = _read(source, kind, split, name, words, align, allow_outside, allow_pipes)
    problems = _survey(corpus, alphabet, max_seconds, True, jobs or cores(), as_json)
    if problems.left_out:
        raise typer.Exit(1)


@data.command("import")
def import_(
    source: Source,
    file: OutFile,
    kind: Kind = "",
    split: Split = "",
    name: Name = "",
    words: Words = "",
    align: Align = None,
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
) -> None:
    """Write a corpus of any kind as a manifest of Regatta's own."""
    from regatta.data.manifest import write

    corpus = _read(source, kind, split, name, words, align, allow_outside, allow_pipes)
    if file.exists():
        raise ValueError(f"{file} is there already: name another with --out")
    write(file, corpus.utterances, corpus.root)
    say_problems(corpus.problems)
    out.print(f"{count(len(corpus.utterances), 'utterance')}: {file}", soft_wrap=True)
    say_outside(file, corpus.root)


@data.command()
def split(
    source: Source,
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="the folder for train, dev and test.jsonl")
    ],
    dev: Annotated[float, typer.Option("--dev", help="its share of the seconds")] = 0.1,
    test: Annotated[float, typer.Option("--test", help="its share of the seconds")] = 0.1,
    by: Annotated[
        str, typer.Option("--by", help="what no two splits share: speaker, text or utterance")
    ] = "speaker",
    seed: Annotated[int, typer.Option("--seed")] = 0,
    kind: Kind = "",
    name: Name = "",
    words: Words = "",
    align: Align = None,
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
) -> None:
    """Train, dev and test that share no speaker (or text)."""
    from regatta.data.arrange import split as split_corpus
    from regatta.data.manifest import write

    corpus = _read(source, kind, "", name, words, align, allow_outside, allow_pipes)
    parts = split_corpus(corpus, dev, test, by, seed)
    for part in parts:
        if (folder / f"{part}.jsonl").exists():
            raise ValueError(f"{folder} has a {part}.jsonl already: name another with --out")
    for part, utterances in parts.items():
        path = folder / f"{part}.jsonl"
        write(path, utterances, corpus.root)
        hours = sum(utterance.duration or 0.0 for utterance in utterances) / 3600
        who = count(len({utterance.speaker for utterance in utterances}), "speaker")
        out.print(
            f"{part}: {count(len(utterances), 'utterance')}, {hours:.2f} h, {who}: {path}",
            soft_wrap=True,
        )
    say_problems(corpus.problems)
    say_outside(folder / "train.jsonl", corpus.root)


@data.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="corpora of any kind")],
    file: Annotated[Path, typer.Option("--out", "-o", help="the manifest to write")],
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
) -> None:
    """One manifest of several corpora; the same id twice gets the corpus's name before it."""
    from regatta.data.arrange import merge as merge_corpora
    from regatta.data.manifest import write

    if file.exists():
        raise ValueError(f"{file} is there already: name another with --out")
    merged = merge_corpora(
        [_read(s, allow_outside=allow_outside, allow_pipes=allow_pipes) for s in sources]
    )
    write(file, merged.utterances, merged.root)
    say_problems(merged.problems)
    out.print(f"{count(len(merged.utterances), 'utterance')}: {file}", soft_wrap=True)
    say_outside(file, merged.root)


@data.command()
def features(
    source: Source,
    folder: OutFolder,
    kind: Kind = "",
    split: Split = "",
    name: Name = "",
    words: Words = "",
    align: Align = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a field of the features: mels=40, mfcc=0")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, or float16")] = "float32",
    per_shard: Annotated[int, typer.Option("--per-shard", help="utterances a file")] = 64,
    speeds: Annotated[
        str, typer.Option("--speeds", help="every utterance at each of them: 0.9,1,1.1")
    ] = "1",
    alphabet: Letters = "",
    max_seconds: MaxSeconds = 16.7,
    force: Annotated[
        bool, typer.Option("--force", help="let go of other features that are there")
    ] = False,
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Extract features into shards; run again, it goes on where it was stopped."""
    from regatta.config import assign
    from regatta.data.extract import Extraction, extract
    from regatta.data.features import Features
    from regatta.data.shards import Storage

    corpus = _read(source, kind, split, name, words, align, allow_outside, allow_pipes)
    wanted = Extraction(
        assign(Features(), settings or []),
        Storage(dtype),
        per_shard,
        tuple(_numbers(speeds, "--speeds")),
    )
    with going_on(), bar("extracting", None, "shards", quiet=as_json) as advance:
        index = extract(corpus, folder, wanted, jobs or cores(), advance, force)
    _tell_features(index, alphabet, max_seconds, as_json)


# -- what they share ------------------------------------------------------------------------


def _read(
    source: Path,
    kind: str = "",
    split: str = "",
    name: str = "",
    words: str = "",
    align: Path | None = None,
    allow_outside: bool = False,
    allow_pipes: bool = False,
) -> Corpus:
    from regatta.data.corpora import Reading, read

    spoken = dict(pairs(words, "--words"))
    return read(source, Reading(kind, split, allow_outside, allow_pipes, name, spoken, align))


def _checks(letters: str, texts: list[str], max_seconds: float) -> Checks:
    from regatta.data.alphabet import Alphabet, alphabet_of
    from regatta.data.checks import Checks

    named = Alphabet(letters) if letters else Alphabet()
    return Checks(alphabet_of(texts) if letters == "auto" else named, max_seconds)


def _survey(
    corpus: Corpus, letters: str, max_seconds: float, thorough: bool, jobs: int, as_json: bool
) -> Problems:
    from regatta.data.survey import survey

    checks = _checks(letters, [u.text for u in corpus.utterances], max_seconds)
    total = len(corpus.utterances)
    with bar("reading" if thorough else "looking", total, "utterances", as_json) as advance:
        found = survey(corpus, checks, thorough, jobs, advance)
    if as_json:
        print(json.dumps(found.to_json()))
    else:
        print_survey(found, corpus, checks)
    return found.problems


def _features_in(source: Path) -> Index | None:
    """Where there are some instead of a corpus, finished or not."""
    from regatta.data.shards import MARKER, open_index

    there = (source / MARKER).is_file() or any(source.glob("shard-*.arrow"))
    return open_index(source) if there else None


def _tell_features(index: Index, letters: str, max_seconds: float, as_json: bool) -> None:
    checks = _checks(letters, index.texts("text"), max_seconds)
    if as_json:
        print(json.dumps(features_as_json(index, checks)))
        return
    say_problems(index.problems)
    print_features(index, checks)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str, option: str, wanted: int | None = None) -> list[float]:
    try:
        found = [float(part) for part in _list(text)]
    except ValueError:
        found = []
    if not found or (wanted is not None and len(found) != wanted):
        many = "numbers" if wanted is None else f"{wanted} numbers"
        raise ValueError(f"{option} {text!r} is not {many} with commas between them")
    return found


def _pair(text: str, option: str) -> tuple[float, float]:
    low, high = _numbers(text, option, 2)
    return low, high


def pairs(text: str, option: str) -> list[tuple[str, str]]:
    found = [part.partition("=") for part in _list(text)]
    for written, equals, _ in found:
        if not equals or not written:
            raise ValueError(f"{option} {text!r} is not of the form written=spoken,...")
    return [(written.strip(), spoken.strip()) for written, _, spoken in found]
