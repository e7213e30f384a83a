"""lhotse's cuts (.jsonl or .jsonl.gz): every supervision of a cut is an utterance.

A file of supervisions is read too, if the recordings that it speaks of are listed beside it, in a
file named alike (`libri_supervisions.jsonl.gz` and `libri_recordings.jsonl.gz`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regatta.data.corpora import Reading, folder_of, relative
from regatta.data.corpora.regatta import files, first_row
from regatta.data.manifest import Label, Utterance, json_lines, seconds
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
    for where, row in json_lines(files(path), problems):
        try:
            if recordings is None:
                yield from _of_cut(row, folder)
            elif row.get("recording_id") not in recordings:
                raise BadUtterance("missing file", f"recording {row.get('recording_id')}")
            else:
                yield _utterance(row, recordings[row["recording_id"]], 0.0, folder)
        except BadUtterance as error:
            problems.add([error.of(where)])
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            problems.note("broken line", where, f"no cut of lhotse's: {error!r}")


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
    sources = [s for s in recording["sources"] if s["type"] in ("file", "command")]
    if not sources:
        raise BadUtterance(
            "unreadable audio", f"a source of type {recording['sources'][0]['type']}"
        )
    source = sources[0]["source"]
    is_command = sources[0]["type"] == "command"
    several = len(recording.get("channel_ids") or [0]) > 1
    channel = supervision.get("channel", 0) if several else None
    return Utterance(
        id=str(supervision["id"]),
        audio=source + " |" if is_command else relative(source, folder),
        text=supervision.get("text") or "",
        speaker=str(supervision.get("speaker") or ""),
        language=str(supervision.get("language") or ""),
        start=offset + seconds(max(0.0, supervision["start"]), "start"),
        duration=seconds(supervision["duration"], "duration"),
        channel=channel if isinstance(channel, int) else None,
        words=_labels(supervision, "word"),
        phones=_labels(supervision, "phone"),
    )


def _labels(supervision: Mapping[str, Any], kind: str) -> tuple[Label, ...]:
    """lhotse counts from the start of the cut, an utterance from its own."""
    before = max(0.0, supervision["start"])
    items = (supervision.get("alignment") or {}).get(kind) or ()
    return tuple(
        Label(max(0.0, start - before), max(0.0, start - before) + length, str(symbol))
        for symbol, start, length, *_ in items
    )
