"""A trained network as an ONNX file, checked against the original before it is put in place."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regatta.aside import write_aside
from regatta.recognise.trained import Trained

NEEDED = ("onnx", "onnxruntime", "onnxscript")
TOLERANCE = 1e-4  # of log probabilities
_INPUTS, _OUTPUTS = ("features", "frames"), ("log_probabilities", "frames_out")
_MOST_WORDS = 10_000  # more are left out of the file
_EXAMPLE = (3, 40)  # utterances, and frames beyond the least
_TRIED = ((1, 0), (1, 97), (2, 1), (3, 250), (8, 33))  # the same, of the check


class Exported(NamedTuple):
    path: Path
    bytes: int
    difference: float  # the largest to the original
    words: bool  # they are in the file


class _Network(nn.Module):
    """[utterance, frame, feature] in, [utterance, frame, symbol] out."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(features, frames).transpose(0, 1), self.model.frames(frames)


def export(trained: Trained, path: Path) -> Exported:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"an ONNX file needs {', '.join(missing)}: pip install 'regatta-train[export]'"
        )
    network = _Network(trained).eval()
    about = _about(trained)
    content = _with(_converted(network, trained), about)
    difference = _difference(content, network, trained)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the ONNX network puts out something else than the original (they differ by "
            f"{difference:.2g}, at most {TOLERANCE:g} is allowed): nothing was written; try other "
            "versions of torch and onnxruntime"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, content)
    return Exported(path, len(content), difference, "words" in about)


def _about(trained: Trained) -> dict[str, Any]:
    """What a user of the file needs beyond the network; numbers as in the checkpoint."""
    network = trained.model.network
    scaled = trained.sums is not None and trained.normalise != "none"
    scale, shift = trained.sums.scale_and_shift() if scaled and trained.sums else (None, None)
    about: dict[str, Any] = {
        "alphabet": asdict(trained.alphabet),
        "blank": trained.alphabet.blank,
        "features": asdict(trained.features),
        "normalise": trained.normalise,
        "scale": None if scale is None else scale.tolist(),
        "shift": None if shift is None else shift.tolist(),
        "least_frames": network.kernel,
        "network": asdict(network),
    }
    if len(trained.words) <= _MOST_WORDS:
        about["words"] = list(trained.words)
    return about


# -- conversion -------------------------------------------------------------------------------


def _converted(network: _Network, trained: Trained) -> bytes:
    """By the exporter that traces, which knows all our layers; by the newer one if it is gone."""
    example = _batch(trained, *_EXAMPLE)
    with _quiet(), TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        try:
            _trace(network, example, file)
        except Exception as error:
            try:
                _capture(network, example, file)
            except Exception:  # the first says more
                raise ValueError(
                    f"this network cannot be written as ONNX by torch {torch.__version__} "
                    f"({str(error).splitlines()[0]}): try another version"
                ) from error
        return file.read_bytes()


def _trace(network: _Network, example: tuple[Tensor, Tensor], file: Path) -> None:
    one = {0: "utterance"}
    axes = {
        "features": one | {1: "frame"}, "frames": one,
        "log_probabilities": one | {1: "frame_out"}, "frames_out": one,
    }  # fmt: skip
    torch.onnx.export(
        network, example, file, input_names=_INPUTS, output_names=_OUTPUTS, dynamic_axes=axes,
        dynamo=False,
    )  # fmt: skip


def _capture(network: _Network, example: tuple[Tensor, Tensor], file: Path) -> None:
    utterance = torch.export.Dim("utterance")
    frame = torch.export.Dim("frame", min=network.model.network.kernel)
    torch.onnx.export(
        network, example, file, input_names=_INPUTS, output_names=_OUTPUTS,
        dynamic_shapes={"features": {0: utterance, 1: frame}, "frames": {0: utterance}},
        dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


def _with(content: bytes, about: dict[str, Any]) -> bytes:
    import onnx

    model = onnx.load_from_string(content)
    entry = model.metadata_props.add()
    entry.key, entry.value = "regatta", json.dumps(about, ensure_ascii=False)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of themselves; what matters is checked afterwards."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# -- the check --------------------------------------------------------------------------------


@torch.no_grad()
def _difference(content: bytes, network: _Network, trained: Trained) -> float:
    """The largest, over batches of several sizes and lengths; infinite if shapes differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    worst = 0.0
    for size, beyond in _TRIED:
        features, frames = _batch(trained, size, beyond)
        wanted, count = network(features, frames)
        inputs = {"features": features.numpy(), "frames": frames.numpy()}
        found, counted = (torch.from_numpy(each) for each in session.run(None, inputs))
        if found.shape != wanted.shape or not torch.equal(counted, count):
            return float("inf")
        for number, length in enumerate(count.tolist()):  # padding is of no concern
            apart = (found[number, :length] - wanted[number, :length]).abs().max()
            worst = max(worst, float(apart.nan_to_num(torch.inf)))
    return worst


def _batch(trained: Trained, size: int, beyond: int) -> tuple[Tensor, Tensor]:
    """Utterances of random features and lengths, the first the longest."""
    generator = torch.Generator().manual_seed(size)
    least = trained.model.network.kernel
    features = torch.randn(size, least + beyond, trained.features.size, generator=generator)
    frames = torch.randint(least, least + beyond + 1, (size,), generator=generator)
    frames[0] = least + beyond
    return features, frames
