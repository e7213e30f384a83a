"""Images from files of many kinds to batches: what is read, what is refused, what is drawn."""

from __future__ import annotations

import gzip
import io
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from regatta.data.images import packed as packing
from regatta.data.images.augment import Augmentation, augmented, middle
from regatta.data.images.decoding import decoded
from regatta.data.images.idx import read_idx
from regatta.data.images.packed import BadImages, open_packed, pack
from regatta.data.images.source import DIGITS, TEST, TRAIN, Shape, of_arrays, source_of
from regatta.data.problems import BadImage

SHAPE = Shape(size=16)


# -- files of arrays ------------------------------------------------------------------------


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder, train=20, test=8, zipped=False):
    """A set of MNIST's form; returns its images and labels."""
    draws = np.random.default_rng(1)
    made = {}
    for name, count in (("train", train), ("t10k", test)):
        images = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draws.integers(0, 10, count, dtype=np.uint8)
        made[name] = images, labels
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return made


@pytest.mark.parametrize("zipped", [False, True])
def test_mnists_files(tmp_path, zipped):
    made = mnist(tmp_path, zipped=zipped)
    for split, name in ((TRAIN, "train"), (TEST, "t10k")):
        source = source_of(str(tmp_path), split, SHAPE)
        images, labels = made[name]
        assert len(source) == len(images)
        assert np.array_equal(source.labels, labels)
        assert np.array_equal(source.load(3), images[3][None])
        assert source.classes == tuple("0123456789")


def test_fashions_classes_have_names(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    mnist(folder)
    assert source_of(str(folder), TRAIN, SHAPE).classes[0] == "T-shirt"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content[:-7], r"has 15673 bytes of the 15680 that it announces"),
        (lambda content: content[:5], "is no idx file"),
        (lambda content: b"", "is no idx file"),
        (lambda content: b"\0\0\x0d\x03" + content[4:], "numbers of type 0xd in 3 dimensions"),
        (lambda content: b"\0\0\x08\x01" + content[4:], "in 1 dimensions, not bytes in 3"),
    ],
)
def test_damaged_idx_files_are_refused_by_name(tmp_path, spoil, message):
    mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        source_of(str(tmp_path), TRAIN, SHAPE)
    assert str(path) in str(error.value)


def test_a_gzip_file_that_was_cut_short(tmp_path):
    mnist(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="copy it again from its source"):
        source_of(str(tmp_path), TRAIN, SHAPE)


def test_labels_of_another_set(tmp_path):
    mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    with pytest.raises(ValueError, match=r"20 images, but .* 3 labels"):
        source_of(str(tmp_path), TRAIN, SHAPE)


def test_a_missing_half_of_a_set(tmp_path):
    mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte is missing, with or without .gz"):
        source_of(str(tmp_path), TEST, SHAPE)


@given(
    content=st.binary(max_size=64), start=st.sampled_from([b"", b"\0\0\x08\x03", b"\0\0\x08\x01"])
)
@settings(max_examples=100, deadline=None)
def test_whatever_stands_in_an_idx_file(tmp_path_factory, content, start):
    path = tmp_path_factory.mktemp("idx") / "any-images-idx3-ubyte"
    path.write_bytes(start + content)
    try:
        found = read_idx(path, 3)
    except ValueError as error:
        told = str(error)
    else:
        assert found.ndim == 3
        return
    assert str(path) in told


def cifar(folder, binary, each=4):
    draws = np.random.default_rng(2)
    made = {}
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        pixels = draws.integers(0, 256, (each, 3072), dtype=np.uint8)
        labels = draws.integers(0, 10, each)
        made[name] = pixels, labels
        if binary:
            rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            content = {b"data": pixels, b"labels": labels.tolist(), b"filenames": [b"a"] * each}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return made


@pytest.mark.parametrize("inside", ["", "archive"])
@pytest.mark.parametrize("binary", [True, False])
def test_cifars_files(tmp_path, binary, inside):
    folder = tmp_path
    if inside:
        folder = tmp_path / f"cifar-10-batches-{'bin' if binary else 'py'}"
        folder.mkdir()
    made = cifar(folder, binary)
    train, test = (source_of(str(tmp_path), split, SHAPE) for split in (TRAIN, TEST))
    assert (len(train), len(test)) == (20, 4)
    pixels, labels = made["data_batch_2"]
    assert np.array_equal(train.load(5), pixels[1].reshape(3, 32, 32))
    assert train.labels[5] == labels[1]
    assert train.classes[3] == "cat"


