"""Options of whoever decodes, for the commands that do."""

from __future__ import annotations

from typing import Annotated

import typer

DecoderName = Annotated[str | None, typer.Option("--decoder", help="greedy, prefix or words")]
Mode = Annotated[
    str | None, typer.Option("--mode", help="of words: words, ngrams, forecast or sample")
]
Lm = Annotated[str | None, typer.Option("--lm", help="an ARPA file, or texts to count")]
LexiconFile = Annotated[str | None, typer.Option("--lexicon", help="a file of a word a line")]
Width = Annotated[int | None, typer.Option("--width", min=1, help="beams")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="weight of the language model")]
Beta = Annotated[float | None, typer.Option("--beta", help="for every finished word")]
Decoders = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="threads that decode")]
DecodingSettings = Annotated[
    list[str] | None, typer.Option("--set", help="of the decoding: decoding.pruning.least=0.001")
]
