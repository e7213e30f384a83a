"""How texts are found in a recogniser's outputs: options, and the decoder that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from regatta.data.alphabet import Alphabet
from regatta.data.problems import Problems
from regatta.decode import Decoder
from regatta.decode.greedy import Greedy
from regatta.decode.outputs import Pruning
from regatta.decode.rules import MODES, check_weights

DECODERS = ("greedy", "prefix", "words")


def _nobody(problems: Problems) -> None: ...


@dataclass(frozen=True)
class Decoding:
    decoder: str = "greedy"  # the best path; prefix: beams of any letters; words: of known words
    width: int = 64  # beams
    mode: str = "words"  # words: without a language model; ngrams, forecast, sample: with one
    lm: str = ""  # an ARPA file, or texts to count; none: the texts of the training are counted
    lexicon: str = ""  # a file of a word a line; none: the words of the training
    alpha: float = 0.5  # weight of the language model
    beta: float = 1.5  # for every finished word, where there is a language model
    ends: bool = False  # the language model judges the end of an utterance too
    paper: bool = False  # word beam search exactly as it was published
    seed: int = 0  # mode=sample
    nbest: int = 1  # texts an utterance
    jobs: int = 1  # threads
    pruning: Pruning = field(default_factory=Pruning)

    def __post_init__(self) -> None:
        for name, known in (("decoder", DECODERS), ("mode", MODES)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"decoding.{name} must be one of {', '.join(known)}, not {value}")
        for name in ("width", "nbest", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"decoding.{name} must be 1 or more, not {getattr(self, name)}")
        check_weights(self.alpha, self.beta, "decoding.")

    def check(self) -> None:
        """What goes together; options are given one by one, so that it is known only in the end."""
        if self.decoder != "words" and (self.lm or self.lexicon):
            option = "lm" if self.lm else "lexicon"
            raise ValueError(f"decoding.{option} is of use with decoding.decoder=words only")
        if self.mode == "words" and self.lm:
            raise ValueError(
                "decoding.lm is not asked with decoding.mode=words: name another mode, as forecast"
            )

    def build(
        self,
        alphabet: Alphabet,
        texts: Iterable[str] = (),
        tell: Callable[[Problems], None] = _nobody,
    ) -> Decoder:
        """`texts` are those of the training, or its words: for who names no others.

        `tell` hears what of lexicon and language model cannot be used.
        """
        self.check()
        if self.decoder == "greedy":
            return Greedy(alphabet)
        from regatta.decode.beam import prefix_beam  # what is compiled takes its time

        if self.decoder == "prefix":
            return prefix_beam(alphabet, self.width, self.pruning, self.nbest, self.jobs)
        return self._word_beam(alphabet, texts, tell)

    def _word_beam(
        self, alphabet: Alphabet, texts: Iterable[str], tell: Callable[[Problems], None]
    ) -> Decoder:
        from regatta.decode.language import LanguageModel
        from regatta.decode.lexicon import Lexicon
        from regatta.decode.words import word_beam

        texts = list(texts)
        if not (texts or self.lexicon):
            raise ValueError(
                "decoding.decoder=words needs words: name a file of them with decoding.lexicon"
            )
        if not (texts or self.lm) and self.mode != "words":
            raise ValueError(
                f"decoding.mode={self.mode} needs a language model: name one with decoding.lm"
            )
        lexicon = (
            Lexicon.of_file(self.lexicon, alphabet)
            if self.lexicon
            else Lexicon.of_texts(texts, alphabet)
        )
        tell(lexicon.problems)
        model = None
        if self.mode != "words":
            model = (
                LanguageModel.of_file(self.lm, lexicon, self.paper)
                if self.lm
                else LanguageModel.of_texts(texts, lexicon, paper=self.paper)
            )
            tell(model.problems)
        return word_beam(
            lexicon, model, self.mode, self.width, alpha=self.alpha, beta=self.beta,
            ends=self.ends, paper=self.paper, seed=self.seed, pruning=self.pruning,
            nbest=self.nbest, jobs=self.jobs,
        )  # fmt: skip
