"""The parts of `regatta bench decode`, on outputs that need no training."""

from __future__ import annotations

import pytest
import torch
from decoding import peaks

from regatta.benchmarks import decode as bench
from regatta.benchmarks.heard import Heard
from regatta.data.alphabet import Alphabet

TEXTS = ["the cat sat", "on the mat", "the cat sat on the mat"]


@pytest.fixture
def spoken() -> Heard:
    """Clear speech."""
    alphabet = Alphabet(separator="~")
    outputs = [peaks(alphabet.encoded(text), alphabet).float() for text in TEXTS]
    return Heard(alphabet, outputs, TEXTS, TEXTS, seconds=1.0)


def test_outputs_are_kept(spoken, tmp_path):
    file = tmp_path / "outputs.npz"
    file.write_bytes(spoken.kept())
    again = Heard.of_file(file)
    assert (again.alphabet, again.texts, again.learnt) == (spoken.alphabet, TEXTS, TEXTS)
    assert again.seconds == 1.0
    assert all(map(torch.equal, again.outputs, spoken.outputs))


@pytest.mark.parametrize("mode", ["words", "ngrams", "forecast"])
def test_both_sides_understand_clear_speech(spoken, tmp_path, mode, capfd):
    pytest.importorskip("flashlight.lib.text.decoder", reason="flashlight-text is not there")
    sides = bench.Sides.of(spoken, tmp_path)
    for side in (sides.ours, sides.peer):
        decode = side(mode, 64)
        assert [decode(outputs) for outputs in spoken.outputs] == TEXTS
    speed, errors = bench._against(sides, mode, 64, 2)
    assert speed.bar == 1.0
    assert len(speed.ratios) == 2
    assert (errors.ratio, errors.ours, errors.holds) == (0.0, "WER 0.000", True)
    assert capfd.readouterr().err == ""  # KenLM is kept quiet


def test_every_width_is_told(spoken, tmp_path):
    rows = bench._speeds(bench.Sides.of(spoken, tmp_path))
    assert [row["decoder"] for row in rows[:3]] == ["greedy", "prefix", "words"]
    assert all(row["WER"] == 0 for row in rows)
    assert bench._growth(bench.Sides.of(spoken, tmp_path), 2).ratio > 0


def test_what_a_fresh_process_does_is_timed(capsys):
    exec(compile(bench._SCRIPT.replace("MODE", "words"), "first call", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 60
