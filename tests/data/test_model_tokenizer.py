"""Tokenizers of model directories: the same ids as transformers, special tokens, incomplete characters."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from regard.data import ModelTokenizer, Vocabulary

TEXTS = ["a low lower lowest", "a new newer newest 2024", "ein großer Hund 低", "\tx = y\n\n"] * 5
SAMPLES = [*TEXTS[:4], "", " ", "  two  spaces ", "it's <|end|> 12", "👍🏽 مرحبا", "<|user|>\nhello"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def saved(folder: Path, **config: object) -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", tokenizer.token_to_id("<|user|>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config))


def test_ids_and_texts_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    saved(tmp_path, eos_token="<|end|>", bos_token="<|user|>")
    tokenizer = ModelTokenizer.load(tmp_path)
    tokenizer.save(tmp_path / "again")
    assert isinstance(tokenizer, Vocabulary)
    for folder in (tmp_path, tmp_path / "again"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert len(theirs) == len(tokenizer) and theirs.eos_token_id in tokenizer.end_ids
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            assert ids == theirs.encode(text, add_special_tokens=False)
            assert tokenizer.encode(text, special=True) == theirs.encode(text)
            assert tokenizer.decode(ids) == theirs.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
    assert tokenizer.encode_all(SAMPLES) == [tokenizer.encode(text) for text in SAMPLES]
    assert tokenizer.encode_all(SAMPLES, special=True) == [tokenizer.encode(text, special=True) for text in SAMPLES]


def test_special_tokens_and_template(tmp_path: Path) -> None:
    saved(tmp_path, eos_token={"content": "<|end|>"}, bos_token=None, chat_template="{{ messages }}")
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"} and tokenizer.special_ids == {"eos": 0}
    assert (tokenizer.begin_id, tokenizer.end_ids, tokenizer.pad_id) == (None, {0}, None)
    assert tokenizer.chat_template == "{{ messages }}"
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 5, "pad_token_id": 0}))
    tokenizer = ModelTokenizer.load(tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_ids, tokenizer.pad_id) == (1, {0, 5}, 0)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1, 99999, -1, 2**70]}))
    (tmp_path / "chat_template.jinja").write_text("{{ from_file }}")
    tokenizer = ModelTokenizer.load(tmp_path)
    assert tokenizer.end_ids == {0, 1} and tokenizer.chat_template == "{{ from_file }}"
    tokenizer.save(tmp_path / "again")
    again = ModelTokenizer.load(tmp_path / "again")
    assert (again.begin_id, again.end_ids, again.pad_id) == (1, {0, 1}, 0)
    assert (again.chat_template, again.special_tokens) == (tokenizer.chat_template, tokenizer.special_tokens)


def test_a_list_of_templates_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "1"}, {"name": "default", "template": "2"}]
    saved(tmp_path, chat_template=named)
    assert ModelTokenizer.load(tmp_path).chat_template == "2"


def test_incomplete_characters_are_held_back() -> None:
    tokenizer = ModelTokenizer(byte_level(), {"eos": "<|end|>"})
    text = "a 你👍ü!"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    shown = ""
    for count in range(1, len(ids) + 1):
        partial = tokenizer.decode(ids[:count], partial=True)
        assert partial.startswith(shown) and text.startswith(partial)
        shown = partial
    assert shown == text and tokenizer.decode(ids[:3]) == "a \ufffd"


def test_words_and_pieces() -> None:
    tokenizer = ModelTokenizer(byte_level(), {"eos": "<|end|>"})
    ids = tokenizer.encode("a lower\n你<|end|>")
    assert tokenizer.pieces(ids) == ["a", " lower", "\n", "<0xE4>", "<0xBD>", "<0xA0>", "<|end|>"]
    assert tokenizer.words(ids) == [0, 1, 2, 2, 2, 2, -1]


def test_subwords_with_metaspace(tmp_path: Path) -> None:
    """The tokenizers of Llama 2 write ▁ for a space."""
    tokenizer = Tokenizer(models.BPE({"▁": 0, "a": 1, "b": 2, "▁a": 3, "<s>": 4}, [("▁", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    ours = ModelTokenizer(tokenizer, {"bos": "<s>"})
    ids = ours.encode("ab b<s>")
    assert ours.pieces(ids) == ["▁a", "b", "▁", "b", "<s>"] and ours.words(ids) == [0, 0, 1, 1, -1]
    assert ours.decode(ids) == "ab b"


def test_files_of_gpt2(tmp_path: Path) -> None:
    model = json.loads(byte_level().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"] | {"<|endoftext|>": 300}))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    tokenizer = ModelTokenizer.load(tmp_path)
    whole = ModelTokenizer(byte_level())
    assert len(tokenizer) == 301
    for text in TEXTS[:4]:
        assert tokenizer.encode(text) == whole.encode(text)
    assert tokenizer.encode("a<|endoftext|>") == [*whole.encode("a"), 300] and tokenizer.words([300]) == [-1]


def test_ids_need_not_be_consecutive() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<new>")])
    size = tokenizer.get_vocab_size()
    ours = ModelTokenizer(tokenizer)
    assert len(ours) == size and ours.pieces([size - 1]) == ["<new>"]


def test_unsupported_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: folder \(.*\) must hold tokenizer\.json, or vocab\.json"):
        ModelTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Other"}}')
    with pytest.raises(ValueError, match=r"vocabulary: .*tokenizer\.json must be a vocabulary in JSON"):
        ModelTokenizer.load(tmp_path)
    tokenizer = ModelTokenizer(byte_level())
    with pytest.raises(ValueError, match=rf"ids\[1\] \({len(tokenizer)}\) must lie in 0 … {len(tokenizer) - 1}"):
        tokenizer.decode([0, len(tokenizer)])
    with pytest.raises(ValueError, match=r"tokenizer: special_tokens \(end\) must be among bos, eos, pad\."):
        ModelTokenizer(byte_level(), {"end": "<|end|>"})
