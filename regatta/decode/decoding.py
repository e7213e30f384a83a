"""How texts are found in a recogniser's outputs: options, and the decoder that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from regatta.data.alphabet import Alphabet
from regatta.data.problems import Problems
from regatta.decode import Decoder
from regatta.decode.greedy import Greedy
from regatta.decode.outputs import Pruning

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
        if self.decoder not in DECODERS:
            raise ValueError(
                f"decoding.decoder must be one of {', '.join(DECODERS)}, not {self.decoder}"
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
        lexicon = (
            Lexicon.of_file(self.lexicon, alphabet)
            if self.lexicon
            else Lexicon.of_texts(texts, alphabet)
        )
        tell(lexicon.problems)
        model = None
        if self.mode != "words":
            model = (
                LanguageModel.of_file(self.lm, lexicon)
                if self.lm
                else LanguageModel.of_texts(texts, lexicon, paper=self.paper)
            )
            tell(model.problems)
            if model.unknown == len(lexicon):
                raise ValueError(
                    f"{self.lm} has none of the {len(lexicon)} words of the lexicon: it is of "
                    "another language or alphabet; name another language model, or its own lexicon"
                )
        return word_beam(
            lexicon, model, self.mode, self.width, alpha=self.alpha, beta=self.beta,
            ends=self.ends, paper=self.paper, seed=self.seed, pruning=self.pruning,
            nbest=self.nbest, jobs=self.jobs,
        )  # fmt: skip
