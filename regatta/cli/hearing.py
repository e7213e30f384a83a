"""From what `regatta evaluate` was asked to what a recogniser heard. Imports PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from regatta.cli.common import teller
from regatta.cli.data import pairs
from regatta.cli.evaluating import Asked
from regatta.cli.telling import bar
from regatta.data.corpora import Reading
from regatta.data.problems import Problems
from regatta.data.shards import Index
from regatta.decode.decoding import Decoding
from regatta.evaluating import Answer
from regatta.recognise import spoken
from regatta.recognise.evaluating import Outputs, Scored, entries, texts_for
from regatta.recognise.options import decoding_of
from regatta.recognise.trained import Trained
from regatta.tasks.speech import Speech
from regatta.tasks.spoken import silent


@dataclass(frozen=True)
class Heard:
    rows: list[Scored]  # one, or one a beam width after that of the best path
    left_out: Problems


def hear(answer: Answer, asked: Asked, quiet: bool) -> Heard:
    task, trained = answer.task, Trained.open(answer.file)
    assert isinstance(task, Speech)
    widths, decoding = _widths(asked.beam_widths), _decoding(task, asked)
    texts = texts_for(decoding, task, trained.words)
    decoders = entries(decoding, widths, trained.alphabet, texts)
    torch.set_num_threads(asked.threads)
    longest = task.max_seconds if asked.max_seconds is None else asked.max_seconds
    with _features(task, trained, asked, decoding.jobs, quiet) as index:
        given = spoken.utterances(index, trained, longest, asked.data or index.folder)
        numbers = spoken.of_speakers(given, list(asked.speaker))
        with bar("hearing", len(numbers), "utterances", quiet) as heard:
            outputs = Outputs.of(trained.model, given, numbers, heard)
    with bar("decoding", len(numbers) * len(decoders), "utterances", quiet) as heard:
        rows = [outputs.scored(entry, heard) for entry in decoders]
    return Heard(rows, Problems([*index.problems, *given.problems]))


def _decoding(task: Speech, asked: Asked) -> Decoding:
    """The run's own, but for what was asked; who wants beams and has none searches words."""
    chosen = decoding_of({}, list(asked.set), task.decoding, has_texts=True)
    if not asked.beam_widths or chosen.decoder != "greedy":
        return chosen
    if "decoding.decoder=greedy" in asked.set:
        raise ValueError("--beam-widths: greedy has no beams, choose --decoder prefix or words")
    return replace(chosen, decoder="words")


def _widths(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [0]
    if any(width < 1 for width in found):
        raise ValueError(f"--beam-widths {text!r}: numbers of 1 or more with commas between them")
    return found


@contextmanager
def _features(
    task: Speech, trained: Trained, asked: Asked, jobs: int, quiet: bool
) -> Iterator[Index]:
    words = dict(pairs(asked.words, "--words"))
    reading = Reading(
        asked.kind, asked.split, asked.allow_outside, asked.allow_pipes, asked.name, words
    )
    if asked.data is None:
        if reading != Reading():
            raise ValueError("options that say how to read a corpus need one: name it with --data")
        with ExitStack() as stack:
            index = spoken.own(task, silent if quiet else teller(stack))
        yield index
        return
    with (
        bar("extracting", None, "shards", quiet) as advance,
        spoken.described(asked.data, trained.features, reading, jobs, advance) as index,
    ):
        yield index
