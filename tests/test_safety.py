"""What is received or opened executes no code, and nobody hears us beyond this machine."""

from __future__ import annotations

import ast
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from helpers import small_run
from racing import events_of, make_race, straight, write_events
from real import RECIPE, REGATTA, members, until
from test_wires import play
from torch.distributed import TCPStore

import regatta
from regatta import config, folders, recipes, resolve, runs
from regatta.comm import ANY
from regatta.config import Stop
from regatta.events import Tail, from_line, read_what_there_is, to_line
from regatta.exports import convert
from regatta.folders import Plan
from regatta.race.entries import FILE, Lane, declared
from regatta.race.outcome import of_run
from regatta.report.forms import as_markdown
from regatta.report.page import html
from regatta.worlds.arena import Arena

PACKAGE = Path(regatta.__file__).parent
SOURCES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
HERE = Path(__file__).parent


# -- nothing is executed ----------------------------------------------------------------------


def calls(*names: str) -> dict[str, list[ast.Call]]:
    """All calls of functions of these names, by file."""
    found: dict[str, list[ast.Call]] = {}
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in names:
                found.setdefault(str(path.relative_to(PACKAGE)), []).append(node)
    return found


def imported_by(*modules: str) -> set[str]:
    return {
        str(path.relative_to(PACKAGE))
        for path, tree in SOURCES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and {a.name for a in node.names} & set(modules))
        or (isinstance(node, ast.ImportFrom) and node.module in modules)
    }


def said(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_the_search_finds_what_there_is():
    assert "checkpoint.py" in calls("safe_open")
    assert "recipes/__init__.py" in imported_by("importlib.util")


def test_nothing_that_comes_from_outside_is_unpickled():
    """CIFAR-10 is published as pickles: its reader makes arrays, and refuses all else."""
    assert imported_by("pickle", "marshal", "shelve", "dill") == {"data/images/cifar.py"}
    loads = [call for found in calls("load").values() for call in found]
    of_torch = [call for call in loads if ast.unparse(call.func) == "torch.load"]
    assert of_torch
    assert all(said(call).get("weights_only") == "True" for call in of_torch)
    of_numpy = [call for call in loads if ast.unparse(call.func) == "np.load"]
    assert all(said(call).get("allow_pickle") == "False" for call in of_numpy)


def test_objects_do_not_travel_between_hosts():
    """They would be pickled. What a parent and its own processes send each other stays there."""
    names = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
             "send_object_list", "recv_object_list", "rpc_sync", "rpc_async")  # fmt: skip
    assert calls(*names) == {}
    assert "worlds/launch.py" in imported_by("multiprocessing.connection")


def test_texts_become_values_never_code():
    built_in = [
        ast.unparse(call)
        for found in calls("eval", "exec", "compile", "__import__").values()
        for call in found
        if isinstance(call.func, ast.Name)
    ]
    assert built_in == []
    of_yaml = [ast.unparse(c.func) for f in calls("load", "safe_load").values() for c in f]
    assert {name for name in of_yaml if name.startswith("yaml.")} == {"yaml.safe_load"}
    assert set(calls("exec_module")) == {"recipes/__init__.py"}


def test_a_shell_is_used_for_programs_that_a_user_has_allowed_alone():
    shells = [
        path
        for path, found in calls("run", "Popen", "call", "check_output", "system").items()
        if any(said(call).get("shell") == "True" for call in found)
    ]
    assert shells == ["data/audio.py"]
    assert "system" not in {
        ast.unparse(c.func).split(".")[-1] for f in calls("system").values() for c in f
    }


# -- runs of others ---------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path):
    """A run whose run.json names a recipe that tells if it is executed."""
    recipe = tmp_path / "evil.py"
    recipe.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\n")
    run = small_run("all-reduce", 2, task=recipes.load("teacher").task, stop=Stop(epochs=0.01))
    run = replace(run, task=replace(run.task, train=512, dev=64, hidden=(8,)))
    folder = tmp_path / "run"
    runs.simulate(run, Plan("teacher", run, folder))
    stored = json.loads((folder / "run.json").read_text())
    stored["recipe"] = f"{recipe}:small"
    stored["sha256"] = folders._digest(stored)
    (folder / "run.json").write_text(json.dumps(stored))
    yield folder
    assert not (tmp_path / "executed").exists()


