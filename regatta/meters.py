"""Counters of this machine: how long processors worked, what they took from the wall.

Whatever cannot be read is None, never zero.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

_POWERCAP = Path("/sys/class/powercap")  # Intel's and AMD's running average power limit


class Meters:
    """Of one process, and of its graphics device if it has one."""

    def __init__(self, device: str, index: int = 0) -> None:
        self._process = psutil.Process()
        found = _nvml_device(index) if device == "cuda" else None
        self._nvml: Any = found and found[0]
        self._gpu: Any = found and found[1]

    def cpu_seconds(self) -> float:
        """Of all threads of this process so far."""
        return time.process_time()

    def gpu_share(self) -> float | None:
        """How much of the time just past the device was busy, as its driver says."""
        if self._nvml is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu) / 100
        except Exception:  # of NVML's own: not every device tells
            self._nvml = None
            return None

    def resident_bytes(self) -> int:
        return int(self._process.memory_info().rss)


def _nvml_device(index: int) -> tuple[ModuleType, Any] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # not installed, or no driver: each raises a kind of its own
        return None


class Joules:
    """What this host has taken since the first look, if every counter can be read.

    Counters turn over (at 100 W after three quarters of an hour or so): look more often.
    """

    def __init__(self, root: Path = _POWERCAP, gpus: bool = True) -> None:
        self._zones = [_Zone(path) for path in sorted(root.glob("intel-rapl:[0-9]"))]
        self._devices = _nvml_devices() if gpus else []
        self._last = self._read()
        self._taken = 0.0
        self._looking = threading.Lock()

    def look(self) -> float | None:
        with self._looking:
            return self._look()

    def _look(self) -> float | None:
        now = self._read()
        if now is None or self._last is None:
            self._last = None
            return None
        ranges = [zone.range for zone in self._zones] + [None] * len(self._devices)
        for before, after, whole in zip(self._last, now, ranges, strict=True):
            self._taken += after - before + (whole or 0.0 if after < before else 0.0)
        self._last = now
        return self._taken

    def _read(self) -> list[float] | None:
        """Every counter in joules; None where one refuses, or where there is none of processors."""
        if not self._zones:
            return None
        try:
            processors = [zone.read() for zone in self._zones]
            return processors + [_device_joules(*device) for device in self._devices]
        except Exception:  # most systems let only root read them
            return None


class _Zone:
    def __init__(self, path: Path) -> None:
        self._path = path / "energy_uj"
        try:
            self.range: float | None = int((path / "max_energy_range_uj").read_text()) / 1e6
        except (OSError, ValueError):
            self.range = None

    def read(self) -> float:
        return int(self._path.read_text()) / 1e6


def _nvml_devices() -> list[tuple[ModuleType, Any]]:
    found = _nvml_device(0)
    if found is None:
        return []
    nvml: Any = found[0]
    return [
        (nvml, nvml.nvmlDeviceGetHandleByIndex(number))
        for number in range(nvml.nvmlDeviceGetCount())
    ]


def _device_joules(nvml: ModuleType, device: Any) -> float:
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3
