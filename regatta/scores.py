"""What evaluations have found so far, and whether that is enough."""

from __future__ import annotations

from statistics import median
from typing import Any

from regatta.config import Stop
from regatta.tasks import Metric


class Scores:
    def __init__(self, metric: Metric) -> None:
        self.results: dict[str, float] = {}  # of the newest
        self._metric = metric
        self.best_results: dict[str, float] = {}
        self._best: float | None = None
        self._since_best = 0  # evaluations
        self._values: list[float] = []  # of the metric, as long as they may count

    def take(self, results: dict[str, float]) -> bool:
        """A further evaluation; whether it is the best so far."""
        self.results = results
        value = results[self._metric.name]
        self._values.append(value)
        if not self._metric.better(value, self._best):
            self._since_best += 1
            return False
        self._best, self.best_results, self._since_best = value, results, 0
        return True

    def have_stalled(self, stop: Stop) -> bool:
        return 0 < stop.patience <= self._since_best

    def handed_over(self, stop: Stop) -> dict[str, float]:
        """Those of the answer: who waits for a better one in vain takes the best."""
        return self.best_results if stop.patience else self.results

    def are_enough(self, stop: Stop) -> bool:
        """Whether the median of the last evaluations has reached the target."""
        self._values = self._values[-stop.last :]
        if stop.target is None or len(self._values) < stop.last:
            return False
        return self._metric.reached(median(self._values), stop.target)

    def state(self) -> dict[str, Any]:
        return {
            "results": self.results,
            "best": self._best,
            "best_results": self.best_results,
            "since_best": self._since_best,
            "values": self._values,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.results, self._best = state["results"], state["best"]
        self._values = state.get("values", [])
        self.best_results = state.get("best_results", {})
        self._since_best = state.get("since_best", 0)
