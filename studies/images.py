"""Campos et al. again: strategies on Fashion-MNIST, nodes of four workers, and ResNet-50.

    python studies/images.py FASHION [--out studies/out] [--only NAME ...]

    processes  four strategies on two real workers, and their times to several accuracies
    nodes      1, 2, 4 and 8 virtual nodes of four workers, equal epochs, as Tables 1 to 3
    resnet     thirty steps of ResNet-50 on 64 images of 224 x 224 pixels, 16 a step; and a
               step of two workers beside that of one on all their images

FASHION is a folder with the files of Fashion-MNIST. Every piece is a `regatta` command, printed
before it starts; what is there is not run again.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from commands import once, regatta
from PIL import Image

from regatta.data.seeds import mixed_seed
from regatta.evaluating import Answer

HERE = Path(__file__).parent
LEVELS = "accuracy=0.8,0.85,0.88,0.9"
CLUSTER = HERE / "clusters" / "campos-small.toml"
AUGMENTED = ["--set", "augmentation.margin=2", "--set", "augmentation.flip=true"]
SHARED = "parameter-server:mode=mixed,placement=colocated"
# The paper's Tables 2 and 3: as many servers as it had for so many nodes of four workers. Beside
# them what it leaves to the future: rounds of all workers, with backups.
NODES = [
    "all-reduce@4", f"{SHARED},servers=1@8", f"{SHARED},servers=3@16", f"{SHARED},servers=7@32",
    "parameter-server:mode=sync,placement=colocated,servers=7,backup=2@32",
]  # fmt: skip
# Its Table 1: what servers cost four nodes of workers.
SERVERS = [
    "all-reduce@4", "parameter-server:mode=mixed,servers=3@16", f"{SHARED},servers=3@16",
    f"{SHARED},servers=1@16",
]  # fmt: skip


def processes(fashion: Path, out: Path) -> None:
    once(
        out / "processes", "race", "images", "--workers", "2", "--seeds", "1",
        "--strategies", "all-reduce averaging:period=16 parameter-server ring",
        "--minibatch", "64", "--set", f"train={fashion}", "--set", "stop.epochs=7",
        "--set", "evaluation.every=0.5", "--set", "schedule=hold", *AUGMENTED,
    )  # fmt: skip
    regatta("report", out / "processes", "--tta", "--markdown", "--level", LEVELS)


def nodes(fashion: Path, out: Path) -> None:
    common = [
        "race", "images", "--simulate", "--cluster", CLUSTER, "--minibatch", "32",
        "--set", f"train={fashion}", "--set", "network.width=8", "--set", "optimiser=rmsprop",
    ]  # fmt: skip
    once(
        out / "servers", *common, "--strategies", " ".join(SERVERS), "--seeds", "1",
        "--set", "stop.epochs=0.25",
    )  # fmt: skip
    once(
        out / "nodes", *common, "--strategies", " ".join(NODES), "--seeds", "3",
        "--set", "stop.epochs=2", "--set", "evaluation.every=0.25",
    )  # fmt: skip
    for race in ("servers", "nodes"):
        regatta("report", out / race, "--markdown")


def resnet(fashion: Path, out: Path) -> None:
    """Fashion-MNIST's images, enlarged: what is shown is that the large network learns."""
    folder = out / "large-images"
    if not folder.exists():
        enlarge(fashion, folder, 64)
    common = [
        "train", "images-paper", "--set", f"train={folder}", "--set", "evaluation.every=100",
        "--set", "checkpointing.every=100",
    ]  # fmt: skip
    alone = ["-s", "single", "--set", "minibatch=16"]
    # With a rate for thousands of steps the paper's optimiser gets nowhere in thirty.
    quick = ["--set", "optimiser=adam:lr=0.0003", "--set", "stop.epochs=7.5"]
    once(out / "resnet", *common, *quick, *alone)
    step = ["--set", "optimiser.lr=0.01", "--set", "stop.epochs=0.25", "--set", "statistics=frozen"]
    once(out / "resnet-one", *common, *step, *alone)
    once(out / "resnet-two", *common, *step, "-s", "all-reduce", "-n", "2", "--set", "minibatch=8")
    compare_steps(out / "resnet-one", out / "resnet-two")


def compare_steps(one: Path, two: Path) -> None:
    """How far two first steps lie apart, in multiples of the step: all weights, the worst layer."""
    ends = [Answer.open(run) for run in (one, two)]
    torch.manual_seed(mixed_seed(0))  # as every rank begins
    steps, differences = {}, {}
    for name, weights in ends[0].task.model().named_parameters():
        steps[name] = (ends[0].tensors[name] - weights.detach()).norm()
        differences[name] = (ends[1].tensors[name] - ends[0].tensors[name]).norm()
    whole = torch.stack(list(differences.values())).norm() / torch.stack([*steps.values()]).norm()
    worst = max(steps, key=lambda name: float(differences[name] / steps[name]))
    apart = differences[worst] / steps[worst]
    print(f"two workers' step is {whole:.1e} from one's, in {worst} {apart:.1e}")


def enlarge(fashion: Path, folder: Path, count: int) -> None:
    """So many of the first images as PNG files, a folder a class."""
    pixels, labels = (
        np.frombuffer(gzip.decompress((fashion / name).read_bytes())[head:], np.uint8)
        for name, head in (("train-images-idx3-ubyte.gz", 16), ("train-labels-idx1-ubyte.gz", 8))
    )
    for number, (image, label) in enumerate(
        zip(pixels.reshape(-1, 28, 28)[:count], labels[:count], strict=True)
    ):
        for part in ("train", "test"):
            home = folder / part / str(label)
            home.mkdir(parents=True, exist_ok=True)
            large = Image.fromarray(image).resize((256, 256), Image.Resampling.BILINEAR)
            large.save(home / f"{number}.png")


PIECES = {"processes": processes, "nodes": nodes, "resnet": resnet}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("fashion", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "out" / "images")
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES))
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        PIECES[name](given.fashion.resolve(), out)


if __name__ == "__main__":
    main()
