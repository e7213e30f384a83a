"""A stream as it is heard: a line that changes on a terminal, and lines that do not."""

from __future__ import annotations

import sys
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, cast

from regatta.cli.common import err
from regatta.cli.recognising import opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from regatta.decode.decoding import Decoding
    from regatta.recognise.streaming import Heard
    from regatta.recognise.transcripts import Part

_CLEAR = "\r\x1b[K"  # the line that the cursor is in


def listen(checkpoint: Path, decoding: Decoding, piped: bool, rate: int | None, form: str) -> None:
    from regatta.recognise.sources import microphone, pipe
    from regatta.recognise.streaming import Stream

    trained, decoder = opened(checkpoint, decoding)
    stream, show = Stream(trained, decoder), Show(form, decoding.nbest)
    own = trained.features.rate
    if trained.normalise == "speaker":
        err.print("[yellow]note:[/yellow] a stream is normalised by all speakers of the training: "
                  "its own is not known before the end", soft_wrap=True)  # fmt: skip
    source = (
        pipe(cast(BufferedIOBase, sys.stdin.buffer), rate or own, own) if piped else microphone(own)
    )
    if not piped:
        err.print("listening: Ctrl-C ends")
    try:
        for samples in source:
            show(stream.hear(samples))
    except KeyboardInterrupt:
        pass
    finally:  # what was heard counts, however the stream ended
        show(stream.finish())
    if not stream.seconds:
        raise ValueError("nothing came: a stream is 16-bit samples, or a WAV file")
    err.print(f"{stream.seconds:,.1f} s heard")


class Show:
    """Prints what is sure; what may change only on a terminal, in a line that is written anew."""

    def __init__(self, form: str, nbest: int) -> None:
        self._form, self._nbest = form, nbest
        self._cues = 0  # printed
        self._live = form == "txt" and sys.stdout.isatty()

    def __call__(self, heard: Iterable[Heard]) -> None:
        for one in heard:
            if one.final:
                self._print((_CLEAR if self._live else "") + self._written(one.part))
            elif self._live:
                self._print(_CLEAR + self._shortened(one.part.text))

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _shortened(self, text: str) -> str:
        """The end of it, where it is longer than the line."""
        import shutil

        room = shutil.get_terminal_size().columns - 1
        return text if len(text) <= room else "…" + text[len(text) - room + 1 :]

    def _written(self, part: Part) -> str:
        from regatta.recognise.forms import as_line, cues, found, seconds, subtitles

        if self._form == "txt":
            return part.text + "\n"
        if self._form == "srt":
            new = cues([part])
            self._cues += len(new)
            return subtitles(new, self._cues - len(new) + 1)
        return as_line({"start": seconds(part.start), "end": seconds(part.end)}
                       | found(part.guesses, part.words, self._nbest))  # fmt: skip
