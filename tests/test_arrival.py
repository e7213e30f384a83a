"""Times to a target that are known beforehand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.arrival import Arrival, Score, Target, arrival, lasting


def scores(*values, every=10.0):
    return [Score(every * (n + 1), value) for n, value in enumerate(values)]


def test_reached_once_and_for_all():
    found = arrival(scores(0.2, 0.4, 0.8, 0.9, 0.9), Target(0.6, last=3))
    assert found == Arrival(first=30.0, interpolated=25.0, lasting=40.0)


def test_never_reached():
    assert arrival(scores(0.2, 0.4, 0.5), Target(0.6)) == Arrival(None, None, None)
    assert arrival([], Target(0.6)) == Arrival(None, None, None)


def test_reached_and_lost_again():
    found = arrival(scores(0.7, 0.5, 0.5, 0.5), Target(0.6, last=3))
    assert found == Arrival(first=10.0, interpolated=10.0, lasting=None)
    later = arrival(scores(0.1, 0.7, 0.5, 0.5, 0.6, 0.7), Target(0.6, last=3))
    assert later.first == 20.0
    assert later.lasting == 60.0


def test_exactly_the_target_is_enough():
    assert arrival(scores(0.5, 0.6), Target(0.6)) == Arrival(20.0, 20.0, 20.0)


def test_error_rates_fall_to_their_target():
    found = arrival(scores(0.9, 0.5, 0.3, 0.25), Target(0.4, higher_is_better=False, last=3))
    assert found == Arrival(first=30.0, interpolated=pytest.approx(25.0), lasting=40.0)


def test_a_median_needs_all_its_evaluations():
    assert lasting(scores(0.9, 0.9), Target(0.6, last=3)) is None
    assert lasting(scores(0.9, 0.9, 0.1), Target(0.6, last=3)) == 30.0


def test_no_number_meets_no_target():
    values = (math.nan, 0.9)
    assert arrival(scores(*values), Target(0.6)) == Arrival(20.0, 20.0, 20.0)
    assert arrival(scores(*values), Target(0.6, higher_is_better=False)).first is None
    diverged = arrival(scores(math.inf, 0.3), Target(0.4, higher_is_better=False))
    assert diverged.interpolated == 20.0


curves = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(lambda values: scores(*values))
targets = st.builds(Target, st.floats(0, 1), st.booleans(), st.integers(1, 5))


@given(curves, targets)
def test_who_stays_has_come_and_lines_come_first(curve, target):
    found = arrival(curve, target)
    assert (found.first is None) == (found.interpolated is None)
    if found.first is not None:
        assert found.interpolated <= found.first + 1e-9
    if found.lasting is not None:
        assert found.first <= found.lasting


@given(curves, st.floats(0, 1), st.floats(0, 1), st.integers(1, 5))
def test_a_harder_target_takes_no_less_time(curve, one, other, last):
    easy, hard = sorted((one, other))
    times = [arrival(curve, Target(value, last=last)) for value in (easy, hard)]
    for measure in ("first", "interpolated", "lasting"):
        sooner, later = (getattr(found, measure) for found in times)
        assert later is None or sooner <= later + 1e-9


@given(curves, targets)
def test_error_rates_are_accuracies_upside_down(curve, target):
    mirrored = [Score(score.seconds, -score.value) for score in curve]
    turned = Target(-target.value, not target.higher_is_better, target.last)
    assert arrival(mirrored, turned) == arrival(curve, target)
