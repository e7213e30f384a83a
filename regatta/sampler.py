"""How busy a rank is, sampled beside its work by a thread that sleeps nearly always."""

from __future__ import annotations

import threading
from collections.abc import Callable

from regatta.comm import Seconds
from regatta.events import Event, Usage
from regatta.meters import Meters

_SAMPLES = 20  # an event


class Sampler:
    """Writes an event of usage every so many samples, from entering to leaving."""

    def __init__(
        self,
        rank: int,
        interval: Seconds,  # 0: takes no samples
        clock: Callable[[], Seconds],
        log: Callable[[Event], None],
        meters: Meters,
        joules: Callable[[], float | None] = lambda: None,  # looked at before it turns over
    ) -> None:
        self._rank, self._interval = rank, interval
        self._clock, self._log, self._meters = clock, log, meters
        self._look_at_joules = joules
        self._over = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._sample, name="usage", daemon=True)

    def __enter__(self) -> Sampler:
        if self._interval > 0:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failure is not None and error[0] is None:
            raise self._failure

    def _sample(self) -> None:
        try:
            self._watch()
        except OSError as error:  # the disk is full: the rank learns of it when it leaves
            self._failure = error

    def _watch(self) -> None:
        began = last = due = self._clock()
        busy = self._meters.cpu_seconds()
        cpu: list[float] = []
        gpu: list[float | None] = []
        is_over = False
        while not is_over:
            due += self._interval  # not from when it woke: samples would come too seldom
            is_over = self._over.wait(max(0.0, due - self._clock()))
            now, used = self._clock(), self._meters.cpu_seconds()
            if now > last:
                cpu.append(round((used - busy) / (now - last), 3))
                gpu.append(self._meters.gpu_share())
            last, busy = now, used
            if cpu and (is_over or len(cpu) == _SAMPLES):
                self._write(began, (now - began) / len(cpu), cpu, gpu)
                began, cpu, gpu = now, [], []
                self._look_at_joules()

    def _write(
        self, began: Seconds, interval: Seconds, cpu: list[float], gpu: list[float | None]
    ) -> None:
        shares = [share for share in gpu if share is not None]
        self._log(
            Usage(
                rank=self._rank,
                time=round(began, 4),
                interval=round(interval, 5),
                cpu=cpu,
                gpu=shares if len(shares) == len(cpu) else None,
                memory=self._meters.resident_bytes(),
            )
        )
