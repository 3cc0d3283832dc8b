"""Images from arrays, idx files and folders; their batches."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data import image_files
from regard.data.image_batches import ImageBatches, Images, Normal, Shape, split
from regard.data.image_files import Folder, decode, idx_bytes, parse_idx, read_idx, read_images

random = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return random.integers(0, 256, shape, np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, colour and grey, of several sizes and forms."""
    for name in ("dogs/deep", "cats", "empty", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    Image.fromarray(pixels(12, 8, 3)).save(tmp_path / "cats/b.png")
    Image.fromarray(pixels(12, 8)).save(tmp_path / "cats/a.png")
    Image.fromarray(pixels(20, 30, 3)).save(tmp_path / "dogs/deep/c.JPG", "jpeg")
    (tmp_path / "dogs/notes.txt").write_text("no image, and not taken for one")
    return tmp_path


def test_idx_files_plain_and_gzip(tmp_path: Path) -> None:
    for array in (pixels(7, 3, 5), pixels(11), pixels(2, 3, 5, 3), pixels(0, 4, 4)):
        (tmp_path / "plain").write_bytes(idx_bytes(array))
        (tmp_path / "packed").write_bytes(gzip.compress(idx_bytes(array)))
        assert np.array_equal(read_idx(tmp_path / "plain"), array)
        assert np.array_equal(read_idx(tmp_path / "packed"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must begin with 00 00 08 and a number of dimensions, an idx file of bytes; got nothing."),
        (b"\x89PNG....", "got 89 50 4e 47."),
        (b"\0\0\x0d\1\0\0\0\0", "got 00 00 0d 01."),
        (b"\0\0\x08\2\0\0\0", "must have unknown bytes"),
        (idx_bytes(pixels(7, 3))[:-1], "must have 7×3 bytes after its 12; got 20. Fetch it again."),
        (idx_bytes(pixels(7, 3)) + b"x", "got 22."),
        (gzip.compress(idx_bytes(pixels(7, 3)), mtime=0)[:-9], "got damaged gzip"),
    ],
)
def test_files_that_are_no_idx(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_idx(content, "x.idx")
    assert "x.idx" in str(caught.value)


def test_a_folder_of_classes(folder: Path) -> None:
    images = Folder(folder)
    assert images.classes == ["cats", "dogs"] and images.labels.tolist() == [0, 0, 1]
    assert images.shape == Shape(12, 8, 1)  # as the first, cats/a.png
    assert [file.name for file in images.files] == ["a.png", "b.png", "c.JPG"]
    assert images.take([2, 0]).shape == (2, 1, 12, 8) and images.take([]).shape == (0, 1, 12, 8)
    expected = np.asarray(Image.open(folder / "cats/a.png"))
    assert np.array_equal(images.take([0])[0, 0].numpy(), expected)
    assert Folder(folder, Shape(6, 6, 3)).take([1, 2]).shape == (2, 3, 6, 6)
    assert Folder(folder, Shape(channels=3)).shape == Shape(12, 8, 3)


def test_a_class_that_was_not_learned(folder: Path) -> None:
    assert Folder(folder, classes=["ants", "cats", "dogs"]).labels.tolist() == [1, 1, 2]
    with pytest.raises(ValueError, match=r"must be those that were learned \(ants, cats\); got dogs too"):
        Folder(folder, classes=["ants", "cats"])


def test_a_file_that_is_no_image_is_named(folder: Path) -> None:
    bad = folder / "dogs/d.png"
    bad.write_text("this is no image")
    with pytest.raises(ValueError, match=re.escape(f"got 1 of 4 that are not: {bad}.")):
        Folder(folder)
    with pytest.raises(ValueError, match=re.escape(f"images: file ({bad}) must be an image")):
        decode(bad, Shape(4, 4, 1))
    Image.fromarray(pixels(40, 40, 3)).save(bad)
    bad.write_bytes(bad.read_bytes()[:2000])
    images = Folder(folder)  # its beginning is that of an image
    with pytest.raises(ValueError, match=re.escape(f"images: file ({bad}) must be a complete image")):
        images.take([2])
    with pytest.raises(ValueError, match=r"images: file \(.*nowhere.png\) must exist; got no such file"):
        decode(folder / "nowhere.png", Shape(4, 4, 1))


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must hold a folder of images .* for each class; got none\. Pass the folder"):
        Folder(tmp_path)
    Image.fromarray(pixels(4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"for each class; got images in the folder itself\. Pass the folder that has"):
        Folder(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"images: path ({tmp_path / 'x'}) must be a folder")):
        read_images(tmp_path / "x")


def test_decoding() -> None:
    grey, colour = pixels(6, 4), pixels(6, 4, 3)
    assert np.array_equal(decode(grey, Shape(6, 4, 1))[0].numpy(), grey)
    assert np.array_equal(decode(grey, Shape(6, 4, 3)).numpy(), np.broadcast_to(grey, (3, 6, 4)))  # grey → three alike
    assert np.array_equal(decode(colour, Shape(6, 4, 3)).permute(1, 2, 0).numpy(), colour)
    assert decode(Image.fromarray(colour), Shape(3, 5, 1)).shape == (1, 3, 5)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    assert np.array_equal(decode(deep, Shape(6, 4, 1))[0].numpy(), grey)  # 16 bits are scaled, not cut off
    clear = np.dstack((colour, np.full((6, 4), 255, np.uint8)))
    assert np.array_equal(decode(Image.fromarray(clear), Shape(6, 4, 3)).permute(1, 2, 0).numpy(), colour)
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 200
    assert (decode(wide, Shape(4, 4, 1)) == 200).all()  # cut around the centre, not squeezed
    with pytest.raises(ValueError, match=r"image \(ndarray float64 \(4, 4\)\) must be a file"):
        decode(np.zeros((4, 4)), Shape(4, 4, 1))


def test_a_picture_taken_upright(tmp_path: Path) -> None:
    sideways = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 2, 0).repeat(8, 0).repeat(8, 1))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter when shown
    sideways.save(tmp_path / "x.png", exif=exif)
    shown = decode(tmp_path / "x.png", Shape(16, 16, 1))[0]
    assert (shown[:8] == 0).all() and (shown[8:] == 255).all()


