"""Codes: what they send, what they lose, and that nothing is lost for good."""

from __future__ import annotations

import pytest
import torch
from helpers import Crew, Normalised, play, small_run
from torch import nn

from regatta.cluster import Cluster
from regatta.comm import Phantom
from regatta.compress import code, code_for_models
from regatta.compress.channel import Channel
from regatta.compress.rows import Rows
from regatta.learn.body import Body
from regatta.learn.layout import Layout
from regatta.learn.optimisers import Sgd
from regatta.learn.replica import Replica
from regatta.strategies.all_reduce import AllReduce
from regatta.strategies.averaging import Averaging
from regatta.strategies.parameter_server import ParameterServer
from regatta.worlds.virtual import VirtualWorld

CODES = ["fp16", "int8", "one-bit", "top-k/0.1", "power-sgd/2"]
every_code = pytest.mark.parametrize("spec", CODES)


def a_model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 7))


class NoStream:
    samples, planned = 1, 0

    def next(self, number=None):
        return None


def a_replica():
    world = VirtualWorld(1, Cluster())
    return Replica(Body(a_model()), None, NoStream(), world.comms[0], Sgd())


def noise(replica, seed):
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(replica.layout.numel, generator=generator)
    vector[-1] = 1.0
    return vector


def a_channel(spec, replica, feedback=True, span=None):
    return Channel(code(spec), replica, span or replica.layout, "residual", feedback)


# -- what goes over the wire -----------------------------------------------------------------


@every_code
def test_a_payload_has_the_stated_size(spec):
    replica = a_replica()
    for span in (replica.layout, *(replica.layout.stripe(n, 3) for n in range(3))):
        channel = a_channel(spec, replica, span=span)
        vector = torch.randn(span.numel)
        payload = channel.encode(vector)
        assert payload.dtype == torch.uint8
        assert payload.nbytes == channel.nbytes
        assert channel.encode(Phantom(span.nbytes, 1.0)).nbytes == channel.nbytes
        assert channel.decode(payload).numel() == span.numel


def test_one_bit_is_a_thirtieth_and_int8_a_quarter_of_a_large_matrix():
    layout = Layout(nn.Linear(1024, 1024))
    plain = 4 * layout.num_parameters
    sizes = {spec: code(spec).nbytes(Rows(layout.matrices)) for spec in CODES}
    assert plain / sizes["fp16"] == 2
    assert plain / sizes["int8"] == pytest.approx(4, rel=0.01)
    assert plain / sizes["one-bit"] == pytest.approx(30, rel=0.06)  # two levels a row are extra
    assert plain / sizes["top-k/0.1"] == pytest.approx(5, rel=0.01)
    assert plain / sizes["power-sgd/2"] == pytest.approx(200, rel=0.3)  # a bias travels whole


@every_code
def test_statistics_and_count_travel_as_they_are(spec):
    replica = a_replica()
    vector = noise(replica, 1)
    tail = replica.layout.num_parameters
    channel = a_channel(spec, replica)
    assert torch.equal(channel.decode(channel.encode(vector))[tail:], vector[tail:])


def test_one_bit_sends_the_side_and_the_mean_of_each_side_of_a_row():
    coded = code("one-bit")
    rows = Rows([(2, 4)])
    values = torch.tensor([1.0, 3.0, -2.0, 0.0, -1.0, -3.0, -5.0, -7.0])
    expected = [4 / 3, 4 / 3, -2.0, 4 / 3, -4.0, -4.0, -4.0, -4.0]
    decoded = coded.decode(coded.encode(values, rows, None), rows)
    torch.testing.assert_close(decoded, torch.tensor(expected))


def test_int8_is_within_half_a_step_of_its_row():
    coded, rows = code("int8"), Rows([(5, 40), (1, 9)])
    values = torch.randn(209) * torch.logspace(-6, 6, 209)
    apart = (coded.decode(coded.encode(values, rows, None), rows) - values).abs()
    for part, matrix in zip(rows.each_matrix(apart), rows.each_matrix(values), strict=True):
        assert bool((part <= matrix.abs().amax(1, keepdim=True) / 254 * 1.001).all())


def test_top_k_sends_the_largest():
    coded, rows = code("top-k/0.25"), Rows([(2, 4)])
    values = torch.tensor([1.0, -9.0, 2.0, 0.0, 3.0, 8.0, -4.0, 5.0])
    decoded = coded.decode(coded.encode(values, rows, None), rows)
    assert decoded.tolist() == [0, -9, 0, 0, 0, 8, 0, 0]


def test_power_sgd_finds_a_matrix_of_its_rank():
    coded, rows = code("power-sgd/3"), Rows([(40, 50)])
    matrix = (torch.randn(40, 3) @ torch.randn(3, 50)).reshape(-1)
    memory = torch.zeros(2000)
    for _ in range(2):  # one iteration finds the space, the next is exact
        decoded = coded.decode(coded.encode(matrix, rows, memory), rows)
    torch.testing.assert_close(decoded, matrix, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["fp16", "int8", "one-bit", "power-sgd/2"])
def test_a_poisoned_gradient_is_not_hidden(spec):
    """A code that turned it into numbers would let a lost run look healthy."""
    replica = a_replica()
    vector = noise(replica, 0)
    vector[3] = torch.nan
    channel = a_channel(spec, replica, feedback=False)
    assert channel.decode(channel.encode(vector)).isnan().any()


def test_fp16_cuts_off_what_is_too_large_for_it():
    coded, rows = code("fp16"), Rows([(1, 2)])
    decoded = coded.decode(coded.encode(torch.tensor([1e6, -1e9]), rows, None), rows)
    assert decoded.tolist() == [65504, -65504]


