"""Rules that matter are tests: who may import whom, how long things may be, what is documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regatta
from regatta.strategies import registry

PACKAGE = Path(regatta.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(text: str) -> set[str]:
    """Every module that a text imports, inside functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute here"
            found.add(node.module)
            # `from regatta import checkpoint` imports a module, `from regatta.comm import Op` not.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES
    return found


MODULES = {module_of(path) for path in FILES}
IMPORTS = {module_of(path): imports_of(path.read_text()) for path in FILES}


def ours(module: str) -> set[str]:
    return {name for name in IMPORTS[module] if name.split(".")[0] == "regatta"}


def under(*packages: str) -> set[str]:
    return {m for m in MODULES for p in packages if m == p or m.startswith(p + ".")}


def imports_any(module: str, *packages: str) -> set[str]:
    """What a module imports from these packages, theirs or ours."""
    return {i for i in IMPORTS[module] for p in packages if i == p or i.startswith(p + ".")}


def of_cluster(*names: str) -> set[str]:
    return {f"regatta.cluster.{name}" for name in names}


# -- import direction -----------------------------------------------------------------------


def test_imports_are_found_wherever_they_stand():
    text = "import a.b\nfrom c import d\ndef f():\n    from regatta import comm\n"
    assert imports_of(text) == {"a.b", "c", "regatta", "regatta.comm"}


def test_the_seam_imports_nothing_of_ours():
    assert ours("regatta.comm") == set()


@pytest.mark.parametrize("module", sorted(under("regatta.strategies")))
def test_a_strategy_sees_comm_and_replica_alone(module):
    seen = ("replica", "layout", "part", "stage")
    permitted = {"regatta.comm", *(f"regatta.learn.{name}" for name in seen)}
    permitted |= under("regatta.strategies", "regatta.compress")
    assert ours(module) <= permitted
    assert not imports_any(module, "torch.distributed", "asyncio", "time")


@pytest.mark.parametrize("module", sorted(under("regatta.cluster")))
def test_clusters_know_no_world_and_no_run(module):
    higher = ("regatta.worlds", "regatta.strategies", "regatta.learn", "regatta.config")
    assert not imports_any(module, *higher, "torch")


@pytest.mark.parametrize("module", sorted(under("regatta.worlds")))
def test_worlds_know_no_strategy(module):
    assert not imports_any(module, "regatta.strategies", "regatta.engine", "regatta.learn")


def test_the_engine_knows_no_world():
    assert not imports_any("regatta.engine", "regatta.worlds", "torch.distributed")


@pytest.mark.parametrize(
    ("module", "permitted"),
    [
        ("regatta.metrics", {"regatta.events", "regatta.arrival"}),
        ("regatta.arrival", set()),
        ("regatta.statistics", set()),
        ("regatta.events", {"regatta", "regatta.plain", "regatta.aside"}),
        ("regatta.choices", {"regatta", "regatta.plain", "regatta.aside", "regatta.comm"}),
        ("regatta.checkpoint", {"regatta", "regatta.plain", "regatta.aside"}),
        ("regatta.lock", {"regatta", "regatta.plain", "regatta.aside"}),
        ("regatta.aside", set()),
        ("regatta.cluster.device", {"regatta.comm", *of_cluster("checks", "curve")}),
        ("regatta.cluster.sums", {"regatta.comm"}),
        ("regatta.cluster.topology", {"regatta.comm"}),
        ("regatta.plain", set()),
        ("regatta.data.order", {"regatta.data.seeds"}),
    ],
)
def test_what_stands_at_the_bottom_imports_little(module, permitted):
    assert ours(module) <= permitted


READERS = tuple(
    f"regatta.{name}"
    for name in ("metrics", "race", "display", "cli", "report", "exports", "watching")
)


@pytest.mark.parametrize("module", sorted(MODULES - under(*READERS, "regatta.benchmarks")))
def test_nothing_that_trains_imports_what_reads(module):
    assert not imports_any(module, *READERS) or module == "regatta.__main__"


@pytest.mark.parametrize("module", sorted(under("regatta.decode")))
def test_decoding_knows_data_alone(module):
    assert ours(module) <= under("regatta.decode", "regatta.data") | {"regatta.aside"}


@pytest.mark.parametrize("module", sorted(under("regatta.learn", "regatta.data", "regatta.tasks")))
def test_learning_knows_neither_strategies_nor_worlds(module):
    higher = ("regatta.strategies", "regatta.worlds", "regatta.engine", "regatta.runs")
    assert not imports_any(module, *higher)


@pytest.mark.parametrize("module", sorted(under("regatta.data")))
def test_data_know_nothing_else(module):
    assert ours(module) <= under("regatta.data") | {"regatta.aside"}


def test_recipes_are_found_without_what_only_data_need():
    code = "import regatta.recipes, sys; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_starts_without_pytorch():
    code = "import regatta.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- size -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_file_is_long(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_function_is_long(path):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}


# -- documentation --------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("name", registry())
def test_every_strategy_has_one_line_and_a_source(name):
    cls = registry()[name]
    line = cls.__dict__["__doc__"]
    assert line
    assert "\n" not in line.strip()
    assert line.strip().endswith(".")
    assert not line.startswith(cls.__name__ + "(")  # what a dataclass writes where nothing stands
    assert cls.source or name == "single"


@pytest.mark.parametrize("name", registry())
def test_a_strategy_stands_in_a_file_of_its_name(name):
    assert registry()[name].__module__ == f"regatta.strategies.{name.replace('-', '_')}"
