"""Fewer bytes on the wire: how a vector is encoded, and what becomes of what the encoding loses.

One file a code. A code turns a stretch of parameters into bytes and back; a `Channel` uses it to
send vectors and adds what one encoding lost to what is sent next (error feedback); a `Reducer` sums
encoded vectors. Statistics and the count, the tail of every vector, travel as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from regatta.compress.channel import Channel, Code
from regatta.compress.fp16 import Fp16
from regatta.compress.int8 import Int8
from regatta.compress.one_bit import OneBit
from regatta.compress.power_sgd import PowerSgd
from regatta.compress.top_k import TopK

__all__ = ["NONE", "Channel", "Code", "code", "code_for_models"]

NONE = "none"
_CODES: dict[str, Callable[[], Code]] = {
    "fp16": Fp16, "int8": Int8, "one-bit": OneBit, "top-k": TopK, "power-sgd": PowerSgd,
}  # fmt: skip
_WITH_A_NUMBER: dict[str, Callable[[str], Code]] = {
    "top-k": lambda text: TopK(float(text)), "power-sgd": lambda text: PowerSgd(int(text)),
}  # fmt: skip
_FOR_MODELS = ("fp16", "int8")


def code(spec: str, option: str = "compress") -> Code | None:
    """The code named by `fp16`, `top-k`, `top-k/0.02` ..., or None for `none`."""
    return _code(spec, tuple(_CODES), option)


def code_for_models(spec: str, option: str = "compress") -> Code | None:
    """As `code`; sparse and one-bit codes carry changes, not models."""
    return _code(spec, _FOR_MODELS, option)


def _code(spec: str, known: tuple[str, ...], option: str) -> Code | None:
    if spec == NONE:
        return None
    name, slash, value = spec.partition("/")
    if name not in known:
        raise ValueError(f"{option}={spec}: known here are {', '.join((NONE, *known))}")
    if slash and name not in _WITH_A_NUMBER:
        raise ValueError(f"{option}={spec}: {name} takes no number")
    try:
        return _WITH_A_NUMBER[name](value) if slash else _CODES[name]()
    except ValueError as error:
        raise ValueError(f"{option}={spec}: {error}") from None
