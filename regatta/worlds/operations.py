"""What a virtual rank waits for: operations that an event will finish."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from regatta.comm import ANY, Seconds, Vector


class Done:
    """An operation that finished when it was called."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.value
        yield


SENT = Done(None)
COMPUTING = "its own computing"


class Pending:
    """An operation that an event will finish."""

    __slots__ = ("done", "value", "waiter", "what")

    def __init__(self, what: Any) -> None:
        self.done = False
        self.value: Any = None
        self.waiter: Any = None  # whose `_resume` goes on when it is done
        self.what = what  # for the Deadlock message; (src, tag) of a receive

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.done:
            yield self
        return self.value

    def finish(self, value: Any) -> None:
        self.done = True
        self.value = value
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            waiter._resume()

    def describe(self) -> str:
        if isinstance(self.what, str):
            return self.what
        src, tag = self.what
        return ("a message from anyone" if src == ANY else f"a message from rank {src}") + (
            "" if tag == ANY else f" with tag {tag}"
        )


class Meeting:
    """A collective operation that starts when its last rank has come."""

    __slots__ = ("data", "last_arrival", "ops")

    def __init__(self) -> None:
        self.ops: dict[int, Pending] = {}
        self.data: dict[int, Vector] = {}
        self.last_arrival: Seconds = 0.0


def finish_all(ops_and_result: tuple[dict[int, Pending], Vector]) -> None:
    ops, result = ops_and_result
    for op in ops.values():
        op.finish(result)


def finish_one(op_and_value: tuple[Pending, Any]) -> None:
    op, value = op_and_value
    op.finish(value)
