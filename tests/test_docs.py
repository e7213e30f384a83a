"""What the documentation shows does run."""

import re
from pathlib import Path

import pytest
from helpers import play

from regatta import config, recipes
from regatta.strategies import registry

ROOT = Path(__file__).parent.parent


def test_the_example_of_add_a_strategy_is_a_strategy():
    page = (ROOT / "docs" / "add-a-strategy.md").read_text()
    block = re.search(r"```python\n(# regatta/strategies/one_shot\.py\n.*?)```", page, re.DOTALL)
    assert block is not None, "the page has lost its example"
    names: dict[str, object] = {"__name__": "one_shot"}
    exec(compile(block[1], "docs/add-a-strategy.md", "exec"), names)
    kind = next(v for k, v in names.items() if getattr(v, "name", None) == "one-shot")
    assert len(block[1].splitlines()) < 60
    run = config.assign(recipes.load("teacher"), ["stop.epochs=1", "stop.target=none",
                        "task.train=2048", "task.dev=256", "minibatch=16"])  # fmt: skip
    played = play(config.replace(run, strategy=kind(), workers=4))
    assert len({e.digest for e in played.ranks}) == 1
    assert all(e.turns == 32 for e in played.ranks)


def test_the_readme_lists_every_module_and_strategy():
    readme = (ROOT / "README.md").read_text()
    for module in (ROOT / "regatta").rglob("*.py"):
        assert module.name in readme, f"{module.name} is missing from the tree"
    for name in registry():
        assert f"| `{name}` |" in readme


def test_the_pages_name_every_strategy():
    page = (ROOT / "docs" / "strategies.md").read_text()
    for name in registry():
        assert name in page


@pytest.mark.parametrize("name", registry())
def test_every_strategy_has_a_page_that_names_its_options(name):
    page = ROOT / "docs" / "strategies" / f"{name}.md"
    assert page.exists(), f"docs/strategies/{name}.md is missing"
    text = page.read_text()
    assert text.startswith(f"# {name}\n")
    for option in config.options(registry()[name]):
        assert f"| `{option}` |" in text, f"{page.name} does not name {option}"
    assert f"(strategies/{name}.md)" in (ROOT / "docs" / "strategies.md").read_text()


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith(("http:", "https:")):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not heading or heading in headings(target), f"{page.name} links to {link}"


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