def test_parts_of_data(folder: Path, tmp_path: Path) -> None:
    assert len(read_images(folder)) == 3 and read_images(folder, "test") is None  # type: ignore[arg-type]
    both = tmp_path / "both"
    for part in ("train", "val"):
        (both / part).mkdir(parents=True)
        (folder / "cats").rename(both / part / "cats") if part == "train" else (both / part / "cats").mkdir()
    Image.fromarray(pixels(5, 5)).save(both / "val/cats/x.png")
    train = read_images(both)
    test = read_images(both, "test", shape=train.shape, classes=train.classes)  # type: ignore[union-attr]
    assert len(train) == 2 and len(test) == 1 and test.shape == train.shape  # type: ignore[arg-type, union-attr]
    idx = tmp_path / "idx"
    idx.mkdir()
    (idx / "train-images-idx3-ubyte").write_bytes(idx_bytes(pixels(4, 6, 6)))
    with pytest.raises(ValueError, match="must have a file of labels beside it"):
        read_images(idx)
    (idx / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.array([0, 2, 1, 0], np.uint8))))
    assert read_images(idx).classes == ["0", "1", "2"] and read_images(idx, "test") is None  # type: ignore[union-attr]
    (idx / "classes.txt").write_text("a\nb\nc\n")
    result = read_images(idx, shape=Shape(3, 3, 3))
    assert result is not None and result.classes == list("abc") and result.take([1, 3]).shape == (2, 3, 3, 3)