def test_a_pickle_that_wants_to_run_something(tmp_path):
    cifar(tmp_path, binary=False)

    class Evil:
        def __reduce__(self):
            return (print, ("this must not be printed",))

    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(ValueError, match=r"data_batch_3 is no batch of CIFAR-10 \(it asks for"):
        source_of(str(tmp_path), TRAIN, SHAPE)


@pytest.mark.parametrize("content", [b"", b"x" * 100, pickle.dumps([1, 2]), pickle.dumps({})])
def test_other_pickles_are_refused(tmp_path, content):
    cifar(tmp_path, binary=False)
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_3 is no batch of CIFAR-10"):
        source_of(str(tmp_path), TRAIN, SHAPE)


def test_a_binary_batch_that_was_cut_short(tmp_path):
    cifar(tmp_path, binary=True)
    path = tmp_path / "data_batch_5.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="are no whole images of 3073"):
        source_of(str(tmp_path), TRAIN, SHAPE)


def test_bundled_digits():
    train, test = (source_of(DIGITS, split, SHAPE) for split in (TRAIN, TEST))
    assert (len(train), len(test)) == (1438, 359)
    assert train.load(0).shape == (1, 8, 8)
    assert max(train.load(n).max() for n in range(50)) == 255
    both = {train.load(n).tobytes() for n in range(len(train))}
    again = sum(test.load(n).tobytes() in both for n in range(len(test)))
    assert again <= 2  # nobody writes twice alike


def test_a_folder_without_images_says_what_could_be_there(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ValueError, match=r"holds no images: it needs MNIST's files .*a folder for"):
        source_of(str(tmp_path), TRAIN, SHAPE)
    with pytest.raises(ValueError, match="is no folder of images"):
        source_of(str(tmp_path / "nowhere"), TRAIN, SHAPE)


# -- files of single images -----------------------------------------------------------------


def encoded(image, form="PNG", **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def red(size=(40, 40), mode="RGB"):
    return Image.new("RGB", size, (255, 0, 0)).convert(mode)


@pytest.mark.parametrize(
    ("content", "unusual"),
    [
        (lambda: encoded(red()), ""),
        (lambda: encoded(red(), "JPEG"), ""),
        (lambda: encoded(red(), "JPEG", progressive=True), ""),
        (lambda: encoded(red(mode="CMYK"), "JPEG"), "CMYK"),
        (lambda: encoded(red(mode="P")), "palette"),
        (lambda: encoded(red(mode="RGBA")), "transparent"),
        (lambda: encoded(red((7, 300))), ""),
        (lambda: encoded(red((1, 1))), ""),
    ],
    ids=["png", "jpeg", "progressive", "cmyk", "palette", "alpha", "narrow", "one pixel"],
)
def test_colours_of_all_kinds(content, unusual):
    pixels, found = decoded(content(), SHAPE)
    assert found == unusual
    assert pixels.shape == (3, 16, 16)
    assert pixels.dtype == np.uint8
    assert pixels[0].min() > 230
    assert pixels[1:].max() < 60


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_shades_of_grey(mode, channels):
    value = {"I;16": 65535, "1": 1}.get(mode, 255)
    image = Image.new("L" if mode == "LA" else mode, (20, 20), value)
    pixels, _ = decoded(
        encoded(image.convert("LA") if mode == "LA" else image), Shape(16, channels)
    )
    assert pixels.shape == (channels, 16, 16)
    assert (pixels == 255).all()


def test_sixteen_bits_keep_their_proportions():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(256, 0)
    pixels, unusual = decoded(encoded(Image.fromarray(ramp)), Shape(256, 1))
    assert unusual == "more than 8 bits"
    assert np.abs(pixels[0, 0].astype(int) - np.arange(256)).max() <= 1


def test_what_is_transparent_lies_on_white():
    pixels, _ = decoded(encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0))), SHAPE)
    assert (pixels == 255).all()


