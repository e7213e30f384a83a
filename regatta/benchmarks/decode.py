"""How fast texts are found: word beam search against flashlight-text's LexiconDecoder.

Both search the outputs of a real network for the words of the same lexicon, with as many beams, on
one thread, and add up the paths of a text. The peer may leave no beam out that ours keeps: all
symbols, and a threshold that no score comes to. Its spellings end in a space, so it is given a last
frame whose space is sure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, log
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from regatta.aboard import pin
from regatta.benchmarks import Case, Result, abba
from regatta.benchmarks.heard import Heard, heard
from regatta.decode import Decoder, arpa
from regatta.decode.beam import prefix_beam, space_of
from regatta.decode.errors import ErrorRates, Pair
from regatta.decode.greedy import Greedy
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.ngrams import UNKNOWN
from regatta.decode.smoothing import Estimation
from regatta.decode.words import word_beam

_WIDTHS = (64, 128, 256, 512, 1024)
_AGAINST = (64, 256)  # widths of which ours is held against the peer's
_SPEED, _WER, _GROWTH = 1.0, 1.0, 16.0  # bars
_FIRST_CALL = 5.0  # seconds
_MOST_STARTS = 5
_ALPHA, _BETA = 0.5, 1.5
_NO_THRESHOLD = 1e9
_SMEARING = {"words": "NONE", "ngrams": "NONE", "forecast": "LOGADD"}  # what comes closest
_NEEDS = "bench decode needs flashlight-text to compare with: pip install flashlight-text"

Decode = Callable[[Tensor], str]
_SCRIPT = """
import time, torch
began = time.perf_counter()
from regatta.data.alphabet import Alphabet
from regatta.decode.decoding import Decoding
decoder = Decoding("words", mode="MODE").build(Alphabet(), ["the cat sat", "on the mat"])
decoder.decode(torch.zeros(1, 50, 29).log_softmax(-1), [50])
print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Sides:
    """Both decoders, made of the same lexicon and the same language model."""

    spoken: Heard
    lexicon: Lexicon
    model: LanguageModel
    file: Path  # the model as an ARPA file

    @classmethod
    def of(cls, spoken: Heard, folder: Path) -> Sides:
        file = folder / "model.arpa"
        sentences = [text.split() for text in spoken.learnt]
        arpa.write(file, Estimation().of(sentences, [UNKNOWN]))
        lexicon = Lexicon.of_texts(spoken.learnt, spoken.alphabet)
        return cls(spoken, lexicon, LanguageModel.of_file(file, lexicon), file)

    def ours(self, mode: str, width: int) -> Decode:
        found = word_beam(
            self.lexicon, self.model, mode, width, alpha=_ALPHA, beta=_BETA, ends=True
        )
        return partial(_best, found)

    def peer(self, mode: str, width: int) -> Decode:
        try:
            from flashlight.lib.text import decoder
        except ImportError:
            raise ValueError(_NEEDS) from None
        alphabet, words = self.spoken.alphabet, self.lexicon.words
        space = space_of(alphabet)
        model = decoder.ZeroLM() if mode == "words" else self._kenlm()
        tree = decoder.Trie(alphabet.outputs, space)
        for number, word in enumerate(words):
            _, alone = model.score(model.start(False), number)
            tree.insert([*alphabet.encoded(word), space], number, alone)
        tree.smear(getattr(decoder.SmearingMode, _SMEARING[mode]))
        options = decoder.LexiconDecoderOptions(
            beam_size=width, beam_size_token=alphabet.outputs, beam_threshold=_NO_THRESHOLD,
            lm_weight=0.0 if mode == "words" else _ALPHA * log(10),  # it counts in powers of ten
            word_score=0.0 if mode == "words" else _BETA, unk_score=-inf, sil_score=0.0,
            log_add=True, criterion_type=decoder.CriterionType.CTC,
        )  # fmt: skip
        search = decoder.LexiconDecoder(
            options, tree, model, space, alphabet.blank, len(words), [], False
        )
        last = torch.full((1, alphabet.outputs), -inf)
        last[0, space] = 0.0

        def decode(outputs: Tensor) -> str:
            frames = torch.cat((outputs, last))
            best, *_ = search.decode(frames.data_ptr(), *frames.shape)
            return " ".join(words[number] for number in best.words if number >= 0)

        decode.model = model  # type: ignore[attr-defined]  # the search does not keep it alive
        return decode

    def _kenlm(self) -> Any:
        from flashlight.lib.text.decoder.kenlm import KenLM
        from flashlight.lib.text.dictionary import Dictionary

        numbers = Dictionary()
        for word in self.lexicon.words:
            numbers.add_entry(word)
        with _silence():
            return KenLM(str(self.file), numbers)


