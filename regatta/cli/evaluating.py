"""How good a trained model is: a recogniser on any speech, others on their task's own data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regatta.cli.common import AsJson, app, out, prepare
from regatta.cli.data import Kind, Name, Outside, Pipes, Split, Words
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
from regatta.cli.telling import print_facts, say_problems

if TYPE_CHECKING:
    from regatta.evaluating import Answer
    from regatta.recognise.evaluating import Scored


@dataclass(frozen=True)
class Asked:
    """What is only for recognisers."""

    data: Path | None = None
    split: str = ""
    kind: str = ""
    name: str = ""
    words: str = ""
    allow_outside: bool = False
    allow_pipes: bool = False
    max_seconds: float | None = None
    set: tuple[str, ...] = ()  # of the decoding
    beam_widths: str = ""
    speaker: tuple[str, ...] = ()
    by_speaker: bool = False
    confusions: int = 0
    listing: Path | None = None
    threads: int = 1  # of the network

    @property
    def given(self) -> list[str]:
        """The options that were used."""
        used = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return [f"--{name.replace('_', '-')}" for name in used]


Model = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run's folder, or a .safetensors that it saved")
]
Data = Annotated[
    Path | None, typer.Option("--data", help="features or a corpus; default: the run's own")
]
BeamWidths = Annotated[
    str, typer.Option("--beam-widths", help="a row each, time and errors: 64,128,256")
]
Speaker = Annotated[
    list[str] | None, typer.Option("--speaker", help="only this one; may be repeated")
]
BySpeaker = Annotated[bool, typer.Option("--by-speaker", help="a row each")]
Confusions = Annotated[
    int, typer.Option("--confusions", min=0, help="so many of each kind, the most frequent")
]
Listing = Annotated[
    Path | None, typer.Option("--listing", help="write there what was heard beside what was said")
]
Longest = Annotated[
    float | None, typer.Option("--max-seconds", help="longer ones are left out (the run's)")
]
NetworkThreads = Annotated[int, typer.Option("--threads", min=1, help="of the network")]


@app.command()
def evaluate(
    model: Model,
    data: Data = None,
    decoder: DecoderName = None,
    mode: Mode = None,
    lm: Lm = None,
    lexicon: LexiconFile = None,
    width: Width = None,
    alpha: Alpha = None,
    beta: Beta = None,
    jobs: Decoders = None,
    settings: DecodingSettings = None,
    widths: BeamWidths = "",
    speaker: Speaker = None,
    by_speaker: BySpeaker = False,
    confusions: Confusions = 0,
    listing: Listing = None,
    max_seconds: Longest = None,
    threads: NetworkThreads = 1,
    split: Split = "",
    kind: Kind = "",
    name: Name = "",
    words: Words = "",
    allow_outside: Outside = False,
    allow_pipes: Pipes = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model: a recogniser on any speech, others on their own data."""
    from regatta.evaluating import Answer

    named = {"decoder": decoder, "mode": mode, "lm": lm, "lexicon": lexicon, "width": width,
             "alpha": alpha, "beta": beta, "jobs": jobs}  # fmt: skip
    chosen = [f"decoding.{key}={value}" for key, value in named.items() if value is not None]
    asked = Asked(
        data, split, kind, name, words, allow_outside, allow_pipes, max_seconds,
        (*(settings or ()), *chosen), widths, tuple(speaker or ()), by_speaker, confusions, listing,
        threads,
    )  # fmt: skip
    answer = Answer.open(model)
    if answer.is_recogniser:
        _recogniser(answer, asked, as_json)
    else:
        _other(answer, asked, as_json)


# -- any task ---------------------------------------------------------------------------------


def _other(answer: Answer, asked: Asked, as_json: bool) -> None:
    from regatta.config import Run

    if asked.given:
        raise ValueError(
            f"{', '.join(asked.given)} is for recognisers; {answer.file} is of the task "
            f"{answer.task.name}, which has data of its own: leave it out"
        )
    prepare([Run(task=answer.task)], not as_json)
    results = answer.results()
    if as_json:
        told = {"model": str(answer.file), "task": answer.task.name, "results": results}
        _print_json(told | {"recorded": answer.recorded})
        return
    found = {name: _beside(value, answer.recorded.get(name)) for name, value in results.items()}
    print_facts({"model": str(answer.file), "task": answer.task.name} | found)