@every_code
def test_zeros_stay_zeros(spec):
    replica = a_replica()
    channel = a_channel(spec, replica)
    decoded = channel.decode(channel.encode(replica.nothing))
    assert not decoded.any()


# -- feedback --------------------------------------------------------------------------------


@every_code
def test_with_feedback_nothing_is_lost_for_good(spec):
    """What was received so far and the residual together are what was sent so far."""
    replica = a_replica()
    channel = a_channel(spec, replica)
    split = replica.layout.num_parameters
    sent = received = torch.zeros(split)
    for seed in range(20):
        vector = noise(replica, seed)
        sent = sent + vector[:split]
        received = received + channel.decode(channel.encode(vector))[:split]
    owed = replica.slot("residual")[:split]
    torch.testing.assert_close(received + owed, sent, rtol=1e-3, atol=1e-3)
    assert spec == "fp16" or owed.abs().max() > 0.01  # it does lose, for a while


@every_code
def test_a_constant_gradient_comes_through_in_the_mean(spec):
    replica = a_replica()
    vector = noise(replica, 3)
    split = replica.layout.num_parameters

    def mean_received(channel):
        total = torch.zeros(split)
        for _ in range(200):
            total += channel.decode(channel.encode(vector))[:split]
        return total / 200

    far = (mean_received(a_channel(spec, replica)) - vector[:split]).abs().max()
    assert far < 0.15


def test_without_feedback_a_constant_gradient_never_comes_through():
    replica = a_replica()
    vector = noise(replica, 3)
    split = replica.layout.num_parameters
    channel = a_channel("one-bit", replica, feedback=False)
    for _ in range(3):
        received = channel.decode(channel.encode(vector))[:split]
    assert (received - vector[:split]).abs().max() > 1


@every_code
def test_who_has_nothing_to_add_keeps_its_residual(spec):
    replica = a_replica()
    channel = a_channel(spec, replica)
    channel.encode(noise(replica, 0))
    owed = replica.slot("residual").clone()
    channel.encode(replica.nothing)
    assert torch.equal(replica.slot("residual"), owed)


# -- sums ------------------------------------------------------------------------------------


def summed_gradients(spec, workers, feedback=True):
    """What every worker of an all-reduce steps with, at fixed weights."""
    data = Normalised().open()
    batches = [data.batch(slice(16 * n, 16 * (n + 1))) for n in range(workers)]
    strategy = AllReduce(compress=spec, feedback=feedback)
    crew = Crew(strategy, workers, a_small_model, data.loss, Sgd(lr=1.0), Cluster())
    before = crew.holder.weights.clone()
    crew.play([[batch] for batch in batches])
    return [before - replica.weights for replica in crew.replicas], crew


def a_small_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


@pytest.mark.parametrize("workers", [2, 3, 5])
@every_code
def test_every_worker_has_the_same_sum_near_the_true_one(spec, workers):
    (true, *_), _ = summed_gradients("none", workers)
    sums, _ = summed_gradients(spec, workers)
    assert all(torch.equal(total, sums[0]) for total in sums)
    alike = torch.nn.functional.cosine_similarity(true[:-1], sums[0][:-1], dim=0)
    assert alike > (0.99 if spec in ("fp16", "int8") else 0.4)


def test_both_sides_of_one_bit_have_residuals():
    """The workers' own, and those of the sums that each owner sends."""
    _, crew = summed_gradients("one-bit", 3)
    for replica in crew.replicas:
        assert replica.slots["residual"].any()
        assert replica.slots["residual of sums"].any()


def test_bytes_on_the_wire_shrink_as_the_code_says():
    def nbytes(strategy):
        return sum(rank.bytes for rank in play(small_run(strategy, 4, task=WIDE, **CALM)).ranks)

    plain = nbytes(ParameterServer())
    pushed = nbytes(ParameterServer(compress="one-bit"))
    both = nbytes(ParameterServer(compress="int8", compress_weights="int8"))
    # A gradient and a reply a turn: only the first shrinks to nearly nothing, or both to a quarter.
    assert pushed / plain == pytest.approx(0.5, abs=0.08)
    assert both / plain == pytest.approx(0.25, abs=0.08)


class Wide(Normalised):
    name = "wide"

    def model(self):
        return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 1))


WIDE = Wide()
CALM = {"optimiser": Sgd(lr=0.001)}


def test_the_virtual_clock_charges_the_bytes_on_the_wire():
    slow = Cluster(bandwidth=1e6, merge_bandwidth=1e12)

    def seconds(strategy):
        run = small_run(strategy, 4, task=WIDE, cluster=slow, **CALM)
        return max(rank.time for rank in play(run).ranks)

    assert seconds(AllReduce(compress="int8")) < 0.5 * seconds(AllReduce())
    assert seconds(Averaging(compress="fp16")) < 0.7 * seconds(Averaging())


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zip", "compress=zip: known here are none, fp16, int8, one-bit, top-k, power-sgd"),
        ("fp16/3", "compress=fp16/3: fp16 takes no number"),
        ("top-k/2", "the share must be more than 0 and at most 1"),
        ("top-k/x", "compress=top-k/x: could not convert"),
        ("power-sgd/0", "the rank must be 1 or more"),
    ],
)
def test_a_code_that_does_not_exist_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        AllReduce(compress=spec)


def test_buckets_and_codes_exclude_each_other():
    with pytest.raises(ValueError, match="use bucket_bytes=0"):
        small_run(AllReduce(compress="int8"), 2, bucket_bytes=4096)


def test_a_model_does_not_travel_in_bits():
    with pytest.raises(ValueError, match="known here are none, fp16, int8"):
        code_for_models("one-bit")
    with pytest.raises(ValueError, match="compress_weights=top-k"):
        ParameterServer(compress_weights="top-k")
