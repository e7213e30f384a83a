"""How well a recogniser writes down what is said: outputs once, then texts by any decoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regatta.data.alphabet import Alphabet
from regatta.data.plan import Numbers
from regatta.data.utterances import Utterances
from regatta.decode import Decoder
from regatta.decode.decoding import Decoding
from regatta.decode.errors import Comparison, Pair
from regatta.decode.listing import columns
from regatta.models.recogniser import Recogniser
from regatta.tasks.speech import Speech, by_length, ctc, outputs_of


class Entry(NamedTuple):
    """A decoder, and how it was asked for."""

    decoding: Decoding
    decoder: Decoder


@dataclass(frozen=True)
class Outputs:
    """What a network puts out for utterances; decoders read it as often as they like."""

    given: Utterances
    batches: tuple[tuple[Numbers, Tensor, Tensor], ...]  # log probabilities, frames that count
    loss: float  # the mean over utterances
    audio: float  # seconds of speech
    seconds: float  # that it took

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: Recogniser,
        given: Utterances,
        numbers: Numbers,
        heard: Callable[[int], None] = lambda number: None,
    ) -> Outputs:
        """Of these utterances; `heard` is told how many more are."""
        batches, loss, began = [], 0.0, time.perf_counter()
        for some in by_length(given.index, numbers):
            features, frames, targets, symbols, *_ = given.batch(some)
            outputs, spoken = outputs_of(model, features, frames)
            blank = given.checks.alphabet.blank
            loss += ctc(outputs.transpose(0, 1), spoken, targets, symbols, blank).item()
            batches.append((some, outputs, spoken))
            heard(len(some))
        seconds = time.perf_counter() - began
        audio = float(given.index.seconds[numbers].sum())
        return cls(given, tuple(batches), loss / len(numbers), audio, seconds)

    def scored(self, entry: Entry, heard: Callable[[int], None] = lambda number: None) -> Scored:
        decoder = entry.decoder
        _, outputs, frames = self.batches[0]
        decoder.decode(outputs[:1], frames[:1])  # what is compiled is compiled before the clock
        found: dict[int, str] = {}
        began = time.perf_counter()
        for numbers, outputs, frames in self.batches:
            best = (hypotheses[0].text for hypotheses in decoder.decode(outputs, frames))
            found |= zip(numbers.tolist(), best, strict=True)
            heard(len(numbers))
        seconds = time.perf_counter() - began
        return Scored(entry.decoding, self, Comparison.of(self._pairs(found)), seconds)

    def _pairs(self, found: dict[int, str]) -> list[Pair]:
        """In the order of the corpus."""
        speakers, names = (self.given.index.texts(column) for column in ("speaker", "id"))
        return [
            Pair(self.given.texts[number], found[number], speakers[number], names[number])
            for number in sorted(found)
        ]


@dataclass(frozen=True)
class Scored:
    """What a decoder made of outputs."""

    decoding: Decoding
    outputs: Outputs
    comparison: Comparison
    decoding_seconds: float

    @property
    def seconds(self) -> float:
        """Of the network and the decoder together, as the paper has them."""
        return self.outputs.seconds + self.decoding_seconds

    @property
    def real_time_factor(self) -> float:
        return self.seconds / self.outputs.audio

    def to_json(self) -> dict[str, Any]:
        rates = self.comparison.rates
        is_greedy = self.decoding.decoder == "greedy"
        return {
            "decoder": self.decoding.decoder,
            "width": None if is_greedy else self.decoding.width,
            "seconds": self.seconds,
            "decoding_seconds": self.decoding_seconds,
            "real_time_factor": self.real_time_factor,
        } | {name: getattr(rates, name) for name in ("wer", "cer", "cer_longer")}


def entries(
    decoding: Decoding, widths: Sequence[int], alphabet: Alphabet, texts: Iterable[str]
) -> list[Entry]:
    """One decoder; or the best path to compare with, and beams of all these widths."""
    decoder = decoding.build(alphabet, texts)
    if not widths:
        return [Entry(decoding, decoder)]
    from regatta.decode.search import BeamSearch  # what is compiled takes its time

    assert isinstance(decoder, BeamSearch)
    best_path = replace(decoding, decoder="greedy")
    beams = [Entry(replace(decoding, width=n), decoder.with_width(n)) for n in widths]
    return [Entry(best_path, best_path.build(alphabet)), *beams]


def texts_for(decoding: Decoding, task: Speech, words: Sequence[str]) -> Sequence[str]:
    """What a decoder counts or knows: words are in the recogniser's file, sentences are not."""
    counts = decoding.decoder == "words" and decoding.mode != "words" and not decoding.lm
    if not counts:
        return words
    try:
        return task.open().texts
    except ValueError as error:
        raise ValueError(
            f"decoding.mode={decoding.mode} counts the texts of the training, which are not here "
            f"({error}): name a language model with --lm"
        ) from None


def widths_table(rows: Sequence[Scored]) -> str:
    """Time and errors by beam width: Table 3 of Baunsgaard et al., and the real-time factor."""
    headings = ("BW", "Time (sec)", "decoding", "real time", "WER", "CER", "CER longer")
    cells = [headings]
    for row in rows:
        rates = row.comparison.rates
        cells.append(
            (
                "greedy" if row.decoding.decoder == "greedy" else str(row.decoding.width),
                f"{row.seconds:.2f}",
                f"{row.decoding_seconds:.2f}",
                f"{row.real_time_factor:.4f}",
                f"{100 * rates.wer:.2f}",
                f"{100 * rates.cer:.3f}",
                f"{100 * rates.cer_longer:.3f}",
            )
        )
    return columns(cells)
