"""Checkpoints: complete ones are read, others are refused with the names of the file and of every tensor."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.core.files import Unwritable
from regard.models.model_directory import fill, read_config, read_tensors, write

NAMES = {"0.weight": "a.weight", "0.bias": "a.bias", "1.weight": "b.weight", "1.bias": "b.bias"}


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


def tensors() -> dict[str, Tensor]:
    own = model().state_dict()
    return {theirs: own[ours] for ours, theirs in NAMES.items()}


def assert_same(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert result.keys() == expected.keys() and all(torch.equal(result[name], expected[name]) for name in expected)


def test_read_returns_the_tensors_that_were_written(tmp_path: Path) -> None:
    folder, expected = tmp_path / "new" / "model", tensors()
    write(folder, {"name": "größe", "width": 3}, expected | {"a.weight": expected["a.weight"].T.contiguous().T})
    assert read_config(folder) == {"name": "größe", "width": 3}
    assert_same(read_tensors(folder), expected)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_writing_leaves_other_files_and_fails_whole(tmp_path: Path) -> None:
    write(tmp_path, {"width": 3}, tensors())
    (tmp_path / "vocab.txt").write_text("a")
    before = (tmp_path / "model.safetensors").read_bytes()
    shared = torch.ones(4)
    with pytest.raises(RuntimeError, match="share memory"):
        write(tmp_path, {"width": 4}, {"a": shared, "b": shared})
    assert (tmp_path / "model.safetensors").read_bytes() == before and read_config(tmp_path) == {"width": 3}
    write(tmp_path, {"width": 5}, tensors())
    assert read_config(tmp_path) == {"width": 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]


def in_parts(folder: Path) -> dict[str, Tensor]:
    expected = tensors()
    parts = {
        f"model-0000{n + 1}-of-00002.safetensors": [f"{part}.weight", f"{part}.bias"] for n, part in enumerate("ab")
    }
    for file, names in parts.items():
        save_file({name: expected[name] for name in names}, folder / file)
    indices = {name: file for file, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": indices}))
    return expected


def test_checkpoints_in_parts(tmp_path: Path) -> None:
    expected = in_parts(tmp_path)
    assert_same(read_tensors(tmp_path), expected)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {**listed["weight_map"], "c": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(ValueError, match=r"index\.json lists must be in its files; got no c\."):
        read_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors", "b": "gone.safetensors"}}))
    with pytest.raises(
        ValueError, match=r"must be in its folder; got none of \.\./other\.safetensors, gone\.safetensors"
    ):
        read_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": ["a"]}))
    with pytest.raises(ValueError, match=r"index\.json\) must have a weight_map of tensor → file; got \['a'\]"):
        read_tensors(tmp_path)


def test_the_old_format_without_running_code(tmp_path: Path) -> None:
    expected, path = tensors(), tmp_path / "pytorch_model.bin"
    torch.save(expected, path)
    assert_same(read_tensors(tmp_path), expected)
    torch.save({"a": Path("code")}, path)
    with pytest.raises(
        ValueError, match=r"pytorch_model\.bin\) must be a complete file of tensors and nothing else; got"
    ):
        read_tensors(tmp_path)
    torch.save({"epoch": 3, "a": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin\) must hold tensors by name; got a dict"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, left: int) -> None:
    (save_file if name == "model.safetensors" else torch.save)(tensors(), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:left])
    with pytest.raises(
        ValueError, match=rf"exchange: file \(.*{name}\) must be a complete file of .*; got: .+\. Fetch"
    ):
        read_tensors(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a model directory of Hugging Face; it does not exist"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"must hold model\.safetensors, .* or pytorch_model\.bin; got none"):
        read_tensors(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json must be JSON of a model directory; got text that is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json must be .*, a JSON object; got a list"):
        read_config(tmp_path)


def test_a_model_is_filled() -> None:
    output, expected = model().double(), tensors()
    assert fill(output, expected, NAMES) == []
    for ours, theirs in NAMES.items():
        value = output.state_dict()[ours]
        assert value.dtype == torch.float64 and torch.equal(value, expected[theirs].double())


def test_every_problem_is_reported_at_once_and_nothing_is_copied() -> None:
    output = model()
    before = {name: value.clone() for name, value in output.state_dict().items()}
    wrong = {"a.weight": torch.ones(5, 4), "a.bias": torch.ones(5), "c": torch.ones(1), "d": torch.ones(1)}
    with pytest.raises(ValueError) as raised:
        fill(output, wrong, NAMES)
    assert str(raised.value).splitlines() == [
        "exchange: tensors (4) must be those of a Sequential (4); got",
        "  missing: b.bias, b.weight",
        "  unexpected: c, d",
        "  of another shape: a.weight (5, 4) for (5, 3)",
        "Load it with the head and the configuration it was saved with.",
    ]
    assert_same(output.state_dict(), before)


def test_optional_tensors_may_be_missing_and_ignored_ones_present() -> None:
    output, inputs = model(), tensors()
    before = output[1].weight.clone()
    del inputs["b.weight"], inputs["b.bias"]
    inputs["a.position_ids"] = torch.arange(3)
    assert fill(output, inputs, NAMES, optional=["1.*"], ignored=["*.position_ids"]) == ["1.weight", "1.bias"]
    assert torch.equal(output[1].weight, before) and torch.equal(output[0].weight, inputs["a.weight"])


def test_tied_parameters_need_one_name_and_no_parameter_is_forgotten() -> None:
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    fill(tied, {"w": torch.eye(3)}, {"1.weight": "w"})
    assert torch.equal(tied[0].weight, torch.eye(3))
    with pytest.raises(AssertionError, match=r"parameters without a name there: \['1.weight', '1.bias'\]"):
        fill(model(), tensors(), dict(list(NAMES.items())[:2]))
    with pytest.raises(AssertionError, match=r"names of no parameter: \['2.bias'\]"):
        fill(model(), tensors(), NAMES | {"2.bias": "c"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"recipe": "classify"}'),
        ("config.json", '{"training": {"steps": 2}, "sha256": "0"}'),
        ("metrics.jsonl", ""),
        ("state-00000009/rank-0", ""),
    ],
)
def test_a_run_is_not_overwritten(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    rule = re.escape(f"export: folder ({tmp_path}) must not hold a run; ")
    with pytest.raises(ValueError, match=rf"{rule}.*Choose another --out\."):
        write(tmp_path, {"width": 3}, tensors())
    assert (tmp_path / name).read_text() == text and sorted(tmp_path.rglob("*")) == before


def test_an_earlier_export_is_overwritten_and_a_file_is_not(tmp_path: Path) -> None:
    for width in (3, 4):
        write(tmp_path / "out", {"width": width}, tensors())
        assert read_config(tmp_path / "out") == {"width": width}
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match=r"export: folder \(.*/file\) must be a folder or not exist; got a file"):
        write(tmp_path / "file", {}, tensors())
    with pytest.raises(Unwritable, match=r"/file/out must be writable; got Not a directory\. Give another path"):
        write(tmp_path / "file/out", {}, tensors())
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_leaves_no_partial_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    write(tmp_path / "earlier", {"width": 3}, expected := tensors())
    monkeypatch.setattr("regard.models.model_directory.save_file", full)
    for name in ("earlier", "new"):
        with pytest.raises(Unwritable, match=rf"/{name} must be writable; .*No space left .*Free some space") as raised:
            write(tmp_path / name, {"width": 4}, tensors())
        assert "\n" not in str(raised.value)
    assert read_config(tmp_path / "earlier") == {"width": 3}
    assert_same(read_tensors(tmp_path / "earlier"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["earlier"]
    assert len(list((tmp_path / "earlier").iterdir())) == 2
