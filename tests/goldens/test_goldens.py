"""The code computes what it computed when the goldens were recorded, and reads what it wrote then (see `record`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import layers, models
from regard.data import load_vocabulary
from regard.training import checkpoint
from tests.goldens import frozen_interfaces, server_answers, small_runs
from tests.goldens.comparison import (
    EXACT,
    ROUNDING,
    TRAINING,
    UNDETERMINED,
    differences,
    read_tensors,
    recording_differences,
)
from tests.goldens.comparison import tensor_differences as tensors_differ
from tests.goldens.entry_points import ADDRESS_MODULE, kernels
from tests.goldens.module_cases import CASES, ELSEWHERE, outcome
from tests.goldens.record import FILES, STORED
from tests.page.test_assets import demand, node

pytestmark = [
    pytest.mark.xdist_group("goldens"),
    pytest.mark.filterwarnings("ignore:.*was written with:RuntimeWarning"),  # by another version of torch
]
ADDRESSES = (
    "#map",
    "#map?map=3&head=5&reduce=mean&scale=linear&token=12&end=14&direction=to&sight=1.5,2,64",
    "#text?map=3&head=mean&token=12",
    "#image?overlay=rollout&patch=4",
    "#translate?say=the+cat",
    "#generate?head=2&say=the+cat&seed=7&temperature=0.7&top_p=0.9&tokens=32&layer=1",
    "#generate?say=a&top_k=5&min_p=0.1&repetition_penalty=1.2&stop=x&chat=true&branches=3,17,8,5&at=9",
    "#text?map=1&token=4&links=all",
)
"""Bookmarks of the page."""
INTERFACES = json.loads((STORED / "interfaces.json").read_text(encoding="utf-8"))


@cache
def stored(name: str) -> Any:
    return json.loads((STORED / "results.json").read_text(encoding="utf-8"))[name]


@cache
def stored_modules() -> dict[str, torch.Tensor]:
    return read_tensors(STORED / "modules.safetensors")[0]


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, a capture and exports that version 0.1.0 wrote."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(STORED / FILES) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def in_old(old: Path) -> Iterator[Path]:
    with small_runs.working_in(old):
        yield old


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The same, written now, and the metadata of the runs."""
    folder = tmp_path_factory.mktemp("new")
    with small_runs.working_in(folder):
        return folder, small_runs.write_files()


def same(differences: Iterator[str]) -> None:
    listed = list(differences)
    assert not listed, "\n".join(listed[:20])


def test_every_public_name_is_recorded() -> None:
    recorded = {case.partition("/")[0] for case in CASES} | ELSEWHERE.keys()
    assert {*regard.__all__, *layers.__all__, *models.__all__} <= recorded


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case: str) -> None:
    if "/dropout" in case and kernels() is None:
        pytest.skip("the kernels draw other random numbers for dropout than PyTorch does")
    expected = {name.partition(":")[2]: x for name, x in stored_modules().items() if name.startswith(f"{case}:")}
    same(tensors_differ(expected, outcome(CASES[case]).tensors, ROUNDING))


@pytest.mark.parametrize("run", small_runs.RECIPES)
def test_training(run: str, old: Path, new: tuple[Path, dict[str, Any]]) -> None:
    folder, described = new
    expected = {name: value for name, value in stored("runs")[run].items() if name != "resumed"}
    same(differences(expected, described[run], TRAINING))
    states = "state-00000002", "state-00000004"  # the old model.safetensors is of the first of two equal scores
    for state in states:
        before, after = (_weights(index / run / state / "tensors.safetensors") for index in (old, folder))
        same(tensors_differ(before, after, TRAINING))


def _weights(path: Path) -> dict[str, torch.Tensor]:
    weights = checkpoint.part(read_tensors(path)[0], "model")
    return {name: x for name, x in weights.items() if not name.endswith(UNDETERMINED)}


@pytest.mark.parametrize("run", small_runs.RECIPES)
def test_an_old_run_resumes(run: str, old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path, dirs_exist_ok=True)
    with small_runs.working_in(tmp_path):
        same(differences(stored("runs")[run]["resumed"], small_runs.resume(run), TRAINING))


@pytest.mark.parametrize("asked", small_runs.ASKED)
def test_an_old_model_answers(asked: str, in_old: Path) -> None:
    printed = small_runs.regard_command(*small_runs.ASKED[asked])
    same(differences(stored("asked")[asked], printed, ROUNDING))


