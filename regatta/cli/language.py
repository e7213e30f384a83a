"""Language models, made of texts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from regatta.cli.common import AsJson, app, count, out
from regatta.cli.data import Letters
from regatta.cli.telling import say_problems

if TYPE_CHECKING:
    from regatta.data.alphabet import Alphabet
    from regatta.decode.language import Fit
    from regatta.decode.ngrams import Ngrams


@app.command("language-model")
def language_model(
    texts: Annotated[
        list[Path], typer.Argument(help="files of a sentence a line, or .jsonl manifests")
    ],
    file: Annotated[Path, typer.Option("--out", "-o", help="the ARPA file to write; .gz packs it")],
    order: Annotated[int, typer.Option("--order", help="the longest n-grams, 1 to 5")] = 3,
    smoothing: Annotated[
        str, typer.Option("--smoothing", help="kneser-ney or add-k")
    ] = "kneser-ney",
    k: Annotated[float, typer.Option("--k", help="what add-k adds to every count")] = 0.01,
    alphabet: Letters = "",
    test: Annotated[
        Path | None, typer.Option("--test", help="other texts: how well are they foreseen?")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a language model of texts, as an ARPA file."""
    from regatta.data.alphabet import ENGLISH, Alphabet, alphabet_of
    from regatta.data.problems import Problems
    from regatta.decode import arpa
    from regatta.decode.ngrams import UNKNOWN
    from regatta.decode.smoothing import Estimation
    from regatta.decode.texts import split_texts, texts_of

    if file.exists():
        raise ValueError(f"{file} is there already: name another with --out")
    estimation, problems = Estimation(order, smoothing, k), Problems()
    named = [text for path in texts for text in texts_of(path, problems)]
    auto = alphabet == "auto"
    letters = alphabet_of(text for _, text in named) if auto else Alphabet(alphabet or ENGLISH)
    sentences = split_texts(named, letters, problems)
    say_problems(problems)
    ngrams = estimation.of(sentences, [UNKNOWN])
    fit = None if test is None else _fit(ngrams, letters, test)
    file.parent.mkdir(parents=True, exist_ok=True)
    arpa.write(file, ngrams)
    words = sum(map(len, sentences))
    if as_json:
        tested = None if fit is None else asdict(fit)
        told = {"file": str(file), "sentences": len(sentences), "words": words,
                "ngrams": ngrams.counts(), "test": tested}  # fmt: skip
        print(json.dumps(told))
        return
    _print(ngrams.counts(), fit)
    source = f"{count(len(sentences), 'sentence')}, {count(words, 'word')}"
    out.print(f"{source}: {file}", soft_wrap=True)


def _fit(ngrams: Ngrams, alphabet: Alphabet, test: Path) -> Fit:
    from regatta.data.problems import Problems
    from regatta.decode.language import LanguageModel
    from regatta.decode.lexicon import Lexicon
    from regatta.decode.texts import split_texts, texts_of

    problems = Problems()
    words = [word for word in ngrams.words if not word.startswith("<")]
    model = LanguageModel.of_ngrams(ngrams, Lexicon.of_words(words, alphabet))
    fit = model.fit(split_texts(texts_of(test, problems), alphabet, problems))
    say_problems(problems)
    return fit


def _print(ngrams: list[int], fit: Fit | None) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("order")
    table.add_column("n-grams", justify="right")
    for order, number in enumerate(ngrams, 1):
        table.add_row(str(order), f"{number:,}")
    out.print(table)
    if fit is not None:
        table = Table(box=SIMPLE_HEAD, show_edge=False)
        for heading in ("test words", "unknown", "perplexity"):
            table.add_column(heading, justify="right")
        found = "-" if fit.perplexity is None else f"{fit.perplexity:.2f}"
        table.add_row(f"{fit.words:,}", f"{fit.unknown:,}", found)
        out.print(table)
