"""The digests of a run's final weights, rank by rank: `digests.py RUN`."""

import sys
from pathlib import Path

from regatta.events import RankEnded, read

last = {e.rank: e for e in read(Path(sys.argv[1]) / "events.jsonl") if isinstance(e, RankEnded)}
for rank, ended in sorted(last.items()):
    print(f"rank {rank}, {ended.role}: {ended.turns} turns, weights {ended.digest}")