@pytest.mark.parametrize("target", server_answers.TARGETS)
def test_an_old_file_is_viewed(target: str, in_old: Path) -> None:
    if target == "huggingface":
        pytest.importorskip("transformers")
    same(differences(stored("server")[target], server_answers.answers(target), ROUNDING))


@pytest.mark.parametrize("export", small_runs.EXPORTS)
def test_an_old_run_is_exported_bit_by_bit(export: str, in_old: Path, tmp_path: Path) -> None:
    *arguments, _ = small_runs.EXPORTS[export]
    small_runs.regard_command(*arguments, str(tmp_path / export))
    same(recording_differences(in_old / export, tmp_path / export))


def test_an_old_hugging_face_export_is_read(in_old: Path) -> None:
    expected = read_tensors(Path("pretrained/model.safetensors"))[0]
    weights = models.load_bert("huggingface", models.Pretraining).state_dict()
    same(tensors_differ(expected, {name: weights[name] for name in expected}, EXACT))


def test_an_old_ctranslate2_export_translates_as_we_do(in_old: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    source, target = (load_vocabulary(Path("ctranslate2", name)) for name in ("source.json", "target.json"))
    translator = ctranslate2.Translator("ctranslate2", intra_threads=1)
    tokens = source.pieces(source.encode("the cat sees"))
    (result,) = translator.translate_batch([tokens], beam_size=1, max_decoding_length=8, disable_unk=False)
    ids = {target.pieces([number])[0]: number for number in range(len(target))}
    ours = small_runs.regard_command("translate", "transformer", "the cat sees", "--beam", "1", "--longest", "8")
    assert target.decode([ids[token] for token in result.hypotheses[0]]) == ours.removesuffix("\n")


def test_the_kernels_have_their_module_name() -> None:
    assert kernels() is None or kernels().__name__ == "regard._native"


def test_an_old_capture_equals_a_new_one(old: Path, new: tuple[Path, dict[str, Any]]) -> None:
    before, after = (regard.load_capture(folder / "capture.safetensors") for folder in (old, new[0]))
    assert (before.names, before.kinds, before.patches) == (after.names, after.kinds, after.patches)
    assert torch.equal(before.image, after.image)
    maps = ({name: map.dense() for name, map in seen.items()} for seen in (before, after))
    same(tensors_differ(*maps, ROUNDING))


@pytest.fixture(scope="session")
def interfaces(old: Path, new: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    folder, runs = new
    with small_runs.working_in(old):
        targets = [name for name in server_answers.TARGETS if name != "huggingface"]  # which has the keys of the others
        server = {name: server_answers.answers(name) for name in targets}
    states = {name: outcome(case).state for name, case in CASES.items()}
    return frozen_interfaces.collect(folder, {"runs": runs, "server": server}, states)


@pytest.mark.parametrize("section", INTERFACES)
def test_names_outside_stay(section: str, interfaces: dict[str, Any]) -> None:
    """A name that users have in files, scripts or bookmarks is not renamed or removed.

    After a name was added on purpose, `python -m tests.goldens.record OUT --store` adds it to the list.
    """
    expected, actual = INTERFACES[section], interfaces[section]
    if section == "answers":
        expected = {name: keys for name, keys in expected.items() if name in actual}
    same(differences(expected, actual, ROUNDING))


def test_bookmarks_of_the_page_stay() -> None:
    demand(node(), "no Node")
    script = (
        f"import {{ read, write }} from {json.dumps(ADDRESS_MODULE.as_uri())};"
        f"console.log(JSON.stringify({json.dumps(ADDRESSES)}.map((address) => write(read(address)))));"
    )
    command = [str(node()), "--no-warnings", "--input-type=module", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(ADDRESSES)


def test_exact_comparison_sees_a_bit(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path, dirs_exist_ok=True)
    assert not list(recording_differences(old, tmp_path))
    path = tmp_path / "ctranslate2/model.bin"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    metrics = tmp_path / "vit/metrics.jsonl"
    metrics.write_text(metrics.read_text(encoding="utf-8").replace('"loss": 0.', '"loss": 1.', 1), encoding="utf-8")
    result = "\n".join(recording_differences(old, tmp_path))
    assert "ctranslate2/model.bin: not equal" in result and "vit/metrics.jsonl" in result and "/loss" in result
