"""The command `regard view`: targets of every kind, and a server that answers over HTTP until Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import regard
from regard.commands import view
from regard.commands.main import main
from regard.server.open_target import open_target
from regard.server.run_target import words
from tests.page import targets
from tests.server.conftest import asked
from tests.tasks.conftest import pairs

TRAIN = [
    *("--vocabulary", "60", "--tokens", "200", "--width", "16", "--hidden", "16", "--steps", "2", "--warmup", "2"),
    *("--log-every", "2"),
]
KINDS = {
    "transformer": ["--heads", "2", "--encoder-layers", "2", "--decoder-layers", "1"],
    "recurrent": ["--kind", "recurrent", "--encoder-hidden", "16"],
}


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, count in (("train", 40), ("valid", 6)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(count, seed=len(name)))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    texts = ["--train", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv")]
    path = folder / request.param
    assert main(["train", "translate", str(path), *texts, *TRAIN, *KINDS[request.param]]) == 0
    return path


def test_a_translator(run: Path) -> None:
    target: Any = open_target(run)
    client = asked(target)
    target_info = client.get("/api/target").json()
    assert target_info["kind"] == "translator"
    assert target_info["maps"] == [] and target_info["can"] == ["translate", "run"]
    assert "send a text first" in client.get("/api/maps/0/0/overview.png").json()["error"]
    translated = client.post("/api/translate", json={"text": "the cat sees a dog", "beam": 3, "n_best": 2}).json()
    best = target.translator.translate(["the cat sees a dog"], size=3, n_best=2, longest=256)[0]
    assert [one["text"] for one in translated["hypotheses"]] == [one.text for one in best]
    maps, aligned = target.translator.look(best), target.translator.align(best)
    for answer, one, map, links in zip(translated["hypotheses"], best, maps, aligned, strict=True):
        assert answer["score"] == one.score and answer["source"][-1] == answer["target"][-1] == "</s>"
        torch.testing.assert_close(torch.tensor(answer["weights"]), map.dense().mean(0), rtol=1e-5, atol=1e-7)
        assert len(answer["weights"]) == len(answer["target"]) and len(answer["weights"][0]) == len(answer["source"])
        assert answer["source_words"] == one.source.split() and answer["target_words"] == one.text.split()
        assert answer["links"] == [list(link) for link in links.links]
    seen = client.post("/api/run", json={"text": "a bird"}).json()
    assert seen["version"] != answer.get("version") and seen["can"] == ["map", "text", "translate", "run"]
    kinds = [m["kind"] for m in seen["maps"]]
    assert "cross" in kinds and (run.name == "recurrent" or kinds == ["self", "self", "causal", "cross"])
    for m in seen["maps"]:
        query, key = (seen["tokens"][m[f"{side}_tokens"]] for side in ("query", "key"))
        assert (len(query), len(key)) == (m["queries"], m["keys"])
        if m["kind"] == "cross":
            assert query[-1] == key[-1] == "</s>"
    assert client.get("/api/maps/0/mean/overview.png").status_code == 200
    long = client.post("/api/translate", json={"text": "dog " * 1000})
    assert long.status_code == 413 and "sentence by sentence" in long.json()["error"]


def test_words_are_joined_by_their_numbers(run: Path) -> None:
    target: Any = open_target(run)
    vocabulary = target.translator.source
    assert words(vocabulary, vocabulary.encode("the cat  sees")) == ["the", "cat", "sees"]
    assert words(vocabulary, []) == []


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with regard.watch(model) as seen, torch.no_grad():
        model(torch.randn(2, 7, 8))
    seen.tokens(list("abcdefg"))
    return seen.save(tmp_path_factory.mktemp("captures") / "seen.safetensors")


def test_a_capture(capture: Path) -> None:
    client = asked(open_target(capture, batch=1))
    answer = client.get("/api/target").json()
    assert answer["title"] == "seen.safetensors" and answer["can"] == ["map", "text"] and len(answer["maps"]) == 2
    expected = regard.load_capture(capture)[1][1, 1, 3]
    row = torch.tensor(client.get("/api/maps/1/1/query/3").json()["row"])
    torch.testing.assert_close(row, expected, rtol=0, atol=0)


def test_the_server_answers_and_stops(capture: Path) -> None:
    command = [sys.executable, "-m", "regard", "view", str(capture), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            address = re.search(r"seen\.safetensors: (http://127\.0\.0\.1:\d+/) \(press Ctrl-C to stop\)", line)
            assert address, line + process.stderr.read()
            answer = httpx.get(address[1] + "api/target", timeout=300, trust_env=False)
            assert answer.json()["title"] == "seen.safetensors" and "server" not in answer.headers
            stranger = httpx.get(address[1], headers={"host": "evil.example"}, timeout=300, trust_env=False)
            assert stranger.status_code == 421
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=300) == 0
            errors = process.stderr.read()
            assert "Traceback" not in errors and "KeyboardInterrupt" not in errors
        finally:
            process.kill()


def bert(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "low", "##er", "new"]
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokens), max_position_embeddings=12, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab={token: n for n, token in enumerate(tokens)}).save_pretrained(folder)


def test_a_text_model(tmp_path: Path) -> None:
    bert(tmp_path)
    with pytest.raises(ValueError, match="must be opened with --text or --file"):
        open_target(tmp_path)
    client = asked(open_target(tmp_path, "a lower"))
    answer = client.get("/api/target").json()
    assert answer["kind"] == "model" and answer["can"] == ["map", "text", "run"] and len(answer["maps"]) == 2
    assert answer["tokens"]["t0"] == ["[CLS]", "a", "low", "##er", "[SEP]"]
    again = client.post("/api/run", json={"text": "new"}).json()
    assert again["tokens"]["t0"] == ["[CLS]", "new", "[SEP]"] and again["version"] != answer["version"]
    long = client.post("/api/run", json={"text": "a " * 40})
    assert long.status_code == 413 and "text (42 tokens) must have 1…12" in long.json()["error"]
    assert client.get("/api/target").json()["version"] == again["version"]


def test_an_image_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from PIL import Image

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.ViTModel(transformers.ViTConfig(image_size=12, patch_size=4, **sizes)).save_pretrained(tmp_path)
    Image.new("RGB", (30, 20), (10, 200, 30)).save(tmp_path / "x.png")
    client = asked(open_target(tmp_path, image=tmp_path / "x.png"))
    answer = client.get("/api/target").json()
    assert answer["image"] == {"width": 12, "height": 12, "rows": 3, "columns": 3, "first": 1}
    assert answer["can"] == ["map", "image"] and answer["maps"][0]["keys"] == 10
    assert len(client.get("/api/overlay?rollout=1&query=0").json()["weights"]) == 9
    assert client.post("/api/run", json={"text": "x"}).status_code == 404
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"bad\.png\) must be an image"):
        open_target(tmp_path, image=tmp_path / "bad.png")


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ({}, [], "must be a capture"),
        ({"config.json": "{"}, [], "got text that is not JSON"),
        ({"config.json": "[]"}, [], ", a JSON object; got a list"),
        ({"config.json": "{}"}, [], "describes neither"),
        (
            {"config.json": '{"recipe": "other"}'},
            [],
            "a run of translate, classify, images or language; got a run of other",
        ),
        ({"config.json": '{"recipe": "translate"}'}, ["--image", "x.png"], "is a translator. Pass --text"),
        ({"config.json": '{"recipe": "classify"}'}, ["--image", "x.png"], "is a text classifier. Pass --text"),
        ({"config.json": '{"recipe": "classify"}'}, ["--text", " "], "must be opened with a text. Pass --text"),
        ({"config.json": '{"recipe": "language"}'}, ["--image", "x.png"], "is a language model. Pass --text"),
        ({"config.json": '{"recipe": "images"}'}, ["--text", "x"], "is an image classifier. Pass --image"),
        ({"config.json": '{"model_type": "bert", "vocab_size": 9}'}, ["--text", "x"], "complete model directory"),
        ({"config.json": "{}"}, ["--port", "70000"], "port (70000) must lie in 0…65535"),
        ({"config.json": "{}"}, ["--file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_invalid_arguments_are_named(
    tmp_path: Path, files: dict[str, str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, contents in files.items():
        (tmp_path / name).write_text(contents)
    assert main(["view", str(tmp_path), "--no-open", *options]) == 1
    assert words in capsys.readouterr().err


def test_invalid_files_are_named(tmp_path: Path, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no tensors")
    (tmp_path / "notes.txt").write_text("a plain text")
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    for arguments, message in (
        ([str(tmp_path / "nothing")], "it does not exist"),
        ([str(tmp_path)], "got a folder without config.json"),
        ([str(tmp_path / "notes.txt")], f"got another file. `regard view MODEL --file {tmp_path / 'notes.txt'}` shows"),
        ([str(tmp_path / "notes.txt"), "--text", "x"], "got another file"),
        ([str(tmp_path / "model.safetensors")], "For the weights of a model, give the folder of the model."),
        ([str(tmp_path / "x.safetensors")], "x.safetensors"),
        (
            ["model.gguf"],
            "got a GGUF file. `regard generate model.gguf TEXT --watch",
        ),
        ([str(capture), "--text", "x"], "is a capture"),
        ([str(capture), "--batch", "2"], "batch (2) must lie in 0…1"),
        ([str(capture), "--host", "not an address"], "host (not an address) must be an address of this machine"),
    ):
        assert main(["view", *arguments, "--no-open"]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "text", "prompt"),
    [
        ({"recipe": "language"}, None, ""),
        ({"recipe": "language"}, "to be", "to be"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, None, ""),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "to be", "to be"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, None, ""),
    ],
)
def test_a_language_model_opens_generate(
    tmp_path: Path, config: dict[str, Any], text: str | None, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = targets.language_model().generator
    opened: list[Path] = []
    module = import_module("regard.tasks.open_language_model")
    monkeypatch.setattr(module, "open_language_model", lambda path: opened.append(path) or expected)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    client = asked(open_target(tmp_path, text))
    assert opened == [tmp_path]
    about = client.get("/api/target").json()
    assert about["kind"] == "language" and about["text"] == text
    assert about["can"] == ([] if text is None else ["map", "text"]) + ["generate", "run"]
    assert client.get("/api/generate").json()["prompt"] == prompt


def test_a_text_that_is_no_prompt_is_left_to_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text too long to be continued, and a model that regard does not read, are shown as maps."""
    opened: list[str | None] = []
    monkeypatch.setattr(
        import_module("regard.server.huggingface_target"),
        "Model",
        lambda path, config, text, image: opened.append(text),
    )
    module, generator = import_module("regard.tasks.open_language_model"), targets.language_model().generator

    def refuse(path: Path) -> None:
        raise ValueError("no weights")

    for kind, text, load in (
        ("gpt2", "a" * 4097, lambda path: generator),
        ("gpt2", "unreadable", refuse),
        ("gpt_neox", "another", refuse),
    ):
        monkeypatch.setattr(module, "open_language_model", load)
        config = {"model_type": kind, "architectures": ["ForCausalLM"]}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        open_target(tmp_path, text)
        assert opened[-1] == text


def test_without_a_target_mechanisms_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(view, "serve", lambda target, *others: served.append(target) or 0)
    assert main(["view", "--no-open"]) == 0
    client = asked(served[0])
    about = client.get("/api/target").json()
    assert (about["kind"], about["can"], about["maps"]) == ("mechanisms", [], [])
    assert client.get("/api/explain").json()["run"] is None
    assert client.get("/api/explain/dot").status_code == 200


def test_a_text_needs_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--text", "a b"]) == 1
    assert "--text ('a b') must come with a TARGET" in capsys.readouterr().err
