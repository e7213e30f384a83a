"""Hostile inputs made of real ones: as a disk, a careless hand or an enemy would change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Mutate = Callable[[Random, bytes], bytes]

NUMBERS = (
    0, -1, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**30, 0.0, -0.0, 0.5, 1e-9, -1.5, 1e18, 1e300, -1e308, 1.7976931348623157e308, 5e-324,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "true", "none", "null", "\x00", "\n", "\r\n", "\t",
    "\x1b[2J\x1b]0;owned\x07", "\u202e", "\ud800", "\U0001f600", "é", "<script>alert(1)</script>",
    "</script><!--", "../../../../etc/passwd", "/dev/zero", "/proc/self/mem", "a/b", ".", "..",
    "[bold]", "%s%n", "{0.__class__}", "$(id)", "name:option=1", "=", ",", ":", "x" * 300,
    "__class__", "__init__", "name", "ring", "teacher", "sgd", "single",
)  # fmt: skip
_MARKS = "=,.:;/ @\n[]"
_BIG = "@@ a number of many digits @@"  # JSON's writer would not write one


def bits(chance: Random, data: bytes) -> bytes:
    """Flipped, cut, doubled, overwritten, moved, filled."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if not changed:
            return bytes(chance.randbytes(chance.randrange(64)))
        at = chance.randrange(len(changed))
        to = min(len(changed), at + chance.choice((1, 2, 4, 8, 16, 64)))
        what = chance.randrange(8)
        if what <= 1:
            changed[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            del changed[chance.choice((at, to)) :]
        elif what == 3:
            changed[at:at] = changed[at:to]
        elif what == 4:
            changed[at:to] = bytes([chance.choice((0, 255, 127, 128, 32, 10, 34))]) * (to - at)
        elif what == 5:
            changed[at:to] = chance.randbytes(to - at)
        elif what == 6:
            del changed[at:to]
        else:
            changed[at:at] = chance.choice(TEXTS).encode(errors="surrogatepass")
    return bytes(changed)


def values(chance: Random, data: bytes) -> bytes:
    """A JSON text with values of other types and sizes, and then perhaps other bits."""
    value = json.loads(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        value = _changed(chance, value)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.7)
    text = text.replace(f'"{_BIG}"', "9" * chance.choice((19, 400, 5000)))
    encoded = text.encode(errors="surrogatepass")
    if chance.random() < 0.02:
        deep = chance.choice((b"[", b'{"a":')) * chance.choice((100, 5000, 100_000))
        at = chance.randrange(len(encoded) + 1)
        encoded = encoded[:at] + deep + encoded[at:]
    return bits(chance, encoded) if chance.random() < 0.1 else encoded


def lines(chance: Random, data: bytes) -> bytes:
    """Some lines of JSON, as values are changed; and lines cut, doubled, mixed, run together."""
    found = data.split(b"\n")[:-1]
    if len(found) > 6:  # the first, and some that follow each other
        start = chance.randrange(1, len(found) - 4)
        found = [found[0], *found[start : start + 5]]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found))
        what = chance.randrange(10)
        if what <= 4:
            found[at] = _tried(values, chance, found[at])
        elif what == 5:
            found[at] = bits(chance, found[at])
        elif what == 6:
            found.insert(chance.randrange(len(found)), found[at])
        elif what == 7:
            found[at] = found[at] + chance.choice((b"", b"\r", b" ")) + chance.choice(found)
        elif what == 8 and len(found) > 1:
            del found[at]
        else:
            chance.shuffle(found)
    text = b"\n".join(found) + (b"\n" if chance.random() < 0.8 else b"")
    return bits(chance, text) if chance.random() < 0.05 else text


def words(chance: Random, data: bytes) -> bytes:
    """What a person types: other names, other values, signs in the wrong place."""
    text = data.decode()
    for _ in range(chance.choice((1, 1, 2, 3))):
        begins = [n + 1 for n, sign in enumerate(text) if sign in _MARKS]
        of_values = [n for n in begins if text[n - 1] in "=,[ "]
        at = chance.choice(of_values if of_values and chance.random() < 0.6 else [0, *begins])
        to = next((n for n in range(at, len(text)) if text[n] in _MARKS), len(text))
        what = chance.randrange(10)
        if what <= 5:
            text = text[:at] + _word(chance) + text[to:]
        elif what == 6:
            text = text[:at] + text[to + 1 :]
        elif what == 7:
            text += chance.choice("=,.:;/ @()\n") + _word(chance)
        elif what == 8:
            text = text[:at] + chance.choice("=,.:;-()[]{}'\"\\") + text[at:]
        else:
            return bits(chance, text.encode(errors="surrogatepass"))
    if chance.random() < 0.005:
        text += chance.choice(("x", "1", ",", "=", "9,", "(")) * chance.choice((1000, 100_000))
    return text.encode(errors="surrogatepass")


def _word(chance: Random) -> str:
    what = chance.random()
    if what < 0.4:
        return chance.choice(("1", "2", "3", "4", "7", "16", "0.5", "0.01", "2.5", "true", "false"))
    return str(chance.choice(NUMBERS)) if what < 0.7 else chance.choice(TEXTS)


def _tried(mutate: Mutate, chance: Random, data: bytes) -> bytes:
    try:
        return mutate(chance, data)
    except (ValueError, RecursionError):  # it is no JSON any more
        return bits(chance, data)


def _changed(chance: Random, value: Any) -> Any:
    """One place of a value changed, any of them as likely as another."""
    if chance.random() < 1 / _size(value):
        return _other(chance, value)
    if isinstance(value, dict):
        names = list(value)
        (name,) = chance.choices(names, [_size(value[name]) for name in names])
        if chance.random() < 0.3 / _size(value[name]):
            return _renamed(chance, value, name)
        return value | {name: _changed(chance, value[name])}
    (at,) = chance.choices(range(len(value)), [_size(each) for each in value])
    return [*value[:at], _changed(chance, value[at]), *value[at + 1 :]]


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1


def _renamed(chance: Random, value: dict[str, Any], name: str) -> dict[str, Any]:
    """An object that has lost a name, or has one too many."""
    what = chance.randrange(4)
    others = {key: inner for key, inner in value.items() if key != name}
    if what == 0:
        return others
    if what == 1:
        return others | {chance.choice(TEXTS): value[name]}
    if what == 2:
        return value | {chance.choice((*TEXTS, name + "_")): _other(chance, None)}
    return value | {name: value[chance.choice(list(value))]}


def _other(chance: Random, value: Any) -> Any:
    what = chance.randrange(12)
    if isinstance(value, int | float) and not isinstance(value, bool) and what < 8:
        near = (value + 1, -value, value * 2) if abs(value) < 1e300 else (-value,)
        return chance.choice((*near, *NUMBERS, *NUMBERS))
    if what <= 3:
        return chance.choice(NUMBERS)
    if what <= 5:
        return chance.choice(TEXTS)
    if what == 6:
        return _BIG
    if what == 7:
        return "y" * chance.choice((1000, 20_000))
    if what == 8:
        return [chance.choice(NUMBERS)] * chance.choice((0, 1, 2, 300))
    if what == 9:
        return {chance.choice(TEXTS): chance.choice(NUMBERS)}
    return chance.choice((None, True, False, [], {}, [[]], {"": {}}, [value], [value, value]))