def test_the_middle_square_is_taken():
    wide = Image.new("RGB", (60, 20), "black")
    wide.paste("white", (20, 0, 40, 20))
    pixels, _ = decoded(encoded(wide), Shape(20))
    assert (pixels == 255).all()


def test_photographs_are_turned_as_their_camera_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image = Image.new("RGB", (40, 40), "black")
    image.paste("white", (0, 0, 40, 20))  # the upper half
    pixels, _ = decoded(encoded(image, "JPEG", exif=exif, quality=95), SHAPE)
    assert pixels[0, :, -3:].min() > 200  # is the right one now
    assert pixels[0, :, :3].max() < 50


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (lambda: b"", "unreadable image"),
        (lambda: b"hello", "unreadable image"),
        (lambda: encoded(red(), "GIF"), "unreadable image"),
        (lambda: encoded(red(), "BMP"), "unreadable image"),
        (lambda: noisy("JPEG")[:-2000], "truncated image"),
        (lambda: noisy("PNG")[:-2000], "truncated image"),
        (lambda: noisy("PNG")[:30], "unreadable image"),
        (lambda: huge(), "huge image"),
    ],
    ids=["empty", "text", "gif", "bmp", "cut jpeg", "cut png", "head only", "huge"],
)
def test_what_cannot_be_used_is_named(content, kind):
    with pytest.raises(BadImage) as error:
        decoded(content(), SHAPE)
    assert error.value.kind == kind


def noisy(form):
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise), form)


def huge():
    """A PNG that says that it has 50,000 x 50,000 pixels."""
    content = bytearray(encoded(Image.new("1", (8, 8))))
    content[16:24] = struct.pack(">II", 50_000, 50_000)
    import zlib

    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


@given(
    place=st.integers(0, 10_000), value=st.integers(0, 255), form=st.sampled_from(["PNG", "JPEG"])
)
@settings(max_examples=150, deadline=None)
def test_one_wrong_byte_is_an_image_or_a_problem(place, value, form):
    content = bytearray(encoded(red(), form))
    content[place % len(content)] = value
    try:
        pixels, _ = decoded(bytes(content), SHAPE)
    except BadImage:
        return
    assert pixels.shape == (3, 16, 16)


def pictures(folder, parts=("train", "test"), each=3):
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            home = folder / part / name
            home.mkdir(parents=True)
            for n in range(each):
                colour = (60 * n + 40, 200 * number, 20)
                (home / f"{n}.png").write_bytes(encoded(Image.new("RGB", (30, 20), colour)))
    return folder


def test_a_folder_a_class(tmp_path):
    pictures(tmp_path)
    source = source_of(str(tmp_path), TRAIN, SHAPE)
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.names[3] == "train/dog/0.png"
    assert source.load(3)[1].min() == 200


def test_the_classes_are_those_of_training(tmp_path):
    pictures(tmp_path)
    (tmp_path / "test" / "cow").mkdir()
    (tmp_path / "test" / "cow" / "1.png").write_bytes(encoded(red()))
    source = source_of(str(tmp_path), TEST, SHAPE)
    assert len(source) == 6
    assert [str(problem) for problem in source.problems] == ["test/cow: unknown class"]


def test_a_test_part_must_be_there_if_a_training_part_is(tmp_path):
    pictures(tmp_path, parts=("train",))
    with pytest.raises(ValueError, match="has a folder train, but none of test, val"):
        source_of(str(tmp_path), TEST, SHAPE)


# -- packed -----------------------------------------------------------------------------------


def test_bad_images_are_left_out_and_named(tmp_path):
    home = pictures(tmp_path / "set")
    (home / "train" / "cat" / "1.png").write_bytes(b"nothing")
    (home / "train" / "dog" / "9.jpg").write_bytes(encoded(red(mode="CMYK"), "JPEG"))
    pack(source_of(str(home), TRAIN, SHAPE), tmp_path / "packed", jobs=2)
    found = open_packed(tmp_path / "packed")
    assert len(found) == 6
    assert found.labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert sorted(map(str, found.problems)) == [
        "train/cat/1.png: unreadable image (it is neither JPEG nor PNG)",
        "train/dog/9.jpg: unusual colours (CMYK)",
    ]
    assert len(found.problems.left_out) == 1


