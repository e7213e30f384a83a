"""Frames and their classes: by the middles of frames, by parts, by neighbours."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.data.labels import SILENCE, Classes, Labelling, Unit
from regatta.data.manifest import Label

HOP = 0.01


def names(labels: list[Label], frames: int, labelling: Labelling = Labelling()) -> list[str]:  # noqa: B008
    return [str(unit) for unit in labelling.units(labels, frames, HOP)]


# -- which frame is what --------------------------------------------------------------------


def test_a_frame_is_what_lies_at_its_middle():
    # The middles lie at 0.005, 0.015, 0.025, ...
    labels = [Label(0.0, 0.014, "a"), Label(0.014, 0.036, "b")]
    assert names(labels, 5) == ["a", "b", "b", "b", SILENCE]


def test_a_boundary_at_a_middle_begins_the_later_one():
    labels = [Label(0.0, 0.125, "a"), Label(0.125, 0.2, "b")]
    assert names(labels, 20) == ["a"] * 12 + ["b"] * 8


def test_gaps_are_silence_and_so_is_everything_without_labels():
    labels = [Label(0.02, 0.03, "a"), Label(0.05, 0.06, "b")]
    assert names(labels, 8) == [SILENCE, SILENCE, "a", SILENCE, SILENCE, "b", SILENCE, SILENCE]
    assert names([], 3) == [SILENCE] * 3
    assert names(labels, 0) == []


def test_of_two_that_overlap_the_later_one_counts():
    labels = [Label(0.02, 0.05, "b"), Label(0.0, 0.04, "a")]  # nor need they be in order
    assert names(labels, 5) == ["a", "a", "b", "b", "b"]


def test_labels_outside_the_recording_are_cut():
    labels = [Label(0.0, 9.0, "a"), Label(9.0, 9.5, "b"), Label(1e7, 1e7, "c")]
    assert names(labels, 3) == ["a"] * 3


def test_labels_shorter_than_a_frame_may_have_none():
    assert names([Label(0.011, 0.014, "a"), Label(0.02, 0.02, "b")], 3) == [SILENCE] * 3


def test_states_are_parts_of_equal_length():
    thirds = Labelling(states=3)
    assert names([Label(0.0, 0.06, "a")], 7, thirds) == [
        "a/1", "a/1", "a/2", "a/2", "a/3", "a/3", SILENCE,
    ]  # fmt: skip
    assert names([Label(0.0, 0.011, "a")], 1, thirds) == ["a/2"]


def test_neighbours_are_those_that_touch():
    labels = [
        Label(0.0, 0.01, "a"), Label(0.01, 0.02, "b"),  # then two frames of silence
        Label(0.04, 0.05, "c"), Label(0.0501, 0.06, "d"),
    ]  # fmt: skip
    assert names(labels, 6, Labelling(senones=9)) == [
        "sil-a+b", "a-b+sil", SILENCE, SILENCE, "sil-c+d", "c-d+sil",
    ]  # fmt: skip


def test_silence_is_one_class_whoever_wrote_it_down():
    labels = [Label(0.0, 0.02, "sil"), Label(0.02, 0.04, "a"), Label(0.04, 0.06, "sil")]
    found = names(labels, 7, Labelling(states=2, senones=9))
    assert found == ["sil", "sil", "sil-a+sil/1", "sil-a+sil/2", "sil", "sil", "sil"]


@given(st.data())
def test_every_frame_has_one_unit_and_inside_a_label_it_is_that_label(data):
    lengths = data.draw(st.lists(st.floats(0.0, 0.2), max_size=8))
    gaps = data.draw(st.lists(st.floats(0.0, 0.1), min_size=len(lengths), max_size=len(lengths)))
    frames, hop = data.draw(st.integers(0, 200)), data.draw(st.sampled_from([0.01, 0.0125, 0.004]))
    labels, at = [], 0.0
    for number, (gap, length) in enumerate(zip(gaps, lengths, strict=True)):
        labels.append(Label(at + gap, at + gap + length, f"p{number}"))
        at += gap + length
    labelling = Labelling(states=data.draw(st.integers(1, 4)), senones=data.draw(st.integers(0, 1)))
    units = labelling.units(labels, frames, hop)
    assert len(units) == frames
    for frame, unit in enumerate(units):
        middle = (frame + 0.5) * hop
        inside = [x.name for x in labels if x.start + 1e-9 < middle < x.end - 1e-9]
        near = [x.name for x in labels if x.start - 1e-9 <= middle <= x.end + 1e-9]
        assert unit.name in (inside or [*near, SILENCE])
        parts = range(1, labelling.states + 1) if unit.name != SILENCE else (0,)
        assert unit.part in parts or labelling.states == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tier": "letters"}, "tier must be one of phones, words"),
        ({"states": 0}, "states must be 1 or more"),
        ({"senones": -1}, "senones 0 or more"),
    ],
)
def test_labellings_that_cannot_be(options, told):
    with pytest.raises(ValueError, match=told):
        Labelling(**options)


# -- classes --------------------------------------------------------------------------------


def test_classes_by_frequency_with_back_off():
    often, seldom, never = Unit("a", 0, "x", "y"), Unit("a", 0, "y", "x"), Unit("a", 0, "z", "z")
    counts = Counter({often: 9, seldom: 2, Unit("sil"): 5})
    classes = Classes.of(counts, 3)
    assert classes.names == ("a", "sil", "x-a+y")
    assert [classes.number(u) for u in (often, seldom, never, Unit("sil"))] == [2, 0, 0, 1]
    assert classes.number(Unit("b", 0, "x", "y")) == -1
    assert classes.numbers([often, Unit("b")]).tolist() == [2, -1]


def test_phones_alone_are_classes_though_fewer_are_asked_for():
    counts = Counter({Unit(name, 0, "x", "y"): 3 for name in "abcd"})
    assert Classes.of(counts, 2).names == ("a", "b", "c", "d")


UNITS = st.builds(
    Unit, st.sampled_from("abc"), st.integers(0, 2), st.sampled_from(["", *"abc"]), st.just("")
)


@given(st.lists(UNITS, min_size=1, max_size=60), st.integers(0, 20), st.randoms())
def test_classes_do_not_depend_on_order_and_are_as_many_as_asked(units, senones, random):
    classes = Classes.of(Counter(units), senones)
    alone = {str(unit.alone) for unit in units}
    assert len(classes) <= max(senones, len(alone))
    assert len(set(classes.names)) == len(classes)
    assert min(classes.numbers(units)) >= 0  # every one of them has a class
    shuffled = list(units)
    random.shuffle(shuffled)
    assert Classes.of(Counter(shuffled), senones).names == classes.names