def test_archives_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=pixels(3, 4, 4), labels=np.array([[1], [0], [1]]))
    assert repr(read_images(path)) == "Images(3 of 4×4, grey, 2 classes)" and read_images(path, "test") is None
    np.savez(path, x_train=pixels(3, 4, 4, 3), y_train=np.arange(3), x_test=pixels(2, 4, 4, 3), y_test=np.arange(2))
    assert len(read_images(path, "test")) == 2  # type: ignore[arg-type]
    np.savez(path, other=pixels(3))
    with pytest.raises(ValueError, match="must hold images and labels, or x_train and y_train; got other"):
        read_images(path)
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must be an \.npz of arrays"):
        read_images(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 4, 4)), [0, 1]), "pixels (float64 (2, 4, 4, 1)) must be bytes"),
        ((np.zeros((2, 4, 4, 2), np.uint8), [0, 1]), "with 1 or 3 channels"),
        ((np.zeros((2, 4, 4), np.uint8), [0]), "labels (1) must be one per image (2)"),
        ((np.zeros((2, 4, 4), np.uint8), [0.5, 1.0]), "labels (float64 (2,)) must be integers"),
        ((np.zeros((2, 4, 4), np.uint8), [0, 2], ["a", "b"]), "labels (0 … 2) must lie in 0 … 1, the classes"),
        ((np.zeros((0, 4, 4), np.uint8), np.zeros(0, int)), "must be integers, one per image"),
    ],
)
def test_arrays_that_do_not_fit(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Images(*arguments)


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    images = Images(pixels(103, 3, 5), np.arange(103) % 7)
    batches = ImageBatches(images, 10, seed=3)
    assert len(batches) == 11
    for epoch in (0, 5):
        all_ = list(batches.epoch(epoch))
        indices = torch.cat([batch.indices for batch in all_])
        assert sorted(indices.tolist()) == list(range(103)) and indices.tolist() != sorted(indices.tolist())
        assert torch.equal(torch.cat([batch.labels for batch in all_]), images.labels[indices])
        assert torch.equal(all_[4].images, images.take(all_[4].indices)) and all_[4].images.dtype == torch.uint8
        rest = list(ImageBatches(images, 10, seed=3).epoch(epoch, start=7))
        assert [b.indices.tolist() for b in rest] == [b.indices.tolist() for b in all_[7:]]
    assert batches.order(0).tolist() != batches.order(1).tolist() != ImageBatches(images, 10).order(1).tolist()
    shares = [list(batches.epoch(0, rank=rank, world=4)) for rank in range(4)]
    for number, batch in enumerate(batches.epoch(0)):
        joined = torch.cat([share[number].indices for share in shares])
        assert sorted(joined.tolist()) == sorted(batch.indices.tolist())
    assert len(shares[3][10]) == 0 and shares[3][10].images.shape == (0, 1, 3, 5)
    assert ImageBatches(images, 10, shuffle=False).order(4).tolist() == list(range(103))


def test_batches_that_do_not_fit() -> None:
    images = Images(pixels(3, 3, 5), np.arange(3))
    for arguments, message in (((0,), r"size \(0\) must be at least 1"),):
        with pytest.raises(ValueError, match=message):
            ImageBatches(images, *arguments)
    with pytest.raises(ValueError, match=r"start \(3\) must lie in 0 … 2"):
        ImageBatches(images, 2).epoch(0, start=3)
    with pytest.raises(ValueError, match=r"rank \(2\) must lie in"):
        ImageBatches(images, 2).epoch(0, rank=2, world=2)


def test_scale() -> None:
    images = Images(pixels(50, 7, 9, 3), np.zeros(50, int))
    normal = Normal.of(images)
    scaled = normal(images.take(np.arange(50)))
    assert scaled.dtype == torch.float32
    assert torch.allclose(scaled.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(scaled.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    black = Images(np.zeros((2, 3, 3), np.uint8), [0, 1])
    assert Normal.of(black)(black.take([0])).isfinite().all()


def test_holding_out() -> None:
    images = Images(pixels(40, 3, 3), np.arange(40) % 3)
    train, held = split(images, 0.25, seed=1)
    assert (len(train), len(held)) == (30, 10) and held.classes == images.classes
    both = torch.cat((train.take(np.arange(30)), held.take(np.arange(10)))).flatten(1).tolist()
    assert sorted(both) == sorted(images.take(np.arange(40)).flatten(1).tolist())
    assert torch.equal(split(images, 0.25, seed=1)[1].labels, held.labels)
    with pytest.raises(ValueError, match=r"share \(0.001\) of 40 must leave some"):
        split(images, 0.001)


def test_only_so_much_is_kept_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "MAX_CACHED_BYTES", 3 * 12 * 8 - 1)
    images = Folder(folder)
    assert images._cache is None and torch.equal(images.take([1]), Folder(folder).take([1]))
