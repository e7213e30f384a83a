"""Times to a target, seed by seed: medians, intervals, curves and comparisons."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.statistics import (
    ANYTHING,
    Interval,
    Time,
    arrivals,
    compare,
    median_interval,
    median_time,
    olympic_mean,
    order_interval,
    student_quantile,
)

seconds = st.floats(0.01, 1e6)
times = st.lists(st.builds(Time, seconds, st.booleans()), min_size=1, max_size=12)


def reached(*values):
    return [Time(value) for value in values]


# -- one kind of run -------------------------------------------------------------------------


def test_a_missed_target_is_infinite_in_a_median():
    missed = Time(100.0, reached=False)
    assert median_time([*reached(1, 3), missed]) == 3
    assert median_time([*reached(1), missed, missed]) == math.inf
    assert median_time([*reached(1), missed]) == math.inf


def test_the_olympic_mean_leaves_out_both_ends():
    missed = Time(5.0, reached=False)
    assert olympic_mean(reached(9, 2, 4, 3)) == 3.5
    assert olympic_mean([*reached(2, 4), missed]) == 4  # one miss is the slowest
    assert olympic_mean([*reached(2, 4), missed, missed]) == math.inf
    assert olympic_mean(reached(1, 2)) is None


def test_the_interval_of_a_median_is_that_of_resampled_ones():
    assert median_interval(reached(*[7.0] * 9)) == Interval(7.0, 7.0)
    values = random.Random(1).sample(range(1, 100), 15)
    interval = median_interval(reached(*values))
    assert min(values) < interval.low < median_time(reached(*values)) < interval.high < max(values)
    some_missed = [*reached(1, 2, 3), *[Time(9.0, reached=False)] * 2]
    assert median_interval(some_missed).high == math.inf


@given(times)
def test_an_interval_holds_the_median(times):
    assert median_time(times) in median_interval(times)


def test_the_curve_of_arrivals_is_kaplan_and_meiers():
    """The third run was given up after 2 s: it tells nothing of what came later."""
    runs = [Time(1.0), Time(3.0), Time(2.0, reached=False), Time(3.0), Time(4.0)]
    assert arrivals(runs) == [
        (0.0, 0.0),
        (1.0, pytest.approx(1 / 5)),
        (3.0, pytest.approx(1 - 4 / 5 * 1 / 3)),
        (4.0, pytest.approx(1.0)),
    ]
    assert arrivals([Time(1.0, reached=False)]) == [(0.0, 0.0)]


@given(times)
def test_the_curve_of_arrivals_rises_to_at_most_one(times):
    shares = [share for _, share in arrivals(times)]
    assert shares == sorted(shares)
    assert 0 <= shares[-1] <= 1 + 1e-9


# -- two kinds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 9, 2.262), (0.95, 10, 2.228),
     (0.99, 4, 4.604), (0.9, 29, 1.699), (0.95, 1000, 1.962)],
)  # fmt: skip
def test_student_s_quantiles_are_those_of_the_tables(confidence, freedom, table):
    assert student_quantile(confidence, freedom) == pytest.approx(table, abs=6e-4)


def paired(ratios, start=10.0):
    mine = {seed: Time(start + seed) for seed in range(len(ratios))}
    return mine, {seed: Time((start + seed) * ratio) for seed, ratio in enumerate(ratios)}


def test_a_comparison_is_by_pairs():
    """Seeds differ far more than strategies do; pairs see through that."""
    found = compare(*paired([1.2, 1.25, 1.15, 1.2, 1.22]))
    assert found.ratio == pytest.approx(1.2034, abs=1e-3)
    assert found.is_faster
    assert not found.is_tie
    assert (found.pairs, found.faster, found.slower) == (5, 5, 0)
    back = compare(*reversed(paired([1.2, 1.25, 1.15, 1.2, 1.22])))
    assert back.ratio == pytest.approx(1 / found.ratio)
    assert not back.is_faster
    assert not back.is_tie


def test_the_same_times_are_a_tie():
    found = compare(*paired([1.0] * 20))
    assert found.is_tie
    assert found.interval == Interval(1.0, 1.0)


def test_one_seed_says_nothing_for_sure():
    found = compare(*paired([2.0]))
    assert found.ratio == pytest.approx(2)
    assert found.interval == ANYTHING
    assert found.is_tie


def test_several_comparisons_at_once_have_wider_intervals():
    runs = paired([1.2, 1.3, 1.1, 1.25])
    one, three = compare(*runs), compare(*runs, comparisons=3)
    assert three.interval.low < one.interval.low
    assert three.interval.high > one.interval.high


def test_who_misses_the_target_takes_for_ever():
    mine, others = paired([1.1] * 8)
    others[3] = others[5] = Time(50.0, reached=False)
    found = compare(mine, others)
    assert found.ratio == pytest.approx(1.1)
    assert found.interval == Interval(pytest.approx(1.1), math.inf)
    assert found.faster == 8
    mine[3] = Time(50.0, reached=False)
    assert compare(mine, others).pairs == 7, "where nobody arrives there is nothing to compare"


def test_too_few_pairs_with_a_miss_say_nothing_for_sure():
    mine, others = paired([1.1] * 5)
    others[0] = Time(50.0, reached=False)
    assert compare(mine, others).interval == ANYTHING


def test_only_seeds_of_both_are_compared():
    mine, others = paired([1.5] * 4)
    del mine[0], others[3]
    assert compare(mine, others).pairs == 2


@pytest.mark.parametrize("count", [5, 8, 20])
def test_intervals_cover_what_they_say(count):
    """Log-normal ratios around 1.15: of 1,000 intervals of 95 %, some 950 hold it."""
    chance = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        ratios = 1.15 * np.exp(0.08 * chance.standard_normal(count))
        covered += 1.15 in compare(*paired(list(ratios))).interval
    assert 930 <= covered <= 970


def test_intervals_by_order_cover_at_least_what_they_say():
    chance = np.random.default_rng(4)
    covered = sum(
        0.0 in order_interval(list(chance.standard_cauchy(20)), 0.95) for _ in range(1000)
    )
    assert covered >= 940
