"""How texts are found in a recogniser's outputs: options, and the decoder that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regatta.data.alphabet import Alphabet
from regatta.decode import Decoder
from regatta.decode.greedy import Greedy


@dataclass(frozen=True)
class Decoding:
    decoder: str = "greedy"

    def build(self, alphabet: Alphabet, texts: Iterable[str] = ()) -> Decoder:
        return Greedy(alphabet)
