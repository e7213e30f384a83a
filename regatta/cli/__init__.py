"""The command line. Every command calls one function; errors say what to do instead.

Nothing heavy is imported before a command needs it: `regatta --help` must answer at once.
"""

from __future__ import annotations

import os
import sys

from rich.markup import escape

from regatta.cli import training, launching, racing, reporting, data  # isort: skip  (commands are listed in this order)
from regatta.cli import language, evaluating, recognising, probing, wiring, listing  # isort: skip
from regatta.cli.common import app, err
from regatta.plain import printable

__all__ = [
    "app",
    "data",
    "evaluating",
    "language",
    "launching",
    "listing",
    "main",
    "probing",
    "racing",
    "recognising",
    "reporting",
    "training",
    "wiring",
]


def main() -> None:
    """Run a command; 0 done, 1 failed, 2 wrong usage."""
    try:
        app()
    except ValueError as error:
        _fail(str(error), 1 if type(error).__name__ == "BadCheckpoint" else 2)
    except RuntimeError as error:
        if type(error).__name__ not in ("RankFailed", "WorldFailed", "Deadlock"):
            raise
        if account := getattr(error, "account", ""):
            err.print(account, markup=False, soft_wrap=True)
        _fail(str(error), 1)
    except BrokenPipeError:  # as of `| head`
        os._exit(0)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except MemoryError as error:
        _fail(f"there is not enough memory: {error}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)


def _fail(message: str, code: int) -> None:
    text = escape(printable(message))
    err.print(f"[red]regatta:[/red] {text}", soft_wrap=True)
    # Not sys.exit: gloo's threads may wait for ranks that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