def _print_json(values: dict[str, Any]) -> None:
    """A network that has diverged finds no numbers, and JSON knows none such."""
    from regatta.report.forms import finite

    print(json.dumps(finite(values)))


def _beside(value: float, recorded: float | None) -> str:
    was = "" if recorded is None else f" ({recorded:.4f} in its run)"
    return f"{value:.4f}{was}"


# -- recognisers ------------------------------------------------------------------------------


def _recogniser(answer: Answer, asked: Asked, as_json: bool) -> None:
    from regatta.cli.hearing import hear

    if asked.listing is not None and asked.listing.exists():
        raise ValueError(f"{asked.listing} is there already: name another file with --listing")
    heard = hear(answer, asked, quiet=as_json)
    if asked.listing is not None:
        _write(asked.listing, heard.rows[-1])
    if as_json:
        _print_json(_as_json(answer, asked, heard.rows, heard.left_out.counts()))
        return
    say_problems(heard.left_out)
    _print(answer, asked, heard.rows)


def _write(path: Path, scored: Scored) -> None:
    from regatta.aside import write_aside
    from regatta.decode.listing import report

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, report(scored.comparison).encode())
    except OSError as error:
        raise ValueError(f"{error.strerror or error}: name another file with --listing") from None


def _as_json(
    answer: Answer, asked: Asked, rows: list[Scored], left_out: dict[str, int]
) -> dict[str, Any]:
    last = rows[-1]
    outputs = last.outputs
    return {
        "model": str(answer.file),
        "task": answer.task.name,
        "data": str(asked.data or outputs.given.index.folder),
        "left_out": left_out,
        "audio_seconds": outputs.audio,
        "network_seconds": outputs.seconds,
        "loss": outputs.loss,
        "decoding": asdict(last.decoding),
        "recorded": answer.recorded,
        "beam_widths": [row.to_json() for row in rows] if asked.beam_widths else [],
    } | last.to_json() | last.comparison.to_json(asked.confusions or 20)  # fmt: skip


def _print(answer: Answer, asked: Asked, rows: list[Scored]) -> None:
    from regatta.decode import listing
    from regatta.recognise.evaluating import widths_table

    last = rows[-1]
    print_facts(_facts(answer, asked, last))
    parts = [widths_table(rows)] if asked.beam_widths else []
    if asked.by_speaker:
        by_name = last.comparison.by_speaker
        parts.append(listing.table(last.comparison) if by_name else "The data name no speakers.")
    if asked.confusions:
        parts.append(listing.confusions(last.comparison, asked.confusions))
    for part in parts:
        out.print()
        out.print(part, markup=False, soft_wrap=True)
    if asked.listing is not None:
        out.print(f"Listing: {asked.listing}", markup=False, soft_wrap=True)


def _facts(answer: Answer, asked: Asked, last: Scored) -> dict[str, str]:
    rates, outputs = last.comparison.rates, last.outputs
    facts = {
        "model": str(answer.file),
        "data": f"{asked.data or outputs.given.index.folder}: {rates.sentences:,} utterances, "
        f"{rates.words:,} words, {outputs.audio:,.1f} s",
        "decoder": _how(last),
        "WER": f"{100 * rates.wer:.2f} %: {rates.substituted:,} substituted, {rates.deleted:,} "
        f"deleted, {rates.inserted:,} inserted",
        "CER": f"{100 * rates.cer:.2f} %; {100 * rates.cer_longer:.2f} % as the mean over "
        "utterances of edits / the longer text",
        "sentences": f"{100 * rates.sentence_error:.2f} % wrong",
        "loss": f"{outputs.loss:.4f}",
        "time": f"network {outputs.seconds:.2f} s, decoding {last.decoding_seconds:.2f} s: "
        f"{last.real_time_factor:.4f} of real time",
    }
    if asked.data is None and "wer" in answer.recorded:
        was = ", ".join(f"{name} {value:.4f}" for name, value in answer.recorded.items())
        facts["in its run"] = was
    return facts


def _how(scored: Scored) -> str:
    decoding = scored.decoding
    if decoding.decoder == "greedy":
        return "greedy: the best path"
    how = f"{decoding.decoder}, {decoding.width} beams"
    if decoding.decoder == "prefix" or decoding.mode == "words":
        return how
    source = decoding.lm or "the texts of the training"
    return f"{how}, {decoding.mode} of {source}, alpha {decoding.alpha:g}, beta {decoding.beta:g}"