def test_whose_parts_are_all_known_execute_nothing(foreign):
    plan, stored = folders.open_plan(foreign)
    assert stored["recipe"].endswith("evil.py:small")
    assert plan.run.task.name == "teacher"
    assert runs.replay(foreign).identical
    html(of_run(foreign))


def test_who_only_looks_executes_nothing(foreign, tmp_path):
    """Even where the recipe is needed to know what the run is."""
    stored = json.loads((foreign / "run.json").read_text())
    stored["run"]["task"]["name"] = "of its own"
    stored["sha256"] = folders._digest(stored)
    (foreign / "run.json").write_text(json.dumps(stored))
    html(of_run(foreign))
    for to in ("mlperf", "trace", "dawnbench"):
        assert convert(foreign, to, tmp_path / to)
    assert Tail(foreign / "events.jsonl", from_start=True)()


def test_a_resumed_run_executes_the_recipe_that_is_named_alone(foreign):
    stored = json.loads((foreign / "run.json").read_text()) | {"world": "processes"}
    stored["run"]["task"]["name"] = "of its own"  # so that the recipe is needed
    stored["sha256"] = folders._digest(stored)
    (foreign / "run.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"was made by recipe .*evil\.py:small, not teach"):
        resolve.resumed_plan("teacher", foreign, None, None, None, None)


def test_a_run_that_was_changed_is_refused(foreign):
    text = (foreign / "run.json").read_text()
    (foreign / "run.json").write_text(text.replace('"minibatch": ', '"minibatch": 1'))
    with pytest.raises(ValueError, match=r"run\.json cannot be read: it is damaged, or was chan"):
        folders.open_plan(foreign)


def test_a_race_of_others_leads_nowhere_else(tmp_path):
    """Folders of runs that did not end are deleted when a race goes on."""
    make_race(tmp_path / "race", {Lane("ring", 2, 32): {0: straight(5.0)}})
    path = tmp_path / "race" / FILE
    for name, value in (("seeds", ["../../../../home"]), ("seeds", [0.5]), ("lanes", [{}])):
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        with pytest.raises(ValueError, match=r"race\.json cannot be read"):
            declared(tmp_path / "race")


# -- pages and terminals ----------------------------------------------------------------------

HOSTILE = "ring:</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e&\"'"


def hostile_run(folder):
    lane = Lane(HOSTILE, 2, 32)
    changed = (
        replace(e, start=HOSTILE, metric=HOSTILE) if e.name == "started"
        else replace(e, results={HOSTILE: 0.5, "loss": 1.0}) if e.name == "evaluated" else e
        for e in events_of(straight(5.0), lane)
    )  # fmt: skip
    write_events(folder, changed)
    values = {"regatta_run": 1, "recipe": HOSTILE, "world": "virtual", "run": {}, "stops": [],
              "environment": {HOSTILE: HOSTILE}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(values))
    return folder


def test_a_page_shows_hostile_names_as_text(tmp_path):
    text = html(of_run(hostile_run(tmp_path / "run")))
    assert "onerror" in text, "it is shown"
    scripts = re.findall(r"<script[^>]*>", text)
    assert len(scripts) == text.count("</script>") == 3, "the page's own: plotly, figures, drawing"
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(img|script|!--)", outside)
    figures = text.split('id="figures">')[1].split("</script>")[0]
    assert "<" not in figures, "not even where JavaScript reads it"
    assert "\x1b" not in text
    assert "\u202e" not in text
    shown = json.loads(figures)
    assert "&lt;img" in json.dumps(shown), "plotly takes labels for HTML"
    assert "<img" not in json.dumps(shown)


def test_other_forms_show_them_as_text_too(tmp_path):
    text = as_markdown(of_run(hostile_run(tmp_path / "run")))
    assert "<img" not in text
    assert "\x1b" not in text


def test_events_bring_no_control_characters_to_a_terminal(tmp_path):
    path = write_events(tmp_path / "run", events_of(straight(5.0), Lane(HOSTILE, 2, 32)))
    for events in (read_what_there_is(path).events, Tail(path, from_start=True)()):
        assert all("\x1b" not in to_line(event) for event in events)
        assert "\\u001b" not in "".join(map(to_line, events))
    line = '{"event":"warned","rank":0,"time":0.0,"text":"a\\u001b[2J\\nb\\u009b"}'
    assert from_line(line).text == "a\ufffd[2J b\ufffd"


# -- the network ------------------------------------------------------------------------------


def listening(pids) -> set[str]:
    """Where these processes can be reached, by the kernel's own tables."""
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            for connection in psutil.Process(pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(connection.laddr.ip)
    return found


def ended(process: subprocess.Popen) -> None:
    for pid in members(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(10)


def start(*words: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*REGATTA, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=os.environ | environment,
    )  # fmt: skip


ENDLESS = ("--set", "stop.epochs=100000", "--set", "transport=sockets")


@pytest.mark.real
def test_ranks_of_one_machine_listen_on_loopback_alone(tmp_path):
    folder = tmp_path / "run"
    process = start("train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", str(folder), *ENDLESS)
    try:
        events = folder / "events.jsonl"
        until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made", 50)
        addresses = listening(members(process.pid))
    finally:
        ended(process)
    assert addresses, "gloo does listen"
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


@pytest.mark.real
def test_so_does_the_place_where_ranks_meet(tmp_path):
    """PyTorch itself would open it to every interface."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path / "run"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    words = ("train", RECIPE, "-s", "all-reduce", "-n", "2", "-o", str(folder), *ENDLESS)
    processes = [start(*words, **place, RANK=str(rank)) for rank in range(2)]
    try:
        events = folder / "events.jsonl"
        until(lambda: events.exists() and '"progress"' in events.read_text(), "a step is made", 50)
        addresses = listening(pid for process in processes for pid in members(process.pid))
        stranger = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        can_read = stranger.check(["regatta/here/0"])
        stranger.set("regatta/here/0", "changed")
        can_write = stranger.get("regatta/here/0") == b"changed"
    finally:
        for process in processes:
            ended(process)
    assert (can_read, can_write) == (True, True), "nobody is asked who they are"
    assert addresses
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


SECRET = b"a weight that nobody is to see .."  # 32 letters and more


class Listener:
    """Whatever crosses this machine's loopback, as root sees it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self.heard = False

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not (self._ends.is_set() or self.heard):
            with suppress(TimeoutError):
                self.heard = SECRET in self._socket.recv(1 << 17)


async def _tell(comm):
    if comm.rank == 1:
        await comm.send(0, torch.frombuffer(bytearray(SECRET), dtype=torch.uint8))
        return None
    return bytes((await comm.recv(ANY)).data.tolist())


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hears what others send")
@pytest.mark.parametrize("transport", ["sockets", "auto"])
def test_who_listens_on_the_way_reads_what_sockets_carry(transport):
    """Memory and pipes between ranks of one host carry nothing by there."""
    with Listener() as listener:
        assert play(2, _tell, transport)[0] == SECRET
        if transport == "sockets":
            until(lambda: listener.heard, "it is heard")
    assert listener.heard == (transport == "sockets")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_no_other_user_opens_the_memory_of_a_rank():
    arena = Arena(2)
    path = f"/proc/{os.getpid()}/fd/{arena.file}"
    code = f"import os; os.setuid(65534); os.open({path!r}, os.O_RDONLY)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Permission denied" in done.stderr


def test_a_umask_keeps_a_run_to_oneself(tmp_path):
    run = small_run("all-reduce", 2, stop=Stop(epochs=0.01))
    before = os.umask(0o077)
    try:
        runs.simulate(run, Plan("teacher", run, tmp_path / "run"))
    finally:
        os.umask(before)
    assert all(not path.stat().st_mode & 0o077 for path in (tmp_path / "run").rglob("*"))
    assert not (tmp_path / "run").stat().st_mode & 0o077


def test_settings_name_no_attributes():
    """`a.b.c=d` walks through fields of configurations, and nothing else."""
    run = recipes.load("teacher")
    for setting in ("__class__=x", "task.__class__.name=x", "stop.__init__.__globals__=x"):
        with pytest.raises(ValueError, match=r"unknown (setting|part)"):
            config.assign(run, [setting])
