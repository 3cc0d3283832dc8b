"""WordPiece: ids and truncation as in transformers, and a reproducible vocabulary."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.wordpiece import SPECIAL, Encoded, WordPiece

TEXT = [
    "Der Feuerwehrmann rettet eine Katze.",
    "Ça coûte déjà très cher à l’été !",
    "The firemen rescued a cat; cats rescue nobody's 3 × 14 km.",
    "我 们 学习 attention",
    "Straße nach Ålesund [MASK] <s> ## a##b",
] * 10
VOCABULARY = ["[PAD]", "a", "b", "##b", "##c", "cafe", "Cafe", "café", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "!", "学"]
LETTERS = "abcABCéÉüßx!?’#[]MASKCLSEP 学们\t\u00a0\u200d\u0301İ"
texts = st.text(LETTERS, max_size=24)


@pytest.fixture(scope="module")
def trained() -> WordPiece:
    return WordPiece.train(iter(TEXT), 120)


def directory(folder: Path, **config: object) -> Path:
    """A model directory with a vocabulary of the test's own; without a tokenizer.json."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def theirs(folder: Path):  # type: ignore[no-untyped-def]
    transformers = pytest.importorskip("transformers")
    return transformers.BertTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=["saved", "lower", "cased", "accents", "unsaid", "both"])
def pair(request: pytest.FixtureRequest, trained: WordPiece, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Ours and theirs of one directory, of every kind."""
    folder = tmp_path_factory.mktemp("wordpiece") / request.param
    if request.param == "saved":
        trained.save(folder)
    elif request.param == "both":  # a tokenizer.json whose settings tokenizer_config.json overrides
        trained.save(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": False}))
    else:
        kinds = {"lower": True, "cased": False}
        config = {"do_lower_case": kinds[request.param]} if request.param in kinds else {}
        config |= {"strip_accents": False, "do_lower_case": True} if request.param == "accents" else {}
        directory(folder, **config)
    return WordPiece.load(folder), theirs(folder)


@settings(max_examples=30, deadline=None)
@given(texts, st.none() | texts, st.integers(4, 12))
def test_the_ids_of_transformers(pair, text: str, other: str | None, longest: int) -> None:  # type: ignore[no-untyped-def]
    ours, fast = pair
    other = other or None  # to transformers an empty text is no pair
    result = ours.encode(text, other, longest)
    expected = fast(text, other, truncation=True, max_length=longest)
    assert result == (expected["input_ids"], expected["token_type_ids"])
    assert result == ours.encode_all([text, ""], None if other is None else [other, ""], longest)[0]
    whole = ours.encode(text, other, 512)
    bare = ours.encode_bare([text] if other is None else [text, other])
    assert ours.join(*bare) == whole


def test_the_special_tokens_of_transformers(pair) -> None:  # type: ignore[no-untyped-def]
    ours, fast = pair
    assert [ours.pad, ours.unk, ours.cls, ours.sep, ours.mask] == [
        getattr(fast, f"{name}_token_id") for name in SPECIAL
    ]
    assert len(ours) == len(fast)


def test_lower_case_and_accents(tmp_path: Path) -> None:
    lower = WordPiece.load(directory(tmp_path / "lower", do_lower_case=True))
    cased = WordPiece.load(directory(tmp_path / "cased", do_lower_case=False))
    assert lower.pieces(lower.encode("Café").ids)[1:-1] == ["cafe"] and lower.lower
    assert cased.pieces(cased.encode("Café cafe").ids)[1:-1] == ["[UNK]", "cafe"] and not cased.lower
    named = {f"{key}_token": {"content": name} for key, name in SPECIAL.items()}
    assert WordPiece.load(directory(tmp_path / "objects", **named)).mask == VOCABULARY.index("[MASK]")


def test_pairs_are_cut_at_the_longer(trained: WordPiece) -> None:
    ids, segments = trained.encode("a a a a a a", "a a", 8)
    assert len(ids) == 8 and segments == [0] * 5 + [1] * 3
    ids, segments = trained.encode("a", "a a a a a a", 8)
    assert segments == [0] * 3 + [1] * 5
    assert trained.encode("") == ([trained.cls, trained.sep], [0, 0])
    for wrong, paired in ((2, None), (3, "b"), (-1, None)):
        with pytest.raises(ValueError, match=rf"wordpiece: longest \({wrong}\) must be more than {2 + bool(paired)}"):
            trained.encode("a", paired, wrong)
    with pytest.raises(ValueError, match=r"wordpiece: pairs \(1\) must be as many as texts \(2\)"):
        trained.encode_all(["a", "b"], ["c"])


def test_words_and_text(trained: WordPiece) -> None:
    ids, _ = trained.encode("Katzen rettet; ja", "RESCUE")
    numbers = trained.words([*ids, trained.pad])
    tokens = trained.pieces(ids)
    assert numbers[0] == numbers[-1] == -1 and sorted({n for n in numbers if n >= 0}) == [0, 1, 2, 3, 4]
    for index, token in enumerate(tokens):
        assert numbers[index] == -1 or token.startswith("##") == (numbers[index] == numbers[index - 1])
    assert trained.decode([*ids, trained.pad]) == "katzen rettet ; ja rescue"
    inside = next(id for id in range(len(trained)) if trained.pieces([id])[0].startswith("##"))
    assert trained.words([trained.cls, inside, inside]) == [-1, 0, 0]


def test_load_returns_the_vocabulary_that_was_saved(trained: WordPiece, tmp_path: Path) -> None:
    trained.encode("a b c d", longest=3)  # its limit is not kept in the file
    trained.save(tmp_path / "new")
    again = WordPiece.load(tmp_path / "new")
    assert again.encode_all(TEXT) == trained.encode_all(TEXT) and repr(again) == repr(trained)
    assert json.loads((tmp_path / "new/tokenizer.json").read_text())["truncation"] is None


def test_the_same_text_gives_the_same_vocabulary(trained: WordPiece) -> None:
    code = f"from regard.data import WordPiece; print(WordPiece.train({TEXT!r}, 120).pieces(range(120)))"
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message.strip() == str(trained.pieces(range(120)))
    assert len(trained) == 120 and trained.pieces(range(5)) == list(SPECIAL.values())
    assert "Ç" in "".join(WordPiece.train(TEXT, 120, lower=False).pieces(range(120)))


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wordpiece: size \(5\) must be more than 5"):
        WordPiece.train(TEXT, 5)
    with pytest.raises(ValueError, match="must hold some text; got none"):
        WordPiece.train([" ", ""], 50)
    with pytest.raises(ValueError, match=r"must hold tokenizer\.json or vocab\.txt; got neither"):
        WordPiece.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    with pytest.raises(
        ValueError, match=r"vocabulary \(4 tokens\) must have the special .*; got no \[SEP\], \[MASK\]\."
    ):
        WordPiece.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ValueError, match=r"tokenizer\.json\) must contain a valid tokenizer; got: "):
        WordPiece.load(tmp_path)
    from regard.data import Subwords

    Subwords.train(TEXT, 90).save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="must have a WordPiece model; got BPE"):
        WordPiece.load(tmp_path)


def test_encodings_have_named_fields(trained: WordPiece) -> None:
    assert isinstance(trained.encode("a"), Encoded) and trained.encode("a").segments == [0, 0, 0]
