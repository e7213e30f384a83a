"""Outputs to decode, and what decoders must find in them, written out path by path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, product

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from regatta.data.alphabet import Alphabet
from regatta.decode import Decoder, Hypothesis
from regatta.decode.beam import prefix_beam
from regatta.decode.graph import begin, end, score
from regatta.decode.greedy import Greedy
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.rules import MODES
from regatta.decode.words import word_beam

AB = Alphabet("ab ")
APART = Alphabet("ab ", separator="~")
NO_SPACE = Alphabet("ab")
ALPHABETS = (AB, APART, NO_SPACE)
EVERYTHING = 4000  # more beams than there are texts
STRINGS = ["".join(letters) for n in range(1, 5) for letters in product("ab", repeat=n)]
SAID = ["a ab b", "ba a", "b"]  # to make language models of
alphabets = st.sampled_from(ALPHABETS)


def log(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def speech(frames: int, alphabet: Alphabet = AB, seed: int = 0, peaky: float = 2.0) -> Tensor:
    """[frame, symbol]: as random as can be."""
    drawn = torch.randn(frames, alphabet.outputs, generator=torch.Generator().manual_seed(seed))
    return (peaky * drawn.double()).log_softmax(-1)


def peaks(symbols: Sequence[int], alphabet: Alphabet, sure: float = 0.9) -> Tensor:
    """[frame, symbol]: the symbol of each frame is as sure as that."""
    rest = (1 - sure) / (alphabet.outputs - 1)
    rows = torch.full((len(symbols), alphabet.outputs), rest, dtype=torch.float64)
    rows[torch.arange(len(symbols)), torch.tensor(symbols)] = sure
    return rows.log()


def heard(decoder: Decoder, outputs: Tensor) -> list[Hypothesis]:
    (found,) = decoder.decode(outputs[None], [len(outputs)])
    return found


@st.composite
def outputs_of_few_frames(draw: st.DrawFn, alphabet: Alphabet = AB) -> Tensor:
    frames = draw(st.integers(1, 4))
    weight = st.one_of(st.just(0.0), st.floats(0.01, 1.0))
    row = st.lists(weight, min_size=alphabet.outputs, max_size=alphabet.outputs)
    rows = draw(st.lists(row, min_size=frames, max_size=frames))
    assume(all(sum(row) > 0 for row in rows))
    return log([[value / sum(row) for value in row] for row in rows])


def lexicons(alphabet: Alphabet) -> st.SearchStrategy[Lexicon]:
    some = st.sets(st.sampled_from(STRINGS), min_size=1, max_size=6)
    return some.map(lambda words: Lexicon.of_words(words, alphabet))


def model_of(lexicon: Lexicon) -> LanguageModel:
    said = SAID if " " in lexicon.alphabet.symbols else [t.replace(" ", "") for t in SAID]
    return LanguageModel.of_texts(said, lexicon, order=2)


@st.composite
def decoders(draw: st.DrawFn, alphabet: Alphabet, nbest: int = 1) -> Decoder:
    """Any, often with beams too narrow to find the best."""
    kind = draw(st.sampled_from(["greedy", "prefix", *MODES]))
    width = draw(st.integers(1, 12))
    if kind == "greedy":
        return Greedy(alphabet)
    if kind == "prefix":
        return prefix_beam(alphabet, width, nbest=nbest)
    lexicon = draw(lexicons(alphabet))
    beta, ends = draw(st.floats(-2, 2)), draw(st.booleans())
    return word_beam(lexicon, model_of(lexicon), kind, width, beta=beta, ends=ends, nbest=nbest)


def add(found: dict[str, float], text: str, logp: float) -> None:
    found[text] = np.logaddexp(found.get(text, -math.inf), logp)


def symbols_by_path(outputs: Tensor, alphabet: Alphabet) -> dict[tuple[int, ...], float]:
    """All that can be written, symbol by symbol, with its log probability: the sum over paths."""
    found: dict[tuple[int, ...], float] = {}
    for path in product(range(alphabet.outputs), repeat=len(outputs)):
        logp = sum(float(outputs[frame, symbol]) for frame, symbol in enumerate(path))
        if logp > -math.inf:
            written = tuple(symbol for symbol, _ in groupby(path) if symbol != alphabet.blank)
            found[written] = np.logaddexp(found.get(written, -math.inf), logp)
    return found


def texts_by_path(outputs: Tensor, alphabet: Alphabet = AB) -> dict[str, float]:
    """The same as texts, separators written out."""
    every = alphabet.symbols + alphabet.separator
    found: dict[str, float] = {}
    for written, logp in symbols_by_path(outputs, alphabet).items():
        add(found, "".join(every[symbol] for symbol in written), logp)
    return found


def judged(words: list[str], model: LanguageModel, ends: bool) -> float:
    graph, numbers = model.graph, model.lexicon.numbers
    total, context = 0.0, begin(graph)
    for word in words:
        logp, context = score(graph, context, numbers[word])
        total += logp
    return total + (end(graph, context) if ends else 0.0)


def only_words(texts: dict[str, float], lexicon: Lexicon) -> dict[str, float]:
    """Of texts whose words are all known; without any, of those that can go on in one way only."""
    alphabet = lexicon.alphabet
    every = alphabet.symbols + alphabet.separator
    spelled = {"".join(every[n] for n in alphabet.encoded(word)): word for word in lexicon.words}
    whole: dict[str, float] = {}
    begun: dict[str, float] = {}
    for text, logp in texts.items():
        words, found = text.split(), whole
        if words and words[-1] not in spelled and not text.endswith(" "):
            longer = [word for word in spelled if word.startswith(words[-1])]
            words[-1:], found = longer if len(longer) == 1 else ["?"], begun
        if all(word in spelled for word in words):
            add(found, " ".join(spelled[word] for word in words), logp)
    return whole or begun
