"""How a decoder is asked for: what follows from what is named, and what does not go together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from regatta.config import assign
from regatta.decode.decoding import Decoding

_OF_WORDS = ("mode", "lm", "lexicon", "alpha", "beta", "ends", "paper")
_OF_MODELS = ("lm", "alpha", "beta", "ends")
_OF_BEAMS = ("width", "nbest", "pruning")


GREEDY = Decoding()


@dataclass(frozen=True)
class _Settings:
    """What --set may name."""

    decoding: Decoding = GREEDY


def decoding_of(
    given: dict[str, Any], settings: list[str], base: Decoding = GREEDY, has_texts: bool = False
) -> Decoding:
    """Of options by name (None: not given) and of `decoding.X=Y` settings; else as in `base`.

    Who names a lexicon, a mode or a language model wants words; who names a model wants it used.
    Who `has_texts` of the training can count them for a language model.
    """
    named = {name: value for name, value in given.items() if value is not None}
    decoding = replace(assign(_Settings(base), settings).decoding, **named)
    names = set(named) | {_name(setting) for setting in settings}
    if "decoder" not in names and names & {"mode", "lm", "lexicon"}:
        decoding = replace(decoding, decoder="words")
    if "mode" not in names and "lm" in names and decoding.mode == "words":
        decoding = replace(decoding, mode="ngrams")
    _check(decoding, names)
    needs_model = decoding.decoder == "words" and decoding.mode != "words"
    if needs_model and not decoding.lm and not has_texts:
        raise ValueError(
            f"mode {decoding.mode} needs a language model: name one with --lm (a checkpoint keeps "
            "the words of its training, not its texts)"
        )
    return decoding


def _name(setting: str) -> str:
    """`decoding.pruning.least=0.1`: pruning."""
    return setting.partition("=")[0].strip().removeprefix("decoding.").partition(".")[0]


def _check(decoding: Decoding, names: set[str]) -> None:
    """Nothing that was named may go unused."""
    for name in sorted(names):
        if decoding.decoder == "greedy" and name in _OF_BEAMS and not _one(decoding, name):
            raise ValueError(
                f"{name} is for the decoders prefix and words, not for greedy: add --decoder prefix"
            )
        if decoding.decoder != "words" and name in _OF_WORDS:
            raise ValueError(
                f"{name} is for the decoder words, not for {decoding.decoder}: add --decoder words"
            )
        if decoding.mode == "words" and name in _OF_MODELS:
            raise ValueError(
                f"{name} is for a language model, which mode words has not: add --mode ngrams"
            )


def _one(decoding: Decoding, name: str) -> bool:
    return name == "nbest" and decoding.nbest == 1
