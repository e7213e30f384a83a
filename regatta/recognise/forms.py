"""Transcripts as text, as JSON and as subtitles."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from regatta.recognise.transcripts import Guess, Part, Spoken, Transcript

FORMS = ("txt", "json", "srt")
_LINE, _LINES = 42, 2  # characters of a line of a subtitle, and lines
_MOST, _LEAST = 7.0, 1.0  # seconds that one is shown, if it can be


class Cue(NamedTuple):
    start: float
    end: float
    lines: list[str]


def written(transcript: Transcript, form: str, named: bool = False) -> str:
    """`named`: a line of text tells its file, as one among others."""
    if form == "json":
        whole = {"file": transcript.file, "seconds": seconds(transcript.seconds)}
        return as_line(whole | found(transcript.guesses, transcript.words, transcript.nbest))
    if form == "srt":
        return subtitles(cues(transcript.parts))
    return (f"{transcript.file}\t" if named else "") + transcript.text + "\n"


def as_line(told: dict[str, Any]) -> str:
    return json.dumps(told, ensure_ascii=False) + "\n"


def found(guesses: Sequence[Guess], words: Sequence[Spoken], nbest: int) -> dict[str, Any]:
    """What JSON tells of a recording, or of a part of a stream."""
    told = _guess(guesses[0]) | {
        "words": [
            {"word": word.word, "start": seconds(word.start), "end": seconds(word.end)}
            for word in words
        ]
    }
    return told if nbest < 2 else told | {"nbest": [_guess(guess) for guess in guesses]}


def _guess(guess: Guess) -> dict[str, Any]:
    """JSON knows no infinity."""
    return {"text": guess.text, "score": guess.score if math.isfinite(guess.score) else None}


def seconds(exact: float) -> float:
    return round(exact, 3)


# -- subtitles --------------------------------------------------------------------------------


def cues(parts: Iterable[Part]) -> list[Cue]:
    """Part by part; a long one is split between words."""
    every = [cue for part in parts for cue in _cues_of(part.words)]
    starts = [cue.start for cue in every[1:]] + [math.inf]
    return [
        cue._replace(end=max(cue.end, min(cue.start + _LEAST, start)))
        for cue, start in zip(every, starts, strict=True)
    ]


def subtitles(every: Sequence[Cue], first: int = 1) -> str:
    """As SubRip has them."""
    return "".join(
        f"{at}\n{_clock(cue.start)} --> {_clock(cue.end)}\n" + "\n".join(cue.lines) + "\n\n"
        for at, cue in enumerate(every, first)
    )


def _cues_of(words: Sequence[Spoken]) -> Iterator[Cue]:
    taken: list[Spoken] = []
    for word in words:
        if taken and not _fits([*taken, word]):
            yield _cue(taken)
            taken = []
        taken.append(word)
    if taken:
        yield _cue(taken)


def _fits(words: Sequence[Spoken]) -> bool:
    return words[-1].end - words[0].start <= _MOST and len(_wrapped(words)) <= _LINES


def _cue(words: Sequence[Spoken]) -> Cue:
    return Cue(words[0].start, words[-1].end, _wrapped(words))


def _wrapped(words: Sequence[Spoken]) -> list[str]:
    return textwrap.wrap(" ".join(word.word for word in words), _LINE, break_on_hyphens=False)


def _clock(seconds: float) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d},{rest % 1000:03d}"
