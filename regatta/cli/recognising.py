"""A trained recogniser in use: transcribe recordings and streams, and write it as ONNX."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from regatta.cli.common import app, cores, count, err, out, say_what_was_not_read
from regatta.cli.decoding import (
    Alpha,
    Beta,
    DecoderName,
    Decoders,
    DecodingSettings,
    LexiconFile,
    Lm,
    Mode,
    Width,
)
from regatta.cli.telling import bar, say_problems

if TYPE_CHECKING:
    from regatta.data.problems import Problem
    from regatta.decode import Decoder
    from regatta.decode.decoding import Decoding
    from regatta.recognise.outputs import Wanted
    from regatta.recognise.trained import Trained

_LINE_SECONDS = 10.0  # between lines about the progress, in a pipe

Checkpoint = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="a run's folder, or a .safetensors file")
]


@app.command()
def transcribe(
    checkpoint: Checkpoint,
    audio: Annotated[
        list[str] | None,
        typer.Argument(metavar="AUDIO", help="files and folders; - with --stream: a pipe"),
    ] = None,
    decoder: DecoderName = None,
    mode: Mode = None,
    lm: Lm = None,
    lexicon: LexiconFile = None,
    width: Width = None,
    alpha: Alpha = None,
    beta: Beta = None,
    nbest: Annotated[int, typer.Option(min=1, help="texts a recording, in JSON")] = 1,
    jobs: Decoders = None,
    form: Annotated[str, typer.Option("--format", "-f", help="txt, json or srt")] = "txt",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="a file, or a folder for several")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="write over what is there")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="hear a pipe (AUDIO -), or a microphone (no AUDIO)")
    ] = False,
    rate: Annotated[
        int | None, typer.Option(min=1, help="samples a second of a pipe without a WAV header")
    ] = None,
    settings: DecodingSettings = None,
) -> None:
    """Write down what is said in recordings, or in a stream."""
    from regatta.recognise.options import decoding_of

    _check(audio, form, nbest, to, force, stream, rate)
    given = {"decoder": decoder, "lm": lm, "lexicon": lexicon, "mode": mode, "width": width,
             "alpha": alpha, "beta": beta, "nbest": nbest if nbest > 1 else None}  # fmt: skip
    decoding = decoding_of(given, settings or [])
    if stream:
        from regatta.cli.listening import listen

        listen(checkpoint, decoding, bool(audio), rate, form)
    else:
        _transcribe(checkpoint, decoding, jobs or cores(), audio or [], form, to, force)


def _check(
    audio: list[str] | None, form: str, nbest: int, to: Path | None, force: bool, stream: bool,
    rate: int | None,
) -> None:  # fmt: skip
    from regatta.recognise.forms import FORMS

    if form not in FORMS:
        raise ValueError(f"--format must be one of {', '.join(FORMS)}, not {form}")
    if nbest > 1 and form != "json":
        raise ValueError(f"--nbest is for --format json: {form} has room for one text")
    if force and to is None:
        raise ValueError("--force is for --out")
    if stream:
        if audio not in (None, [], ["-"]):
            raise ValueError("--stream hears a pipe (AUDIO -) or a microphone (no AUDIO), no files")
        if to is not None:
            raise ValueError("--out is not for --stream: let the shell write it (> FILE)")
        if rate is not None and not audio:
            raise ValueError("--rate is for a pipe (AUDIO -): a microphone has the recogniser's")
        return
    if not audio:
        raise ValueError("name recordings to transcribe, or --stream for a microphone")
    if "-" in audio:
        raise ValueError("- is a stream: add --stream")
    if rate is not None:
        raise ValueError("--rate is for --stream: files say theirs themselves")


def _transcribe(
    checkpoint: Path, decoding: Decoding, jobs: int, named: list[str], form: str, to: Path | None,
    force: bool,
) -> None:  # fmt: skip
    from regatta.aside import write_aside
    from regatta.data.problems import Problem
    from regatta.recognise.forms import written
    from regatta.recognise.outputs import places, wanted
    from regatta.recognise.transcribing import Transcriber

    audio = wanted(named)
    if form == "srt" and to is None and len(audio) > 1:
        raise ValueError("--format srt of several recordings needs --out: a file for each")
    files = places(to, audio, form, force) if to is not None else []
    trained, decoder = opened(checkpoint, decoding)
    for file in files:  # who may not write there learns it before anything is computed
        file.parent.mkdir(parents=True, exist_ok=True)
    total = _look_at(audio, trained.features.rate)
    began, seconds, failed = time.monotonic(), 0.0, 0
    with _progress(total) as told:
        transcriber = Transcriber(trained, decoder, decoding.nbest, jobs, told=told)
        results = transcriber.transcribe([one.audio for one in audio])
        for number, result in enumerate(results):
            if isinstance(result, Problem):
                failed += 1
                _say_failure(result)
                continue
            seconds += result.seconds
            text = written(result, form, named=len(audio) > 1 and to is None)
            if to is None:
                print(text, end="", flush=True)
            else:
                write_aside(files[number], text.encode())
    _tell_speed(len(audio) - failed, failed, seconds, time.monotonic() - began)
    if failed:
        raise typer.Exit(1)


def opened(checkpoint: Path, decoding: Decoding) -> tuple[Trained, Decoder]:
    import torch

    from regatta.recognise.trained import Trained

    torch.set_num_threads(1)  # threads that share a batch wait for each other on a busy machine
    trained = Trained.open(checkpoint)
    return trained, decoding.build(trained.alphabet, trained.words, say_problems)


def _say_failure(problem: Problem) -> None:
    from regatta.data.problems import REMEDIES

    remedy = "check its name" if problem.kind == "missing file" else REMEDIES[problem.kind]
    detail = f" ({problem.detail})" if problem.detail not in ("", problem.where) else ""
    text = f"{problem.where}: {problem.kind}{detail}: {remedy}"
    err.print(f"[red]failed:[/red] {escape(text)}", soft_wrap=True)


def _look_at(audio: list[Wanted], rate: int) -> float:
    """The seconds of all; tells once of each kind of thing that reading mends."""
    from regatta.data.audio import shape
    from regatta.data.problems import REMEDIES, BadUtterance

    seconds, said = 0.0, dict[str, str]()
    for one in audio:
        try:
            form = shape(one.audio)
        except BadUtterance:  # told when its turn comes
            continue
        seconds += form.seconds
        for kind, detail in form.notes(rate, None):
            said.setdefault(kind, f"{one.audio}: {kind} ({detail}): {REMEDIES[kind]}")
    say_what_was_not_read(said.values())
    return seconds


@contextmanager
def _progress(total: float) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal; in a pipe a line now and then."""
    done, latest = 0.0, time.monotonic()
    with bar("transcribing", round(total), "s of speech") as advance:

        def told(seconds: float) -> None:
            nonlocal done, latest
            done += seconds
            advance(seconds)
            if not err.is_terminal and time.monotonic() - latest >= _LINE_SECONDS:
                latest = time.monotonic()
                err.print(f"transcribed {done:,.0f} of {total:,.0f} s")

        yield told


