"""A run on a list of hosts: one ssh a host, and what all of them say on one screen."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from regatta.cluster.formats import Unreadable
from regatta.cluster.formats.hostfile import read_hostfile
from regatta.comm import WorldFailed
from regatta.launching import common, first_failure, refuse_what_is_no_training
from regatta.launching.here import INTERRUPT, LEAVE, Share
from regatta.worlds.leaving import Asked
from regatta.worlds.started import LOOPBACK, is_loopback

SSH: Final = "ssh -o BatchMode=yes -o ServerAliveInterval=15"  # nobody is there to type a password
RESUMABLE: Final = "--resumable"
_SSH_FAILED: Final = 255
_FOR_GOOD: Final = (2, 130)  # wrong usage, Ctrl-C
_FIRST_PORT, _PORTS = 12_288, 20_480  # as Slurm's jobs have
_GRACE_SECONDS = 15.0  # for other hosts to tell what they saw, before they are ended
_TICK_SECONDS = 0.1
_LISTS: Final = (".txt", ".hosts", ".list")  # no name of a host ends so


@dataclass(frozen=True)
class Fleet:
    """Hosts with their numbers of ranks, and how to start something there."""

    slots: Mapping[str, int]
    folder: Path  # to work in, on every host
    address: str = ""  # of the first host, as the others see it; empty: its name
    port: int = 0  # 0: one at random
    ssh: str = SSH
    python: str = sys.executable
    variables: Sequence[str] = ()  # NAME=VALUE, or NAME with the value that it has here

    def commands(self, words: Sequence[str]) -> dict[str, list[str]]:
        """What to run here for each host."""
        refuse_what_is_no_training(words)
        hosts, size = list(self.slots), sum(self.slots.values())
        address = self.address or (_bare(hosts[0]) if len(hosts) > 1 else LOOPBACK)
        if is_loopback(address) and len(hosts) > 1:
            raise ValueError(
                f"{address} is every host itself: name the first host as the others know it, or "
                "use --master HOST"
            )
        port, first = self.port or _FIRST_PORT + secrets.randbelow(_PORTS), 0
        commands: dict[str, list[str]] = {}
        for host, count in self.slots.items():
            share = Share(first, count, size, address, port)
            commands[host] = [*shlex.split(self.ssh), _bare(host), self._there(share, words)]
            first += count
        return commands

    def _there(self, share: Share, words: Sequence[str]) -> str:
        """One line for the shell of a host, each word quoted once."""
        command = [self.python, "-m", "regatta.launching.here", *share.options(), "--", *words]
        settings = [self._setting(variable) for variable in self.variables]
        whole = shlex.join(["env", *settings, *command] if settings else command)
        return f"cd {shlex.quote(str(self.folder))} && exec {whole}"

    def _setting(self, variable: str) -> str:
        name, equals, _ = variable.partition("=")
        if not name.isidentifier():
            raise ValueError(f"--env {variable!r}: write NAME or NAME=VALUE")
        return variable if equals else f"{name}={os.environ.get(name, '')}"


def read_slots(text: str) -> dict[str, int]:
    """Of a host file, or of a list as `a:4,b:2`."""
    path = Path(text)
    is_file = path.is_file()
    if not is_file and ("/" in text or path.suffix in _LISTS):
        raise ValueError(f"there is no host file {path}: write one, or the hosts as a:4,b:2")
    try:
        return read_hostfile(path.read_text() if is_file else text.replace(",", "\n"))
    except Unreadable as error:
        what = f"host file {path}" if is_file else f"hosts {text!r} (no such file)"
        raise ValueError(f"{what}: {error}") from None


def run_until_done(
    fleet: Fleet, words: Sequence[str], restarts: int, leaving: Asked, tell: Callable[[str], None]
) -> int:
    """As `run`, and again from the last checkpoint when a host has failed, so often at most."""
    if restarts and RESUMABLE not in words:
        raise ValueError(
            f"--restarts goes on where the run was: add {RESUMABLE} and --out to the command"
        )
    for left in range(restarts, -1, -1):
        try:
            return run(fleet.commands(words), leaving)
        except HostFailed as failure:
            if not left or failure.code in _FOR_GOOD or leaving():
                raise
            tell(f"{failure}; beginning again (restarts left: {left - 1})")
    raise ValueError(f"--restarts must be 0 or more, not {restarts}")


def run(commands: Mapping[str, Sequence[str]], leaving: Asked) -> int:
    """Until all hosts have ended, or one has failed and the others have been ended."""
    hosts = [_Host(name, command) for name, command in commands.items()]
    try:
        return _until_the_end(hosts, leaving)
    finally:
        for host in hosts:
            host.end()


class _Host:
    """One ssh: a line to it, and what comes back, each line with the host's name before it."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        try:
            # In a session of its own: Ctrl-C is for the launcher, which tells all hosts of it.
            self._ssh = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ValueError(f"{command[0]}: {error.strerror}; name another with --ssh") from None
        self._readers = [
            threading.Thread(target=self._pass_on, args=streams, daemon=True)
            for streams in ((self._ssh.stdout, sys.stdout), (self._ssh.stderr, sys.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def code(self) -> int | None:
        return self._ssh.poll()

    def say(self, word: str) -> None:
        assert self._ssh.stdin is not None
        try:
            self._ssh.stdin.write(f"{word}\n".encode())
            self._ssh.stdin.flush()
        except OSError:  # it has just ended
            return

    def end(self) -> None:
        """Cut the line: what runs there ends itself."""
        assert self._ssh.stdin is not None
        try:
            self._ssh.stdin.close()
            self._ssh.wait(_GRACE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self._ssh.kill()
            self._ssh.wait()
        for reader in self._readers:
            reader.join(1.0)

    def _pass_on(self, source: IO[bytes], to: IO[str]) -> None:
        for line in source:
            to.write(f"[{self.name}] {line.decode(errors='replace')}")
            to.flush()


def _until_the_end(hosts: Sequence[_Host], leaving: Asked) -> int:
    failure, deadline, interrupts, told = None, float("inf"), 0, False
    while None in (codes := [host.code for host in hosts]) and time.monotonic() < deadline:
        if failure is None and (failure := first_failure(codes)) is not None:
            deadline = time.monotonic() + _GRACE_SECONDS
        if leaving() and not told:
            told = True
            _tell(hosts, LEAVE)
        try:
            time.sleep(_TICK_SECONDS)
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                raise
            _tell(hosts, INTERRUPT)
    failures = [
        (common(codes, code), host.name)
        for host, code in zip(hosts, codes, strict=True)
        if first_failure([code]) is not None
    ]
    if failures:
        # A signal, or a line that was cut, is the cause of what other hosts tell with lower codes.
        code, who = max(failures, key=lambda failed: failed[0])
        raise HostFailed(who, code)
    return common(codes, None)


class HostFailed(WorldFailed):
    def __init__(self, host: str, code: int) -> None:
        how = (
            "could not be reached, or was cut off"
            if code == _SSH_FAILED
            else f"ended with exit code {code}"
        )
        super().__init__(f"host {host} {how}; the others have been ended")
        self.code = code


def _tell(hosts: Sequence[_Host], word: str) -> None:
    for host in hosts:
        host.say(word)


def _bare(host: str) -> str:
    """An IPv6 address stands in brackets only where a port or a number may follow."""
    return host.strip("[]")
