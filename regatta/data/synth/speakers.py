"""Who speaks: voices of the synthesiser, each with a pace and a pitch, each of one split only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regatta.data.seeds import mixed_seed
from regatta.data.synth.espeak import Voice
from regatta.data.synth.texts import script

SPLITS = ("train", "dev", "test")
# espeak-ng's manners of speaking, without whispers, robots and other jokes.
VARIANTS = (
    "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Gene2", "Henrique",
    "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "Mike", "Nguyen", "Reed", "RicishayMax",
    "RicishayMax2", "RicishayMax3", "Storm", "adam", "anika", "announcer", "antonio", "aunty",
    "belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "edward2", "f1", "f2", "f3",
    "f4", "f5", "grandma", "grandpa", "gustave", "ian", "iven", "iven2", "iven3", "iven4", "john",
    "kaukovalta", "klatt", "klatt2", "klatt3", "klatt4", "linda", "m1", "m2", "m3", "m4", "m5",
    "m6", "m7", "m8", "marcelo", "max", "michel", "miguel", "mike2", "norbert", "pablo", "paul",
    "pedro", "quincy", "rob", "robert", "sandro", "shelby", "steph", "steph2", "steph3", "travis",
    "victor", "zac",
)  # fmt: skip


@dataclass(frozen=True)
class Speaker:
    voice: Voice
    speed: int  # words a minute
    pitch: int  # 0 to 99

    @property
    def name(self) -> str:
        return self.voice.name


def speakers(language: str, split: str, shares: tuple[float, ...], seed: int) -> list[Speaker]:
    """All of a language's in a split; a manner of speaking is of one split in all languages."""
    order = np.random.default_rng(mixed_seed(seed, 0)).permutation(len(VARIANTS))
    ends = [max(2, round(share * len(VARIANTS))) if share else 0 for share in shares[1:]]
    at = {"dev": (0, ends[0]), "test": (ends[0], ends[0] + ends[1])}
    first, last = at.get(split, (sum(ends), len(VARIANTS)))
    if first >= last:
        raise ValueError(f"synth: the shares leave no voice for {split}: {shares}")
    found = []
    for variant in sorted(int(n) for n in order[first:last]):
        for number, accent in enumerate(script(language).accents):
            own = np.random.default_rng(mixed_seed(seed, 1, variant, number))
            speed, pitch = int(own.integers(130, 205)), int(own.integers(30, 71))
            found.append(Speaker(Voice(accent, VARIANTS[variant]), speed, pitch))
    return found
