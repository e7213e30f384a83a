"""Word beam search: texts of a lexicon's words, judged by a language model (Scheidl et al.)."""

from __future__ import annotations

from regatta.decode.beam import space_of
from regatta.decode.language import LanguageModel
from regatta.decode.lexicon import Lexicon
from regatta.decode.outputs import NO_PRUNING, Pruning
from regatta.decode.rules import MODES, SAMPLE, WORDS, Rules, check_weights
from regatta.decode.search import BeamSearch


def word_beam(
    lexicon: Lexicon,
    model: LanguageModel | None = None,
    mode: str = "words",
    width: int = 64,
    *,
    alpha: float = 0.5,
    beta: float = 1.5,
    ends: bool = False,
    paper: bool = False,
    seed: int = 0,
    pruning: Pruning = NO_PRUNING,
    nbest: int = 1,
    jobs: int = 1,
) -> BeamSearch:
    """The options are those of `Decoding`."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode}")
    check_weights(alpha, beta)
    number = MODES.index(mode)
    if number != WORDS and model is None:
        raise ValueError(f"mode={mode} needs a language model; mode=words needs none")
    alphabet = lexicon.alphabet
    graph = None if model is None or number == WORDS else model.graph
    rules = Rules(
        width, number, paper, float(alpha), float(beta), alphabet.blank, space_of(alphabet)
    )
    draws = seed if number == SAMPLE else None
    longest = max(len(alphabet.encoded(word)) for word in lexicon.words)
    return BeamSearch(
        alphabet, rules, lexicon.tree, graph, draws, longest, pruning, True, ends, nbest, jobs
    )
