"""lhotse's cuts (.jsonl or .jsonl.gz): every supervision of a cut is an utterance.

A file of supervisions is read too, if the recordings that it speaks of are listed beside it, in a
file named alike (`libri_supervisions.jsonl.gz` and `libri_recordings.jsonl.gz`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regatta.data.corpora import Reading, each, folder_of, relative
from regatta.data.corpora.regatta import files, first_row
from regatta.data.manifest import Label, Utterance, json_lines, label_of, seconds
from regatta.data.problems import BadUtterance, Problems

root = folder_of


def matches(path: Path) -> bool:
    row = first_row(path)
    is_cut = isinstance(row, dict) and "recording" in row and "supervisions" in row
    return is_cut or _is_supervision(row)


def _is_supervision(row: Any) -> bool:
    return isinstance(row, dict) and "recording_id" in row and "start" in row


def read(path: Path, problems: Problems, reading: Reading) -> Iterator[Utterance]:
    folder = root(path)
    recordings = _recordings(path, problems) if _is_supervision(first_row(path)) else None

    def utterances(row: Any) -> Iterable[Utterance]:
        if recordings is None:
            return _of_cut(row, folder)
        if row["recording_id"] not in recordings:
            raise BadUtterance("missing file", f"recording {row['recording_id']}")
        return [_utterance(row, recordings[row["recording_id"]], 0.0, folder)]

    yield from each(json_lines(files(path), problems), utterances, problems)


def _recordings(path: Path, problems: Problems) -> dict[str, Mapping[str, Any]]:
    beside = path.with_name(path.name.replace("supervisions", "recordings"))
    if beside == path or not beside.is_file():
        raise ValueError(
            f"{path} lists supervisions; their recordings must be in {beside.name} beside it, "
            "or make cuts of both: lhotse cut simple"
        )
    rows = (row for _, row in json_lines(beside, problems))
    return {row["id"]: row for row in rows if isinstance(row, dict) and "id" in row}


def _of_cut(row: Mapping[str, Any], folder: Path) -> Iterator[Utterance]:
    if row.get("type") not in ("MonoCut", "MultiCut"):
        raise BadUtterance("broken line", f"a cut of type {row.get('type')} has no one recording")
    offset = seconds(row["start"], "start")
    for supervision in row["supervisions"]:
        yield _utterance(supervision, row["recording"], offset, folder)


def _utterance(
    supervision: Mapping[str, Any], recording: Mapping[str, Any], offset: float, folder: Path
) -> Utterance:
    channel = supervision.get("channel", 0)
    sources = [s for s in recording["sources"] if s["type"] in ("file", "command")]
    if not sources:
        raise BadUtterance("unreadable audio", f"it is a {recording['sources'][0]['type']}")
    several = len(recording.get("channel_ids") or [0]) > 1 and isinstance(channel, int)
    mine = [s for s in sources if not several or channel in s["channels"]]
    if not mine:
        raise BadUtterance("no such channel", f"{channel}")
    source = mine[0]["source"]
    is_command = mine[0]["type"] == "command"
    before = min(0.0, supervision["start"])  # it began before the cut
    return Utterance(
        id=str(supervision["id"]),
        audio=source + " |" if is_command else relative(source, folder),
        text=supervision.get("text") or "",
        speaker=str(supervision.get("speaker") or ""),
        language=str(supervision.get("language") or ""),
        start=offset + seconds(supervision["start"] - before, "start"),
        duration=seconds(supervision["duration"] + before, "duration"),
        channel=mine[0]["channels"].index(channel) if several else None,
        words=_labels(supervision, "word"),
        phones=_labels(supervision, "phone"),
    )


def _labels(supervision: Mapping[str, Any], kind: str) -> tuple[Label, ...]:
    """lhotse counts from the start of the cut, an utterance from its own."""
    before = max(0.0, supervision["start"])
    items = (supervision.get("alignment") or {}).get(kind) or ()
    return tuple(
        label_of((max(0.0, start - before), start - before + length, str(symbol)), kind)
        for symbol, start, length, *_ in items
    )
