"""A Kaldi data directory: wav.scp and text; also segments, utt2spk, utt2lang and channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regatta.data.corpora import Reading, folder_of, relative
from regatta.data.manifest import Utterance, lines, seconds
from regatta.data.problems import BadUtterance, Problems

root = folder_of


def matches(path: Path) -> bool:
    return path.is_dir() and (path / "wav.scp").is_file()


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    waves = _table(path / "wav.scp", problems)
    texts = _table(path / "text", problems, may_be_empty=True)
    speakers = _table(path / "utt2spk", problems)
    languages = _table(path / "utt2lang", problems)
    known: set[str] = set()
    for utterance in _heard(path, waves, problems):
        known.add(utterance.id)
        if utterance.id not in texts:
            problems.note("no transcript", utterance.id)
            continue
        yield replace(
            utterance,
            text=texts[utterance.id],
            speaker=speakers.get(utterance.id, ""),
            language=languages.get(utterance.id, ""),
        )
    for name in texts:
        if name not in known:
            problems.note("missing file", name, "it has a text, but no audio")


def _heard(path: Path, waves: dict[str, str], problems: Problems) -> Iterator[Utterance]:
    """Recordings, or the segments of them."""
    if not (path / "segments").is_file():
        for name, source in waves.items():
            yield Utterance(name, relative(source, path))
        return
    channels = _channels(path / "reco2file_and_channel", problems)
    for number, line in lines(path / "segments", problems):
        where = f"segments:{number}"
        try:
            name, recording, start, end = line.split()[:4]
            begin, stop = seconds(start, "start"), float(end)
        except ValueError:
            problems.note("broken line", where, "not UTTERANCE RECORDING START END")
            continue
        except BadUtterance as error:
            problems.add([error.of(where)])
            continue
        if recording not in waves:
            problems.note("missing file", name, f"recording {recording} is not in wav.scp")
            continue
        if stop != -1 and stop <= begin:
            problems.note("bad segment", name, f"from {begin:g} to {stop:g} s")
            continue
        duration = None if stop == -1 else stop - begin  # Kaldi's word for: to the end
        source = relative(waves[recording], path)
        channel = channels.get(recording)
        yield Utterance(name, source, start=begin, duration=duration, channel=channel)


def _channels(path: Path, problems: Problems) -> dict[str, int]:
    """Kaldi names channels A and B, or 1 and 2."""
    names = {"A": 0, "B": 1, "1": 0, "2": 1}
    table = _table(path, problems)
    return {k: names[v.split()[-1]] for k, v in table.items() if v.split()[-1] in names}


def _table(path: Path, problems: Problems, may_be_empty: bool = False) -> dict[str, str]:
    """Lines of a key and the rest."""
    found: dict[str, str] = {}
    if not path.is_file():
        return found
    for number, line in lines(path, problems):
        key, *rest = line.split(maxsplit=1)
        if not rest and not may_be_empty:
            problems.note("broken line", f"{path.name}:{number}", "a key without a value")
        elif key in found:
            problems.note("duplicate id", key, f"{path.name}:{number}")
        else:
            found[key] = rest[0].strip() if rest else ""
    return found