def decode(pairs: int) -> Result:
    torch.set_num_threads(1)
    spoken = heard()  # trained once, before anything is timed
    starts = min(pairs, _MOST_STARTS)
    first_calls = [case for mode in ("words", "forecast") for case in _first_calls(mode, starts)]
    pin(0)
    with tempfile.TemporaryDirectory(prefix="regatta-") as folder:
        sides = Sides.of(spoken, Path(folder))
        cases: list[Case] = []
        for mode in _SMEARING:
            for width in _AGAINST:
                cases += _against(sides, mode, width, pairs)
        cases += [_growth(sides, pairs), *first_calls]
        details = _speeds(sides)
    return Result("decode", "ours / LexiconDecoder, one thread", cases, details=details)


def _against(sides: Sides, mode: str, width: int, pairs: int) -> Iterator[Case]:
    work = {"A": sides.ours(mode, width), "B": sides.peer(mode, width)}
    utterances = sides.spoken.outputs
    texts = {side: [each(one) for one in utterances] for side, each in work.items()}
    seconds: dict[str, list[float]] = {"A": [], "B": []}
    for side in abba(pairs):
        seconds[side].append(_seconds(work[side], utterances[::2]))
    ratios = [b / a for a, b in zip(seconds["A"], seconds["B"], strict=True)]
    ours, its = (f"{1000 * median(seconds[side]):.2f} ms" for side in "AB")
    yield Case(f"{mode}, width {width}: speed", ratios, _SPEED, ours, its)
    a, b = (_wer(sides.spoken, texts[side]) for side in "AB")
    errors = f"{mode}, width {width}: word errors"
    ratio = a / b if b else float(a > 0)
    yield Case(errors, [ratio], _WER, f"WER {a:.3f}", f"WER {b:.3f}", at_most=True)


def _growth(sides: Sides, pairs: int) -> Case:
    narrow, wide = (sides.ours("words", width) for width in (_WIDTHS[0], _WIDTHS[-1]))
    some = sides.spoken.outputs[::4]
    times = [(_seconds(wide, some), _seconds(narrow, some)) for _ in range(pairs)]
    ours, few = (1000 * median(column) for column in zip(*times, strict=True))
    name = f"words, width {_WIDTHS[-1]} / {_WIDTHS[0]}: time"
    ratios = [a / b for a, b in times]
    return Case(name, ratios, _GROWTH, f"{ours:.2f} ms", f"{few:.2f} ms", at_most=True)


def _first_calls(mode: str, starts: int) -> Iterator[Case]:
    """Fresh processes, from PyTorch on: without anything compiled, then with what was kept."""
    cold, warm = [], []
    for _ in range(starts):
        with tempfile.TemporaryDirectory(prefix="regatta-") as folder:
            cold.append(_first_call(mode, folder))
            warm.append(_first_call(mode, folder))
    for kind, seconds in (("nothing compiled", cold), ("compiled", warm)):
        name = f"{mode}, first call, {kind}"
        shares = [each / _FIRST_CALL for each in seconds]
        said = f"{median(seconds):.2f} s"
        yield Case(name, shares, 1.0, said, f"{_FIRST_CALL:g} s", at_most=True)


def _first_call(mode: str, folder: str) -> float:
    command = [sys.executable, "-c", _SCRIPT.replace("MODE", mode)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def _speeds(sides: Sides) -> list[dict[str, str | float]]:
    alphabet = sides.spoken.alphabet
    decoders: dict[tuple[str, str], Decode] = {
        ("greedy", "-"): partial(_best, Greedy(alphabet)),
        ("prefix", "64"): partial(_best, prefix_beam(alphabet, 64)),
    }
    for mode in _SMEARING:
        for width in _WIDTHS:
            decoders[mode, str(width)] = sides.ours(mode, width)
    return [_speed(sides, name, width, each) for (name, width), each in decoders.items()]


def _speed(sides: Sides, name: str, width: str, each: Decode) -> dict[str, str | float]:
    spoken = sides.spoken
    wer = _wer(spoken, [each(outputs) for outputs in spoken.outputs])
    seconds = min(_seconds(each, spoken.outputs) for _ in range(2))
    return {
        "decoder": name,
        "width": width,
        "ms an utterance": 1000 * seconds,
        "x real time": spoken.seconds / (seconds * len(spoken.outputs)),
        "WER": wer,
    }


def _best(decoder: Decoder, outputs: Tensor) -> str:
    ((best, *_),) = decoder.decode(outputs[None], [len(outputs)])
    return best.text


def _seconds(work: Decode, utterances: Sequence[Tensor]) -> float:
    """In the mean of the utterances."""
    began = time.perf_counter()
    for outputs in utterances:
        work(outputs)
    return (time.perf_counter() - began) / len(utterances)


def _wer(spoken: Heard, found: list[str]) -> float:
    pairs = [Pair(said, text) for said, text in zip(spoken.texts, found, strict=True)]
    return ErrorRates.of(pairs).wer


@contextmanager
def _silence() -> Iterator[None]:
    """Of what is not Python: KenLM tells of every file that it reads."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
