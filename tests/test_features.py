"""Features are Kaldi's numbers, whatever makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from speaking import RATE, tone

from regatta.data import audio
from regatta.data.augment import Augmentation, Augmenter, Speeds
from regatta.data.features import Extractor, Features, Splice, mirrored
from regatta.data.normalise import Sums

WAVES = [tone(seconds, 200 + 90 * n) for n, seconds in enumerate((0.35, 1.0, 2.337, 4.1))]


def kaldi_options(options, features: Features):
    options.frame_opts.samp_freq = features.rate
    options.frame_opts.frame_length_ms = 1000 * features.window / features.rate
    options.frame_opts.frame_shift_ms = 1000 * features.hop / features.rate
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.frame_opts.window_type = features.shape if features.shape != "hann" else "hanning"
    options.frame_opts.preemph_coeff = features.preemphasis
    options.mel_opts.num_bins = features.mels
    options.mel_opts.low_freq = features.low
    options.mel_opts.high_freq = features.high
    options.use_energy = False
    return options


def frames_of(online, wave: np.ndarray) -> np.ndarray:
    online.accept_waveform(RATE, wave.tolist())
    online.input_finished()
    return np.stack([online.get_frame(n) for n in range(online.num_frames_ready)])


@pytest.mark.parametrize(
    "features",
    [
        Features(),
        Features(mels=40, window=400, mfcc=0),
        Features(mels=23, low=64, high=-400, mfcc=13),
        Features(shape="hann", preemphasis=0.9, mels=64),
        Features(shape="hamming", hop=200, mels=64),
    ],
    ids=str,
)
@pytest.mark.parametrize("wave", WAVES, ids=len)
def test_log_mels_and_cepstra_agree_with_kaldi(features, wave):
    knf = pytest.importorskip("kaldi_native_fbank")
    ours = Extractor(features)(torch.from_numpy(wave)).numpy()
    theirs = frames_of(knf.OnlineFbank(kaldi_options(knf.FbankOptions(), features)), wave)
    np.testing.assert_allclose(ours[:, : features.mels], theirs, atol=5e-3)
    if features.mfcc:
        options = kaldi_options(knf.MfccOptions(), features)
        options.num_ceps, options.cepstral_lifter = features.mfcc, features.lifter
        theirs = frames_of(knf.OnlineMfcc(options), wave)
        np.testing.assert_allclose(ours[:, features.mels :], theirs, atol=2e-2)


def test_log_mels_agree_with_lhotse():
    kaldi = pytest.importorskip("lhotse.features.kaldi.extractors")
    config = kaldi.FbankConfig(sampling_rate=RATE, frame_length=0.032, dither=0.0, high_freq=0.0)
    for wave in WAVES:
        ours = Extractor(Features(mfcc=0))(torch.from_numpy(wave)).numpy()
        theirs = np.asarray(kaldi.Fbank(config).extract(wave, RATE))
        np.testing.assert_allclose(ours, theirs, atol=5e-3)


@pytest.mark.parametrize("samples", [0, 1, 79, 80, 81, 160, 400, 511, 512, 16_000, 16_079])
def test_there_is_a_frame_for_every_hop(samples):
    found = Extractor()(torch.randn(samples))
    assert found.shape == ((samples + 80) // 160, 93)
    assert torch.isfinite(found).all()


def test_nothing_is_computed_on_another_device():
    """What is mixed up would fail; a device without numbers stands for one that is not here."""
    found = Extractor(device="meta")(torch.randn(16_000))
    assert found.device.type == "meta"
    assert found.shape == (100, 93)


def test_silence_has_finite_features():
    assert torch.isfinite(Extractor()(torch.zeros(16_000))).all()


def test_features_do_not_depend_on_how_many_frames_are_made_at_once(monkeypatch):
    wave = torch.from_numpy(WAVES[-1])
    whole = Extractor()(wave)
    monkeypatch.setattr("regatta.data.features._CHUNK", 7)
    torch.testing.assert_close(Extractor()(wave), whole, atol=1e-4, rtol=0)


def test_a_signal_is_mirrored_as_often_as_it_takes():
    assert mirrored(torch.tensor([1, 2, 3]), 2, 2).tolist() == [2, 1, 1, 2, 3, 3, 2]
    assert mirrored(torch.tensor([1, 2]), 5, 3).tolist() == [1, 1, 2, 2, 1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mels": 0}, "mels must be 1 or more"),
        ({"mfcc": 99}, "mfcc must be 0 to 80"),
        ({"low": 9000.0}, "must lie in this order"),
        ({"high": 9000.0}, "must lie in this order"),
        ({"preemphasis": 2.0}, "preemphasis must be from 0 to 1"),
        ({"shape": "square"}, "povey, hann or hamming"),
        ({"mels": 200}, "narrower than the spectrum's lines"),
        ({"hop": 800}, "hop 800 skips"),
        ({"lifter": float("nan")}, "lifter must be a number"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Features(**options)


def test_the_spliced_input_of_the_paper():
    features = torch.arange(5.0)[:, None].repeat(1, 40)
    spliced = Splice(8, 8)(features)
    assert spliced.shape == (5, 680)
    assert spliced[2, ::40].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4]


def test_sums_of_parts_normalise_the_whole():
    whole = torch.randn(300, 7) * 3 + 5
    sums = Sums.of(whole[:100]) + Sums.of(whole[100:])
    scale, shift = sums.scale_and_shift()
    normal = whole * scale + shift
    torch.testing.assert_close(normal.mean(0), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(0, correction=0), torch.ones(7), atol=1e-4, rtol=0)


def test_a_feature_that_never_varies_becomes_zero():
    scale, shift = Sums.of(torch.full((50, 2), 3.0)).scale_and_shift()
    torch.testing.assert_close(3.0 * scale + shift, torch.zeros(2), atol=1e-4, rtol=0)


# -- augmentation ----------------------------------------------------------------------------


def test_masks_hide_no_more_than_they_may():
    features = Extractor()(torch.from_numpy(WAVES[-1]))
    wanted = Augmentation(time_masks=2, time_width=10, mel_masks=1, mel_width=5)
    masked = Augmenter(wanted, Features())(features, epoch=0, utterance=3)
    changed = (masked[:, :80] != features[:, :80]).float()
    rows, columns = (changed.mean(1) > 0.95).sum(), (changed.mean(0) > 0.95).sum()
    assert rows + columns > 0
    assert rows <= 20
    assert columns <= 5


def test_cepstra_are_those_of_the_masked_mels():
    features = Extractor()(torch.from_numpy(WAVES[1]))
    nothing = Augmentation(time_masks=0, mel_masks=1, mel_width=0)
    same = Augmenter(nothing, Features())(features, epoch=1, utterance=1)
    torch.testing.assert_close(same, features, atol=2e-3, rtol=1e-4)


def test_chance_is_drawn_by_epoch_and_utterance():
    features = Extractor()(torch.from_numpy(WAVES[1]))
    augment = Augmenter(Augmentation(time_masks=2, mel_masks=2, speed=0.1), Features())
    assert torch.equal(augment(features, 3, 5), augment(features, 3, 5))
    for other in ((4, 5), (3, 6)):
        different = augment(features, *other)
        assert different.shape != (100, 93) or not torch.equal(different, augment(features, 3, 5))


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_another_speed_is_nearly_that_of_the_recording_itself(speed):
    """On speech of a synthesiser's; docs/data.md has the figures for people's."""
    pytest.importorskip("espeakng_loader")
    from regatta.data.synth.espeak import Voice, speak

    spoken = speak("the captain found a wooden boat this morning", Voice("en-us", "m3"), 160, 50, 1)
    loud = np.frombuffer(spoken.samples, np.int16).astype(np.float32) / 32768
    wave = audio.resampled(loud, spoken.rate, RATE)
    wave = wave + 1e-3 * np.random.default_rng(0).standard_normal(len(wave)).astype(np.float32)
    extract = Extractor(Features(mfcc=0))
    true = extract(torch.from_numpy(audio.at_speed(wave, speed)))
    near = Speeds(Features())(extract(torch.from_numpy(wave)), speed)
    frames = min(len(near), len(true))
    assert abs(len(near) - len(true)) <= 1
    heard = slice(0, 66)  # below 0.9 of half the rate: above it, the slower recording has nothing
    error = (near[:frames, heard] - true[:frames, heard]).abs().mean() / true.std()
    assert error < 0.15


def test_a_transcript_always_fits_into_a_faster_utterance():
    features = torch.randn(100, 93)
    augment = Augmenter(Augmentation(speed=0.5), Features())
    for utterance in range(30):
        assert len(augment(features, 0, utterance, least=95)) >= 95