def test_nothing_usable_is_an_error(tmp_path):
    home = pictures(tmp_path / "set", each=1)
    for file in (home / "train").rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"no image can be used \(2 x unreadable image\)"):
        pack(source_of(str(home), TRAIN, SHAPE), tmp_path / "packed")
    with pytest.raises(BadImages, match="is missing"):
        open_packed(tmp_path / "packed")


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Of several shards."""
    monkeypatch.setattr(packing, "_SHARD_BYTES", 10 * 3 * 64)
    draws = np.random.default_rng(4)
    images = draws.integers(0, 256, (35, 3, 8, 8), dtype=np.uint8)
    labels = draws.integers(0, 4, 35)
    pack(of_arrays(images, labels, "abcd", "made"), tmp_path / "packed")
    return images, labels, tmp_path / "packed"


def test_what_is_packed_comes_out_again(packed):
    images, labels, folder = packed
    found = open_packed(folder)
    assert len(found.shards) == 4
    assert found.labels.tolist() == labels.tolist()
    numbers = np.array([34, 0, 9, 10, 11, 0, 29])
    assert np.array_equal(found.pixels(numbers).numpy(), images[numbers])
    scaled = images / 255
    np.testing.assert_allclose(found.mean, scaled.mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(found.deviation, scaled.std((0, 2, 3)), rtol=1e-9)


def test_the_same_images_are_the_same_bytes(packed, tmp_path):
    images, labels, folder = packed
    pack(of_arrays(images, labels, "abcd", "made"), tmp_path / "again", jobs=3)
    assert open_packed(folder).identity == open_packed(tmp_path / "again").identity


def everything(folder):
    found = open_packed(folder)
    return found.pixels(np.arange(len(found))), found.labels, found.problems


@pytest.mark.parametrize("spoil", [lambda c: c[: len(c) // 2], lambda c: c[:-1] + b"?", None])
@pytest.mark.parametrize("name", ["shard-00002.arrow", "images.json", "problems.jsonl"])
def test_damage_is_noticed(packed, name, spoil):
    path = packed[2] / name
    content = path.read_bytes() or b"there was nothing"
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(content))
    with pytest.raises(BadImages, match="made again from the images"):
        everything(packed[2])


def test_a_byte_in_the_middle_of_a_shard(packed):
    path = packed[2] / "shard-00001.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadImages, match=r"shard-00001.arrow has changed since it was written"):
        everything(packed[2])


# -- crops and flips ------------------------------------------------------------------------


def numbered(count=6, size=8):
    return torch.arange(count * size * size, dtype=torch.uint8).view(count, 1, size, size)


def test_a_crop_is_a_part_of_its_image():
    images = numbered(size=10)
    found = augmented(images, np.arange(6), 0, 8, Augmentation(), seed=0)
    for image, crop in zip(images, found, strict=True):
        windows = image.unfold(1, 8, 1).unfold(2, 8, 1)[0].reshape(-1, 8, 8)
        assert any(torch.equal(window, crop[0]) for window in windows)


def test_all_places_and_both_sides_occur():
    images = numbered(1).expand(2000, -1, -1, -1)
    found = augmented(images, np.arange(2000), 3, 8, Augmentation(1, flip=True), seed=0)
    assert len({crop.numpy().tobytes() for crop in found}) == 3 * 3 * 2


def test_nobody_else_has_a_say_in_a_crop():
    how = Augmentation(2, flip=True)
    images, numbers = numbered(), np.arange(6)
    together = augmented(images, numbers, 1, 8, how, seed=5)
    for number in numbers:
        alone = augmented(images[number : number + 1], np.array([number]), 1, 8, how, seed=5)
        assert torch.equal(alone[0], together[number])


def test_every_epoch_and_seed_draws_anew():
    how, images = Augmentation(3, flip=True), numbered(64)
    numbers = np.arange(64)
    drawn = [
        augmented(images, numbers, epoch, 8, how, seed)
        for epoch, seed in ((0, 0), (1, 0), (0, 1), (0, 0))
    ]
    assert torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_nothing_to_draw_changes_nothing():
    images = numbered()
    assert torch.equal(augmented(images, np.arange(6), 0, 8, Augmentation(), 0), images)


def test_the_middle():
    images = numbered(size=8)
    assert torch.equal(middle(images, 4), images[..., 2:6, 2:6])
    assert torch.equal(middle(images, 8), images)
