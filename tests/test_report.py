"""The page: complete in itself, and drawn by a real browser without a complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from racing import events_of, make_race, straight, write_events

from regatta.events import Usage
from regatta.race.entries import VIRTUAL, Lane
from regatta.race.outcome import of_race, of_run
from regatta.race.verdict import verdict
from regatta.report.activity import utilisation
from regatta.report.figures import all_figures
from regatta.report.files import outcome_of, write_html
from regatta.report.page import html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LANES = [
    Lane("single", 1, 32), Lane("all-reduce", 2, 32), Lane("averaging:period=4", 2, 32),
    Lane("ring", 2, 32), Lane("ring", 4, 32, VIRTUAL),
]  # fmt: skip


@pytest.fixture
def race(tmp_path):
    curves = {
        lane: {seed: straight(40.0 / lane.workers + seed + n) for seed in range(3)}
        for n, lane in enumerate(LANES)
    }
    curves[LANES[2]][1] = straight(None, 60.0)
    make_race(tmp_path / "race", curves, price=1.0)
    return of_race(tmp_path / "race")


class Tags(HTMLParser):
    """Opened and closed alike."""

    alone = ("meta", "br", "hr", "link", "img")

    def __init__(self):
        super().__init__()
        self.open, self.names = [], []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag not in self.alone:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing_else(race):
    text = html(race)
    without_scripts = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    tags = Tags()
    tags.feed(without_scripts)
    assert tags.open == []
    assert not re.search(r"(src|href)=", without_scripts)
    assert verdict(race) in without_scripts
    assert "How to make it again" in text


def test_every_plot_of_the_list_is_there(race):
    assert [figure.name for figure in all_figures(race)] == [
        "over-time", "over-samples", "loss", "reached", "scaling", "staleness", "costs",
        "utilisation", "timeline",
    ]  # fmt: skip


def test_virtual_ranks_are_as_busy_as_their_spans_say(tmp_path):
    """Computing for half a second, then waiting and sending until 0.8 s."""
    write_events(tmp_path / "run", events_of(straight(5.0), LANES[4]))
    outcome = of_run(tmp_path / "run")
    finish = outcome.standings[0].finishes[0]
    without = replace(finish, events=[e for e in finish.events if not isinstance(e, Usage)])
    shown = replace(outcome, standings=(replace(outcome.standings[0], finishes=(without,)),))
    figure = utilisation(shown)
    assert [trace["name"] for trace in figure.data] == [f"rank {n}" for n in range(4)]
    busy = dict(zip(figure.data[0]["x"], figure.data[0]["y"], strict=True))
    assert all(share == 1.0 for second, share in busy.items() if second < 0.45)
    assert all(share == 0.0 for second, share in busy.items() if second > 0.55)


def test_plots_hold_only_what_json_knows(race):
    for figure in all_figures(race):
        json.dumps([figure.data, figure.layout], allow_nan=False)


def test_names_cannot_break_the_page(tmp_path):
    lane = Lane("ring:</script><b>&", 2, 32)
    write_events(tmp_path / "run", events_of(straight(5.0), lane))
    text = html(of_run(tmp_path / "run"))
    assert "</script><b>" not in text
    assert text.count("<script") == text.count("</script>")


def test_a_page_of_a_run_that_has_nothing_to_show(tmp_path):
    write_events(tmp_path / "run", [next(iter(events_of(straight(5.0), LANES[1])))])
    text = html(of_run(tmp_path / "run"))
    assert "has not ended" in text


def test_folders_are_told_apart(tmp_path, race):
    assert outcome_of(tmp_path / "race").standings
    with pytest.raises(ValueError, match="holds neither a run nor a race"):
        outcome_of(tmp_path)
    with pytest.raises(ValueError, match="cannot write to"):
        write_html(race, tmp_path / "no" / "folder.html")


_WATCH = """<script>
window.complaints = [];
window.addEventListener("error", e => window.complaints.push(String(e.message)));
console.error = (...all) => window.complaints.push(all.join(" "));
console.warn = (...all) => window.complaints.push(all.join(" "));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")
@pytest.mark.parametrize("width", [1200, 500])  # a window cannot be narrower
def test_a_browser_draws_every_plot_without_a_complaint(tmp_path, race, width):
    page = write_html(race, tmp_path / "report.html")
    text = page.read_text().replace("<style>", _WATCH + "<style>", 1)
    page.write_text(
        text.replace(
            "</body>",
            "<script>setTimeout(() => document.title = JSON.stringify("
            "{complaints: window.complaints, drawn: [...document.querySelectorAll('.plot')].map("
            "p => [p.id, p.getAttribute('data-drawn'), "
            "p.querySelectorAll('.main-svg path, .main-svg .point').length]), "
            "overflow: document.documentElement.scrollWidth > window.innerWidth}), 4000)</script>"
            "</body>",
        )
    )
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},2000",
         "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, done.stderr[-2000:]
    found = json.loads(title[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert found["complaints"] == []
    assert [name for name, drawn, _ in found["drawn"] if drawn != "yes"] == []
    assert len(found["drawn"]) == len(all_figures(race))
    assert all(marks > 0 for _, _, marks in found["drawn"])
    assert not found["overflow"], "the page is wider than its window"
