"""Which utterances can be learnt from, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass, field

from regatta.data.alphabet import Alphabet, frames_needed
from regatta.data.problems import BadUtterance


def num_frames(samples: int, hop: int) -> int:
    """One for every hop, rounded."""
    return (samples + hop // 2) // hop


@dataclass(frozen=True)
class Checks:
    """What a recogniser asks of an utterance; the defaults are those of Baunsgaard et al."""

    alphabet: Alphabet = field(default_factory=Alphabet)
    max_seconds: float = 16.7  # 1,670 frames
    window: int = 11  # frames that the network's first layer sees at once
    stride: int = 2  # and how far it moves on
    text: bool = True  # it is needed at all

    def outputs(self, frames: int) -> int:
        """How many symbols the network can write for so many frames."""
        return max(0, (frames - self.window) // self.stride + 1)

    def frames_for(self, text: str) -> int:
        """How many it takes to write a normalised text."""
        return self.window + (max(1, frames_needed(text)) - 1) * self.stride

    def check(self, text: str, frames: int, seconds: float) -> None:
        """Raises BadUtterance for one that cannot be used."""
        if seconds > self.max_seconds + 1e-6:
            raise BadUtterance("too long", f"{seconds:.1f} s, at most {self.max_seconds:g}")
        outputs = self.outputs(frames)
        if not outputs:
            raise BadUtterance("too short", f"{frames} frames, at least {self.window}")
        if not self.text:
            return
        needed = frames_needed(self.alphabet.normalised(text))
        if needed > outputs:
            detail = f"{needed} symbols and blanks in {outputs} frames"
            raise BadUtterance("transcript too long for its audio", detail)
