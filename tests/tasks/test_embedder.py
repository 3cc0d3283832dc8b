"""Embeddings: input order, independence of the batch size, and the check for mean pooling."""

import json
from pathlib import Path

import pytest
import torch

from regard.data import WordPiece
from regard.data.text_batches import packed_batches
from regard.models import Bert, BertConfig, SentenceEmbedder, save_bert
from regard.tasks.embedder import Embedder

TEXTS = ["a cat sees the dog", "the bird", "a", "the cat sees a bird and a dog and a cat", "dogs see cats", "the bird"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embed") / "model"
    torch.manual_seed(0)
    words = WordPiece.train(TEXTS * 3, 60)
    bert = Bert(BertConfig(vocabulary=len(words), width=24, heads=3, hidden=40, layers=2, positions=9))
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_bert(bert, path)
    words.save(path)
    return path


@pytest.mark.parametrize("tokens", [1, 12, 30, 2048])
def test_embeddings_do_not_depend_on_the_batches(folder: Path, tokens: int) -> None:
    embedder, counts = Embedder.load(folder), []
    embeddings = embedder.embed(TEXTS, tokens=tokens, done=counts.append)
    assert embeddings.shape == (6, 24) and sum(counts) == 6 and not embeddings.requires_grad
    for text, row in zip(TEXTS, embeddings, strict=True):
        ids = torch.tensor([embedder.vocabulary.encode(text, longest=9).ids])
        torch.testing.assert_close(row, embedder.model(ids)[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(6))
    assert embedder.embed([]).shape == (0, 24)


def test_batches_hold_similar_lengths() -> None:
    lengths = [3, 9, 3, 1, 20, 4]
    batches = list(packed_batches(lengths, 10))
    assert batches == [[4], [1], [5, 0, 2], [3]]
    assert list(packed_batches([], 10)) == []


def test_the_maximum_length_is_read_from_the_files(folder: Path, tmp_path: Path) -> None:
    assert Embedder.load(folder).longest == 9
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    assert Embedder.load(tmp_path).longest == 5
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 500}')
    assert Embedder.load(tmp_path).longest == 9
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}])
    )
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling/config.json"
    pooling.write_text('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}')
    assert Embedder.load(tmp_path).longest == 9
    pooling.write_text('{"pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true}')
    with pytest.raises(ValueError, match=r"pooling of .* must be the mean over tokens; got cls_token"):
        Embedder.load(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "x.Dense"}]')
    with pytest.raises(ValueError, match=r"must be Transformer, Pooling and Normalize; got Dense"):
        Embedder.load(tmp_path)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ValueError, match=r"modules\.json must be JSON"):
        Embedder.load(tmp_path)


def test_bad_input_is_named(folder: Path, tmp_path: Path) -> None:
    embedder = Embedder.load(folder)
    with pytest.raises(ValueError, match=r"embed: texts\[1\] \(' '\) must not be empty"):
        embedder.embed(["a", " "])
    with pytest.raises(ValueError, match=r"embed: tokens \(0\) must be at least 1"):
        embedder.embed(["a"], tokens=0)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    WordPiece.train([f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"] * 2, 120).save(tmp_path)
    with pytest.raises(ValueError, match=r"vocabulary of .* tokens\) must fit the embeddings of its model \(\d+\)"):
        Embedder.load(tmp_path)
    assert isinstance(embedder.model, SentenceEmbedder)
