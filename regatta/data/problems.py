"""What is wrong with a corpus: counted, named, never silent and never a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

# What can be wrong, and what a user can do about it.
REMEDIES = {
    "missing file": "restore the file, or remove the line that names it",
    "unreadable file": "check who may read it",
    "unreadable audio": "convert it to WAV or FLAC",
    "truncated audio": "copy the file again from its source",
    "empty audio": "remove it: there is nothing to hear",
    "silent audio": "remove it: every sample is zero",
    "broken samples": "write the file again: some samples are not numbers",
    "bad segment": "mend start and duration: they lie outside the recording",
    "no such channel": "name a channel that the recording has",
    "path outside the corpus": "move the file into the corpus, or allow it with --allow-outside",
    "command refused": "allow programs in wav.scp with --allow-pipes, if you trust them",
    "command failed": "run the command of wav.scp by hand to see why",
    "duplicate id": "rename one of them: only the first is used",
    "broken line": "mend the line",
    "not UTF-8": "convert the file to UTF-8",
    "no transcript": "put a .txt beside it, or read it from file names with --name",
    "empty transcript": "transcribe it, or leave it out",
    "unknown symbols": "spell them out, or name an alphabet that has them (--alphabet)",
    "too long": "cut it, or allow more with --max-seconds",
    "too short": "leave it out: the window of the network is longer",
    "transcript too long for its audio": "check the transcript: CTC needs a frame a symbol",
    "no times": "import alignments with the corpus (--align)",
    "broken alignment": "mend the alignment; the utterance is used without it",
    "alignment without utterance": "there is no such utterance here",
    "unreadable image": "convert it to JPEG or PNG",
    "truncated image": "copy the file again from its source",
    "huge image": "make it smaller",
    "unknown class": "training has no such class: rename the folder, or leave it out",
    # Used all the same:
    "unusual colours": "they become 8 bits a channel; what is transparent lies on white",
    "class without images": "put some into its folder, or remove it",
    "other rate": "it is resampled",
    "several channels": "their mean is taken; a manifest can name a channel",
    "other duration": "the audio itself is believed",
    "clipped audio": "it sounds distorted",
    "no speaker": "name speakers if the split is to keep them apart",
}


@dataclass(frozen=True)
class Problem:
    kind: str  # a key of REMEDIES
    where: str  # an utterance, or a file and a line
    detail: str = ""
    used: bool = False  # all the same

    def __post_init__(self) -> None:
        assert self.kind in REMEDIES, self.kind

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}" + (f" ({self.detail})" if self.detail else "")


class Unusable(Exception):
    """What cannot be learnt from."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail

    def of(self, where: str) -> Problem:
        return Problem(self.kind, where, self.detail)


class BadUtterance(Unusable): ...


class BadImage(Unusable): ...


class Problems:
    def __init__(self, found: Iterable[Problem] = ()) -> None:
        self._found = list(found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def note(self, kind: str, where: str, detail: str = "", used: bool = False) -> None:
        self._found.append(Problem(kind, where, detail, used))

    def add(self, problems: Iterable[Problem]) -> None:
        self._found += problems

    @property
    def left_out(self) -> list[Problem]:
        return [problem for problem in self if not problem.used]

    def counts(self) -> dict[str, int]:
        """By kind, the most frequent first."""
        return dict(Counter(problem.kind for problem in self).most_common())

    def why(self) -> str:
        """For the end of a message: which kinds, how many of each."""
        kinds = ", ".join(f"{number} x {kind}" for kind, number in self.counts().items())
        return f" ({kinds})" if kinds else ""

    def examples(self, kind: str, number: int = 3) -> list[Problem]:
        return [problem for problem in self if problem.kind == kind][:number]

    def fate(self, kind: str) -> str:
        """What became of utterances of this kind, and what to do."""
        used = all(problem.used for problem in self if problem.kind == kind)
        return f"{'used all the same' if used else 'left out'}: {REMEDIES[kind]}"

    def lines(self) -> Iterator[str]:
        """One a kind: how many, their fate, some by name."""
        for kind, number in self.counts().items():
            some = self.examples(kind)
            names = ", ".join(problem.where for problem in some)
            more = ", ..." if number > len(some) else ""
            yield f"{number} x {kind}, {self.fate(kind)} ({names}{more})"

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(problem) for problem in self]

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]]) -> Problems:
        return cls(Problem(**row) for row in rows)
