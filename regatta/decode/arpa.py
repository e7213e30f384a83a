"""ARPA files: n-gram models as text, the form that all toolkits share. Also packed, as .gz."""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np

from regatta.aside import write_aside
from regatta.data import manifest
from regatta.data.problems import Problems
from regatta.decode.ngrams import Ngrams, Numbers, Reals

SUFFIXES = (".arpa", ".lm")
_MOST_PREAMBLE = 200  # lines of comments before \data\
_LN10 = math.log(10)
_COUNT = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)")


def is_arpa(path: Path) -> bool:
    """By its name, or by what stands in it."""
    named = path.with_suffix("") if path.suffix == ".gz" else path
    if named.suffix in SUFFIXES:
        return True
    beginning = islice(manifest.lines(path, Problems()), _MOST_PREAMBLE)
    return any(line.strip() == "\\data\\" for _, line in beginning)


def read(path: Path | str) -> Ngrams:
    """Raises ValueError that names the line and says what to do."""
    return _Reader(Path(path)).read()


def write(path: Path | str, ngrams: Ngrams) -> None:
    path = Path(path)
    text = "".join(_written(ngrams)).encode()
    write_aside(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _written(ngrams: Ngrams) -> Iterator[str]:
    yield "\\data\\\n"
    for order, number in enumerate(ngrams.counts(), 1):
        yield f"ngram {order}={number}\n"
    logp, backoff = (ngrams.logp / _LN10).tolist(), (ngrams.backoff / _LN10).tolist()
    parent, word = ngrams.parent.tolist(), ngrams.word.tolist()
    texts: list[str] = []
    for order in range(1, ngrams.order + 1):
        yield f"\n\\{order}-grams:\n"
        here = range(ngrams.levels[order], ngrams.levels[order + 1])
        before = ngrams.levels[order - 1]
        begins = [texts[parent[node] - before] + " " if texts else "" for node in here]
        texts = [begin + ngrams.words[word[node]] for begin, node in zip(begins, here, strict=True)]
        for node, text in zip(here, texts, strict=True):
            rest = f"\t{backoff[node]:.10g}" if order < ngrams.order else ""
            yield f"{logp[node]:.10g}\t{text}{rest}\n"
    yield "\n\\end\\\n"


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.number: dict[str, int] = {}  # of words
        self.parts: list[tuple[Numbers, Numbers, Reals, Reals]] = []  # by order, sorted

    def fail(self, what: str, remedy: str, line: int | None = None) -> NoReturn:
        raise ValueError(
            f"{self.path}, line {self.line if line is None else line}: {what}: {remedy}"
        )

    def cut(self) -> NoReturn:
        self.fail("the file ends here, without \\end\\", "it was cut short: copy or write it again")

    def read(self) -> Ngrams:
        lines = self.lines()
        if not any(line == "\\data\\" for line in lines):
            self.fail("there is no \\data\\ here", "name an ARPA file, or a text that ends in .txt")
        declared, heading = self.declared(lines)
        for order, number in enumerate(declared, 1):
            if heading != f"\\{order}-grams:":
                self.fail(f"{heading!r} where \\{order}-grams: is due", "write the file again")
            heading = self.section(lines, order, number)
        if heading != "\\end\\":
            self.fail(f"{heading!r} where \\end\\ is due", "mend the counts under \\data\\")
        return self.made()

    def lines(self) -> Iterator[str]:
        """Those that are not empty; `self.line` says where we are."""
        problems = Problems()
        try:
            for number, line in manifest.lines(self.path, problems):
                if problems:
                    break
                self.line = number
                yield line.strip()
        except ValueError as error:
            if self.line == 0:
                raise
            self.fail(f"nothing can be read after it ({error})", "copy the file again")
        for problem in problems:
            raise ValueError(f"{self.path.parent / problem.where}: not UTF-8: convert it to UTF-8")

    def declared(self, lines: Iterator[str]) -> tuple[list[int], str]:
        """How many n-grams of each order there are to be, and the line after that."""
        numbers: list[int] = []
        for line in lines:
            found = _COUNT.fullmatch(line)
            if found is None and numbers:
                break
            if found is None or int(found[1]) != len(numbers) + 1:
                self.fail(f"{line!r} where ngram {len(numbers) + 1}=... is due", "write it again")
            numbers.append(int(found[2]))
        else:
            self.cut()
        return numbers, line

    def section(self, lines: Iterator[str], order: int, declared: int) -> str:
        """The n-grams of one order; gives the line after them."""
        logp, backoff, rows, where = [], [], [], []
        for line in lines:
            if line.startswith("\\") and (line == "\\end\\" or line.endswith("-grams:")):
                break
            fields = line.split()
            if not order + 1 <= len(fields) <= order + 2:
                due = f"a probability, a {order}-gram and perhaps a back-off weight are due"
                self.fail(f"{line!r:.60} where {due}", "mend it, or copy the file again")
            logp.append(self.real(fields[0]))
            if logp[-1] > 0:
                self.fail(f"{fields[0]} is no logarithm of a probability", "mend the line")
            backoff.append(self.real(fields[-1]) if len(fields) == order + 2 else 0.0)
            rows.append(self.words(fields[1 : order + 1]))
            where.append(self.line)
        else:
            self.cut()
        if len(rows) != declared:
            self.fail(
                f"{len(rows)} {order}-grams end here, but \\data\\ says {declared}",
                "the file is damaged, or mend the count",
            )
        self.keep(np.array(rows, np.int64).reshape(-1, order), logp, backoff, where)
        return line

    def real(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{text!r} is no number", "mend the line")
        return number

    def words(self, words: list[str]) -> list[int]:
        if not self.parts:  # single words make the vocabulary
            return [self.number.setdefault(words[0], len(self.number))]
        try:
            return [self.number[word] for word in words]
        except KeyError as error:
            self.fail(f"the word {error.args[0]!r} is not among the 1-grams", "add it there")

    def keep(
        self, rows: Numbers, logp: list[float], backoff: list[float], where: list[int]
    ) -> None:
        """Sorted, each with its parent's number in the order before."""
        size = len(self.number)
        parent = np.zeros(len(rows), np.int64)
        for column in range(rows.shape[1] - 1):
            keys = parent * size + rows[:, column]
            known = self.parts[column][0] * size + self.parts[column][1]
            parent = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
            missing = np.flatnonzero(known[parent] != keys) if len(known) else np.arange(len(rows))
            if len(missing):
                words = list(self.number)
                lacking = " ".join(words[word] for word in rows[missing[0], : column + 1])
                self.fail(
                    f"its beginning {lacking!r} is not among the {column + 1}-grams",
                    "add it there, or leave out what begins with it",
                    where[missing[0]],
                )
        keys = parent * size + rows[:, -1]
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(np.diff(keys[order]) == 0)
        if len(again):
            self.fail("this n-gram was there before", "remove one", where[order[again[0] + 1]])
        self.parts.append(
            (parent[order], rows[order, -1], np.array(logp)[order], np.array(backoff)[order])
        )

    def made(self) -> Ngrams:
        levels = (0, *map(int, np.cumsum([1, *(len(part[0]) for part in self.parts)])))
        parents = [part[0] + levels[n] for n, part in enumerate(self.parts)]
        self.parts[-1][3][:] = 0  # some files have back-offs there, of contexts too long to be met
        nothing, none = np.zeros(1), np.full(1, -1)
        return Ngrams(
            tuple(self.number),
            np.concatenate([none, *parents]),
            np.concatenate([none, *(part[1] for part in self.parts)]),
            np.concatenate([nothing, *(part[2] for part in self.parts)]) * _LN10,
            np.concatenate([nothing, *(part[3] for part in self.parts)]) * _LN10,
            levels,
        )
