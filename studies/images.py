"""Campos et al. again: strategies on Fashion-MNIST, nodes of four workers, and ResNet-50.

    python studies/images.py FASHION [--out studies/out] [--only NAME ...]

    processes  four strategies on two real workers, to 90 % of FASHION's test images
    nodes      1, 2, 4 and 8 virtual nodes of four workers, equal epochs, as Tables 1 to 3
    resnet     thirty steps of ResNet-50 on 64 images of 224 x 224 pixels, 16 a step

FASHION is a folder with the files of Fashion-MNIST. Every piece is a `regatta` command, printed
before it starts; what is there is not run again.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from commands import once
from PIL import Image

HERE = Path(__file__).parent
CLUSTER = HERE / "clusters" / "campos-small.toml"
AUGMENTED = ["--set", "augmentation.margin=2", "--set", "augmentation.flip=true"]
# The paper's configurations: as many servers as it had for so many nodes of four workers.
SHARED = "parameter-server:mode=mixed,placement=colocated"
NODES = [
    "all-reduce@4", f"{SHARED},servers=1@8", f"{SHARED},servers=3@16", f"{SHARED},servers=7@32",
]  # fmt: skip
OTHERS = ["parameter-server:mode=mixed,servers=3@16", f"{SHARED},servers=1@16"]
FUTURE = ["parameter-server:mode=sync,placement=colocated,servers=7,backup=2@32"]


def processes(fashion: Path, out: Path) -> None:
    once(
        out / "processes", "race", "images", "--workers", "2", "--seeds", "1", "--target", "0.9",
        "--strategies", "all-reduce averaging:period=16 parameter-server ring",
        "--minibatch", "64", "--set", f"train={fashion}", "--set", "stop.epochs=8",
        "--set", "evaluation.every=0.5", "--set", "schedule=hold", *AUGMENTED,
    )  # fmt: skip


def nodes(fashion: Path, out: Path) -> None:
    """Beside the paper's configurations what it leaves to the future: rounds, with backups."""
    once(
        out / "nodes", "race", "images", "--simulate", "--cluster", CLUSTER, "--seeds", "3",
        "--strategies", " ".join([*NODES, *OTHERS, *FUTURE]), "--minibatch", "32",
        "--set", f"train={fashion}", "--set", "network.width=8", "--set", "stop.epochs=4",
        "--set", "evaluation.every=0.25", "--set", "stop.target=none",
    )  # fmt: skip


def resnet(fashion: Path, out: Path) -> None:
    """Fashion-MNIST's images, enlarged: what is shown is that the large network learns."""
    folder = out / "large-images"
    if not folder.exists():
        enlarge(fashion, folder, 64)
    common = [
        "train", "images-paper", "--set", f"train={folder}", "--set", "evaluation.every=100",
        "--set", "checkpointing.every=100", "--set", "optimiser.lr=0.01",
    ]  # fmt: skip
    once(
        out / "resnet", *common, "-s", "single", "--minibatch", "16", "--set", "stop.epochs=7.5",
    )  # fmt: skip


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
