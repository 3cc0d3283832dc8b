"""Parallel text is prepared once, and skipped pairs are reported."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from regard.training.recipes.train_translator import Parallel, prepare
from tests.tasks.conftest import pairs


@pytest.fixture
def config(tmp_path: Path) -> Parallel:
    files = []
    for name, count in (("train", 60), ("valid", 9)):
        lines = pairs(count, seed=len(name))
        if name == "train":
            lines[4] = ("", "rien")
        for side, ending in enumerate(("en", "fr")):
            path = tmp_path / f"{name}.{ending}.gz"
            path.write_bytes(gzip.compress("".join(f"{pair[side]}\n" for pair in lines).encode()))
            files.append(path)
    return Parallel(tuple(files[:2]), tuple(files[2:]), vocabulary=40, longest=40)


def test_data_are_prepared_once(config: Parallel, tmp_path: Path) -> None:
    messages: list[str] = []
    first = prepare(config, tmp_path / "run", messages.append)
    assert len(first.train) == 59 and len(first.valid) == len(first.texts) == 9
    assert any("1 empty (line 5)" in words for words in messages), messages
    again: list[str] = []
    second = prepare(config, tmp_path / "run", again.append)
    assert not again and second.train.lengths.tolist() == first.train.lengths.tolist()
    assert second.source.encode("the cat") == first.source.encode("the cat")
    train, valid = second.batches(50, seed=3)
    assert train.seed == 3 and train.shuffle and not valid.shuffle


def test_one_vocabulary_or_two(config: Parallel, tmp_path: Path) -> None:
    joint = prepare(config, tmp_path / "joint", lambda _: None)
    assert joint.source.encode("chat") == joint.target.encode("chat")
    apart = prepare(replace(config, joint=False), tmp_path / "apart", lambda _: None)
    assert 1 in apart.source.encode("voit") and 1 not in apart.target.encode("voit")  # no v in the source's words


def test_long_held_out_pairs_are_kept(config: Parallel, tmp_path: Path) -> None:
    short = prepare(replace(config, longest=2), tmp_path / "short", lambda _: None)
    assert len(short.train) < 59 and len(short.valid) == 9


def test_every_error_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.en"
    errors = Parallel((missing,), (), vocabulary=3, tokens=0, hold_out=1.0).errors()
    assert [error.split(" must ")[0] for error in errors] == [
        f"data: train ({missing})",
        "data: hold_out (1.0)",
        "data: vocabulary (3)",
        "data: tokens (0)",
    ]
