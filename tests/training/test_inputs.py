"""A run never uses other data, settings or vocabularies than those it was started with."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import _runs, damage
from regard.commands.main import main
from regard.core.tensor_files import read_tensors_and_metadata, tensor_bytes
from regard.training import Damaged, checkpoint, logbook, read_weights

RECIPES = tuple(_runs.RECIPES)
INPUTS = {
    "translate": "train.tsv",
    "classify": "labelled.tsv",
    "pretrain": "plain.txt",
    "language": "plain.txt",
    "images": "squares",
}
SETTINGS = {"translate": "data", "language": "text"}
PREPARED = {
    "translate": "target.json",
    "classify": "labels.json",
    "pretrain": "tokenizer.json",
    "language": "vocabulary.json",
    "images": "images.json",
}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logbook, "draw", lambda records, goal: b"")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the inputs and a finished run of each recipe."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(logbook, "draw", lambda records, goal: b"")
        _runs.write_inputs(Path())
        for recipe in RECIPES:
            assert main(_runs.command(recipe, Path(recipe))) == 0
    return folder


def copied(trained: Path, recipe: str) -> Path:
    shutil.copytree(trained, Path(), dirs_exist_ok=True)
    return Path(recipe)


def change(path: Path) -> None:
    """Change the contents of a file, but not its size."""
    target = path / "train-images-idx3-ubyte" if path.is_dir() else path
    data = bytearray(target.read_bytes())
    index = len(data) - 8 if path.is_dir() else data.rindex(b"a", 0, -9)
    data[index] ^= 3
    target.write_bytes(data)


def resume(recipe: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["train", "classify" if recipe == "images" else recipe, recipe, "--steps", "8"])
    return status, capsys.readouterr().err


def contents(run: Path) -> dict[str, bytes]:
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in damage.IGNORED]
    return {str(path.relative_to(run)): path.read_bytes() for path in files if "metrics" not in path.name}


def test_after_a_failed_start_other_files_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The first command fails after it has trained a vocabulary. The second must not use that vocabulary."""
    _runs.write_inputs(Path())
    Path("bad.tsv").write_text("no tab here\n")
    Path("other.tsv").write_text("".join(f"uno {n} dos\tein {n} zwei\n" for n in range(30)))
    first = [word.replace("valid.tsv", "bad.tsv") for word in _runs.command("translate", Path("run"))]
    assert main(first) == 1 and "bad.tsv must have exactly one tab" in capsys.readouterr().err
    for folder in ("run", "fresh"):
        assert main([w.replace("train.tsv", "other.tsv") for w in _runs.command("translate", Path(folder))]) == 0
    for name in ("source.json", "target.json", "data/train/source.ids", "data/valid/target.ids", "data/prepared.json"):
        assert Path("run", name).read_bytes() == Path("fresh", name).read_bytes(), name
    assert _runs.differing(_runs.tensors(Path("run"), 6), _runs.tensors(Path("fresh"), 6)) == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_input_rewritten_in_place_is_refused_by_name(
    trained: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(trained, recipe)
    before = contents(run)
    change(Path(INPUTS[recipe]))
    for _ in range(2):
        status, error = resume(recipe, capsys)
        assert status == 1, error
        assert f"data: {INPUTS[recipe]} must be unchanged since the run in {recipe} was started" in error
        assert "Restore it to resume the run, or train on the new contents in another folder." in error
    assert contents(run) == before
    shutil.copytree(trained / "squares", "squares", dirs_exist_ok=True)
    shutil.copy(trained / INPUTS[recipe], ".") if recipe != "images" else None
    assert resume(recipe, capsys)[0] == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_prepared_files_that_changed_are_refused_by_name(
    trained: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(trained, recipe)
    names = [PREPARED[recipe], *(["data/train/source.ids"] if recipe != "images" else [])]
    for name in names:
        data = bytearray((run / name).read_bytes())
        data[len(data) // 2] ^= 1
        (run / name).write_bytes(data)
        status, error = resume(recipe, capsys)
        assert status == 1 and f"{run / name} must be unchanged since it was prepared; got other contents" in error
        (run / "data/prepared.json").rename("record")  # the states have digests of them, too
        status, error = resume(recipe, capsys)
        assert status == 1 and Path(name).name in error, error
        Path("record").rename(run / "data/prepared.json")
        data[len(data) // 2] ^= 1
        (run / name).write_bytes(data)
    assert resume(recipe, capsys)[0] == 0


def edited(run: Path, digest: bool, **changes: object) -> None:
    """Write a config.json with other model settings, with its old digest or without any."""
    config = json.loads((run / "config.json").read_text())
    config["model"].update(changes)
    if not digest:
        del config["sha256"]
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("digest", [True, False], ids=["digest", "without digest"])
@pytest.mark.parametrize("changes", [{"heads": 4}, {"position": "rotary"}, {"similarity": "cosine"}, {"dropout": 0.2}])
def test_edited_settings_are_refused(
    trained: Path, changes: dict[str, object], digest: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(trained, "translate")
    edited(run, digest, **changes)
    assert main(["translate", str(run), "the cat"]) == 1
    error = capsys.readouterr().err
    if digest:
        assert f"{run}/config.json must match the digest written into it; got another" in error
    else:
        assert (
            f"must be those that {run}/model.safetensors was trained with; these differ: config.json (changed)" in error
        )
    status, error = resume("translate", capsys)
    assert status == 1 and "config.json" in error


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_beside_other_files_are_refused(trained: Path, recipe: str) -> None:
    run = copied(trained, recipe)
    name = PREPARED[recipe]
    text = (run / name).read_text()
    if recipe in ("translate", "pretrain", "language"):  # swap two ids
        changed = text.replace(": 8,", ": X,").replace(": 9,", ": 8,").replace(": X,", ": 9,")
    else:
        changed = text.replace("0", "1", 1) if recipe == "images" else text.replace("bad", "bed")
    assert changed != text
    (run / name).write_text(changed)
    with pytest.raises(
        ValueError, match=rf"model\.safetensors was trained with; these differ: {name} \(changed\)\. Rest"
    ):
        damage.answers(recipe, run)
    (run / name).unlink()
    with pytest.raises(ValueError, match=rf"these differ: {name} \(missing\)"):
        damage.answers(recipe, run)


def test_a_run_can_be_used_without_its_data(trained: Path) -> None:
    for recipe in RECIPES:
        before = damage.answers(recipe, copied(trained, recipe))
        shutil.rmtree(Path(recipe, "data"))
        assert damage.answers(recipe, Path(recipe)) == before


def test_a_state_with_tensors_of_another_step_is_damaged(trained: Path) -> None:
    run = copied(trained, "translate")
    shutil.copy(run / "state-00000004" / checkpoint.TENSORS, run / "state-00000006")
    with pytest.raises(Damaged, match=r"tensors\.safetensors must belong to step 6; got tensors of step 4"):
        checkpoint.load(run / "state-00000006")


def test_the_digest_covers_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = tensor_bytes({"a": torch.ones(2)}, {"fingerprints": '{"config.json": "12"}'})
    path.write_bytes(data)
    assert read_tensors_and_metadata(path)[1]["fingerprints"] == '{"config.json": "12"}'
    path.write_bytes(data.replace(b"12", b"13"))
    with pytest.raises(Damaged, match="must have the digest written into it"):
        read_tensors_and_metadata(path)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of a translator written before there were digests in config.json, weights and states.

    Made by `regard train translate run --train pairs.tsv --valid pairs.tsv --vocabulary 30 --width 8 --heads 2 --hidden
    16 --encoder-layers 1 --decoder-layers 1 --steps 12 --epochs 100 --warmup 2 --tokens 40 --save-every 6
    --evaluate-every 6 --log-every 6` with the commit b0db103.
    """
    with tarfile.open(Path(__file__).parent / "run_before_digests.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Path("run")


def test_a_run_of_an_earlier_version_loads_and_resumes(earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sha256" not in json.loads((earlier / "config.json").read_text())
    assert len(read_weights(earlier)) == 47
    assert main(["translate", str(earlier), "the cat sees"]) == 0
    capsys.readouterr()
    assert main(["train", "translate", str(earlier), "--steps", "14"]) == 0
    assert "finished by steps after 14 steps" in capsys.readouterr().out
    assert checkpoint.load(earlier / "state-00000014")[0].step == 14
    assert main(["translate", str(earlier), "the cat sees"]) == 0
    (earlier / "config.json").write_text((earlier / "config.json").read_text().replace('"heads": 2', '"heads": 4'))
    assert main(["translate", str(earlier), "the cat sees"]) == 1  # digests are checked from now on


@pytest.mark.parametrize(
    ("mutate", "count", "recipes"),
    [(damage.mutate_bytes, 40, ("translate", "classify")), (damage.flip_bit, 60, ("pretrain", "images", "language"))],
)
def test_damage_raises_a_clear_error_or_has_no_effect(
    mutate: damage.Mutate, count: int, recipes: tuple[str, ...]
) -> None:
    """`python -m bench damage` makes thousands of such changes, for every recipe."""
    counted = damage.campaign(count, mutate, seed=7, recipes=recipes)
    assert counted["silent"] == counted["crash"] == 0 and counted["refused"] > count // 3, counted


@pytest.mark.parametrize("recipe", ["translate", "classify", "pretrain", "language"])
def test_text_that_is_not_utf8_is_refused_unless_allowed(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    _runs.write_inputs(Path(), pairs=90)
    path = Path(INPUTS[recipe])
    lines = path.read_text().splitlines()
    bad = [
        line.replace("cat", "猫在看着狗").encode("gb18030") if number % 2 else line.encode()
        for number, line in enumerate(lines)
    ]
    path.write_bytes(b"\n".join(bad) + b"\n")
    assert main(_runs.command(recipe, Path("run"))) == 1
    error = capsys.readouterr().err
    assert re.search(rf"{path} must be UTF-8; got \d+ of 90 lines \(\d+%\) that are not: GB18030, it seems", error), (
        error
    )
    assert main([*_runs.command(recipe, Path("run")), "--badly-encoded", "0.5"]) == 0
    assert "badly encoded" in capsys.readouterr().out
    assert np.isclose(
        json.loads(Path("run/config.json").read_text())[SETTINGS.get(recipe, "texts")]["badly_encoded"],
        0.5,
    )
