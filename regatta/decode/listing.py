"""Error rates for people to read: sclite's table, words under words, and what is confused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regatta.decode.errors import Alignment, Comparison, ErrorRates, Step

_MARKS = {"equal": "", "substitute": "S", "delete": "D", "insert": "I"}
_HEADINGS = ("speaker", "Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")


def table(comparison: Comparison) -> str:
    """A row a speaker and one of all; the last six columns are percentages."""
    rows = [_row(name or "(none)", rates) for name, rates in comparison.by_speaker.items()]
    return columns([_HEADINGS, *rows, _row("Sum/Avg", comparison.rates)])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Cells between bars; the first of a row stands left, the others right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def listing(alignments: Iterable[Alignment]) -> str:
    """Every utterance, what was heard under what was said; errors are in capitals."""
    return "\n\n".join(map(_words_under_words, alignments))


def confusions(comparison: Comparison, number: int | None = 20) -> str:
    """Which words stand for which, and which are lost or made up, the most frequent first."""
    parts = [
        _counted("substitutions", comparison.most("substitute"), number),
        _counted("deletions", comparison.most("delete"), number),
        _counted("insertions", comparison.most("insert"), number),
    ]
    return "\n\n".join(parts)


def report(comparison: Comparison) -> str:
    """All of it, for a file."""
    rates = comparison.rates
    cer = (
        f"%CER {100 * rates.cer:.2f} [{rates.character_edits} / {rates.characters} ], "
        f"{100 * rates.cer_longer:.2f} as the mean over utterances of edits / the longer text"
    )
    heads = [f"{rates}\n{cer}", table(comparison), confusions(comparison, None)]
    return "\n\n".join([*heads, listing(comparison.alignments)]) + "\n"


def _row(name: str, rates: ErrorRates) -> tuple[str, ...]:
    of_words = (rates.correct, rates.substituted, rates.deleted, rates.inserted)
    shares = [count / max(rates.words, 1) for count in of_words]
    percents = [f"{100 * share:.1f}" for share in (*shares, rates.wer, rates.sentence_error)]
    return (name, str(rates.sentences), str(rates.words), *percents)


def _words_under_words(alignment: Alignment) -> str:
    counts = alignment.counts
    who = ", ".join(filter(None, (alignment.pair.name, alignment.pair.speaker)))
    lines: list[list[str]] = [["REF: "], ["HYP: "], ["Eval:"]]
    for step in alignment:
        cells = _cells(step)
        width = max(map(len, cells))
        for line, cell in zip(lines, cells, strict=True):
            line.append(cell.ljust(width))
    scores = " ".join(str(counts[kind]) for kind in ("equal", "substitute", "delete", "insert"))
    heading = [f"id: ({who})"] if who else []
    written = [" ".join(line).rstrip() for line in lines]
    return "\n".join([*heading, f"Scores: (#C #S #D #I) {scores}", *written])


def _cells(step: Step) -> tuple[str, str, str]:
    if step.kind == "equal":
        return step.reference, step.hypothesis, ""
    said, heard = step.reference.upper(), step.hypothesis.upper()
    return said or "*" * len(heard), heard or "*" * len(said), _MARKS[step.kind]


def _counted(title: str, found: list[tuple[Step, int]], number: int | None) -> str:
    total = sum(count for _, count in found)
    lines = [f"{title}: {total}, {len(found)} different"]
    for step, count in found[:number]:
        words = [word for word in (step.reference, step.hypothesis) if word]
        lines.append(f"{count:6d}  {' ==> '.join(words)}")
    return "\n".join(lines)
