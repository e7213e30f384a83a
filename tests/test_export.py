"""`regatta export`: the network as ONNX puts out what it does in PyTorch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from recognising import another, regatta, said

from regatta.data.alphabet import Alphabet
from regatta.decode.greedy import Greedy
from regatta.models.recogniser import Network
from regatta.recognise import onnx_file
from regatta.recognise.onnx_file import export
from regatta.recognise.trained import Trained

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def session(path) -> object:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_the_file_recognises_by_itself(tones, tmp_path):
    """With nothing but ONNX Runtime, its metadata, and features."""
    path = tmp_path / "new" / "model.onnx"
    done = regatta("export", tones, "--out", path)
    assert done.code == 0, done.err
    assert "the largest difference to the original is" in done.out
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    network = session(path)
    about = json.loads(network.get_modelmeta().custom_metadata_map["regatta"])
    trained = Trained.open(tones)
    assert about["words"] == list(trained.words)
    assert about["features"]["hop"] == 160
    features = trained.extractor(torch.from_numpy(said("cab dace"))).numpy()
    scaled = features * np.float32(about["scale"]) + np.float32(about["shift"])
    outputs, frames = network.run(
        ["log_probabilities", "frames_out"],
        {"features": scaled[None], "frames": np.array([len(scaled)])},
    )
    alphabet = Alphabet(**about["alphabet"])
    assert about["blank"] == alphabet.blank
    [[found]] = Greedy(alphabet).decode(torch.from_numpy(outputs), frames.tolist())
    assert found.text == "cab dace"


@pytest.mark.parametrize(
    "network",
    [
        Network(channels=8, hidden=9),
        Network(channels=8, hidden=9, cell="gru", norm="layer"),
        Network(channels=8, hidden=9, bidirectional=True, norm="none", layers=3),
        Network(channels=8, hidden=9, bidirectional=True, cell="gru", kernel=3, stride=1),
    ],
    ids=lambda n: f"{n.cell}-{n.norm}-{n.bidirectional}",
)
def test_every_kind_of_network_at_every_length(tones, tmp_path, network):
    trained = Trained.open(another(tmp_path / "m.safetensors", tones, network))
    made = export(trained, tmp_path / "m.onnx")
    assert made.difference < 1e-4
    found = session(made.path)
    for size, longest in ((1, network.kernel), (4, 77), (2, 301)):
        features = torch.randn(size, longest, trained.features.size)
        frames = torch.linspace(network.kernel, longest, size).long().flip(0)
        outputs, count = found.run(None, {"features": features.numpy(), "frames": frames.numpy()})
        wanted = trained.model(features, frames).transpose(0, 1).detach().numpy()
        assert count.tolist() == trained.model.frames(frames).tolist()
        for row, length in enumerate(count):
            assert np.abs(outputs[row, :length] - wanted[row, :length]).max() < 1e-4


def test_a_network_that_differs_is_not_written(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="puts out something else than the original"):
        export(trained, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_check_notices_another_network(trained, tones, tmp_path):
    made = export(trained, tmp_path / "m.onnx")
    other = Trained.open(another(tmp_path / "o.safetensors", tones, trained.model.network))
    network = onnx_file._Network(other).eval()
    assert onnx_file._difference(made.path.read_bytes(), network, other) > 0.01


def test_too_many_words_are_left_out(tones, tmp_path):
    words = [f"w{n}" for n in range(10_001)]
    network = Network(channels=4, hidden=4, layers=1)
    path = another(tmp_path / "m.safetensors", tones, network, words=words)
    done = regatta("export", path, "-o", tmp_path / "m.onnx")
    assert "the words of the training are too many" in done.err
    about = session(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map["regatta"]
    assert "words" not in json.loads(about)


def test_what_is_missing_is_named(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "NEEDED", ("onnx", "onnx_nowhere"))
    with pytest.raises(ValueError, match=r"needs onnx_nowhere: pip install 'regatta-train\[export"):
        export(trained, tmp_path / "m.onnx")


def test_nothing_is_written_over(tones, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_text("mine")
    assert "is there already" in regatta("export", tones, "-o", path).err
    assert path.read_text() == "mine"
    assert regatta("export", tones, "-o", path, "--force").code == 0
    assert path.read_bytes() != b"mine"
    assert "must end in .onnx" in regatta("export", tones, "-o", tmp_path / "m.bin").err
