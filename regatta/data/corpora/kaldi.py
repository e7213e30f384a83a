"""A Kaldi data directory: wav.scp and text; also segments, utt2spk, utt2lang and channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regatta.data.corpora import Reading, folder_of, relative
from regatta.data.manifest import Utterance, lines, seconds
from regatta.data.problems import BadUtterance, Problems

root = folder_of
_CHANNELS = {"A": 0, "B": 1, "1": 0, "2": 1}  # as Kaldi names them


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
    channels = _channels(path / "reco2file_and_channel", problems)
    if not (path / "segments").is_file():
        for name, source in waves.items():
            yield Utterance(name, relative(source, path), channel=channels.get(name))
        return
    for number, line in lines(path / "segments", problems):
        where = f"segments:{number}"
        try:
            name, recording, start, end, *more = line.split()
            begin = seconds(start, "start")
            stop = -1.0 if float(end) == -1 else seconds(end, "end")
            own = _CHANNELS.get(more[0]) if more else None
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
        channel = channels.get(recording) if own is None else own
        yield Utterance(name, source, start=begin, duration=duration, channel=channel)


def _channels(path: Path, problems: Problems) -> dict[str, int]:
    table = {name: value.split()[-1] for name, value in _table(path, problems).items()}
    return {name: _CHANNELS[side] for name, side in table.items() if side in _CHANNELS}


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
