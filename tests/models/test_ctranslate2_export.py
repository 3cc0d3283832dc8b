"""CTranslate2 gives our greedy translations, token for token."""

import errno
from pathlib import Path

import ctranslate2
import pytest
import torch

from regard.core.files import Unwritable
from regard.data import Subwords
from regard.models import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from regard.models.ctranslate2_export import to_ctranslate2
from regard.tasks.translator import Translator
from tests.tasks.conftest import pairs

TEXTS = [source for source, _ in pairs(30, seed=3)]


def untrained(**changes) -> Translator:
    """Random weights: what it writes is nonsense, and long, and must be the same nonsense."""
    torch.manual_seed(0)
    words = Subwords.train((text for pair in pairs(200, seed=1) for text in pair), 60)
    sizes = {"width": 32, "heads": 4, "hidden": 48, "encoder_layers": 2, "decoder_layers": 3, "tie": "all"}
    model = Transformer(TransformerConfig(len(words), len(words), **{**sizes, **changes}))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # gains and biases that start as ones and zeros would hide an exchange
            torch.nn.init.normal_(parameter, 0.5, 0.5)
    return Translator(model.eval(), words, words)


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_first": False}, {"position": "learned"}, {"activation": "gelu"}, {"tie": "none"}],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()) or "plain",
)
def test_greedy_translations_are_the_same(tmp_path: Path, changes: dict) -> None:
    translator = untrained(**changes)
    ours = [result[0] for result in translator.translate(TEXTS, size=1, longest=25)]
    folder = to_ctranslate2(translator.model, translator.source, translator.target, tmp_path / "out")
    peer = ctranslate2.Translator(str(folder), intra_threads=1)
    tokens = [translator.source.pieces(translator.source.encode(text)) for text in TEXTS]
    theirs = peer.translate_batch(tokens, beam_size=1, max_decoding_length=25, disable_unk=False)
    assert [translator.target.pieces(one.written) for one in ours] == [one.hypotheses[0] for one in theirs]
    assert max(len(one.written) for one in ours) > 3
    assert (tmp_path / "out/source.json").exists() and (tmp_path / "out/target.json").exists()


def test_unsupported_models_are_refused_by_name(tmp_path: Path) -> None:
    words = untrained().source
    with pytest.raises(ValueError, match=r"similarity \(cosine\) must be scaled_dot"):
        to_ctranslate2(untrained(similarity="cosine").model, words, words, tmp_path)
    with pytest.raises(ValueError, match=r"position \(rotary\) must be sinusoidal or learned"):
        to_ctranslate2(untrained(position="rotary").model, words, words, tmp_path)
    recurrent = Seq2Seq(Seq2SeqConfig(len(words), len(words), width=8, hidden=8, encoder_hidden=8))
    with pytest.raises(ValueError, match=r"model \(Seq2Seq\) must be a Transformer"):
        to_ctranslate2(recurrent, words, words, tmp_path)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.json").write_text("kept")
    with pytest.raises(ValueError, match=r"export: folder \(.*\) must not hold a run; .*Choose another --out"):
        untrained().export(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "metrics.jsonl"]
    assert (tmp_path / "config.json").read_text() == "kept"


def test_a_full_disk_leaves_no_partial_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    translator, folder = untrained(), tmp_path / "out"
    monkeypatch.setattr("ctranslate2.specs.model_spec.ModelSpec._serialize", full)
    with pytest.raises(Unwritable, match=r"/out must be writable; got No space left on device\. Free some space"):
        translator.export(folder)
    assert not folder.exists()
    monkeypatch.undo()
    before = (translator.export(folder) / "model.bin").read_bytes()
    monkeypatch.setattr("ctranslate2.specs.model_spec.ModelSpec._serialize", full)
    with pytest.raises(Unwritable):
        translator.export(folder)
    assert (folder / "model.bin").read_bytes() == before
    assert len(list(folder.glob("*.bin"))) == 1 and not list(folder.glob(".*"))
    monkeypatch.undo()
    translator.export(folder)  # an earlier export is replaced