def _tell_speed(files: int, failed: int, seconds: float, took: float) -> None:
    if not files:
        return
    left_out = f", {failed} failed" if failed else ""
    err.print(
        f"{count(files, 'recording')}{left_out}: {seconds:,.1f} s of audio in {took:,.1f} s, "
        f"real-time factor {took / max(seconds, 1e-9):.3g}",
        soft_wrap=True,
    )


@app.command()
def export(
    checkpoint: Checkpoint,
    file: Annotated[Path, typer.Option("--out", "-o", help="the .onnx file to write")],
    force: Annotated[bool, typer.Option("--force", help="write over what is there")] = False,
) -> None:
    """Write a recogniser's network as an ONNX file, checked against the original."""
    if file.suffix != ".onnx":
        raise ValueError(f"--out {file} must end in .onnx")
    if file.exists() and not force:
        raise ValueError(f"{file} is there already: name another --out, or add --force")
    from regatta.recognise.onnx_file import export
    from regatta.recognise.trained import Trained

    made = export(Trained.open(checkpoint), file)
    if not made.words:
        say_what_was_not_read(["the words of the training are too many: they are not in the file"])
    out.print(
        f"{made.path}: {made.bytes / 1e6:.2f} MB; the largest difference to the original is "
        f"{made.difference:.2g}",
        soft_wrap=True,
    )
