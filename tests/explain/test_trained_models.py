"""Charts of trained models, and error messages with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.commands.main import main
from regard.data import Characters
from regard.explain import draw, trained_models
from regard.explain.recorded_models import image
from regard.explain.trained_models import explain_run, load, mechanism_of
from regard.models import GPT, GPTConfig
from regard.models.vit import ViT, ViTConfig
from regard.tasks.loading import GPT_TYPES
from tests.page import runs

Fails = Callable[..., str]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.text_classifier(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return runs.image_classifier(tmp_path_factory.mktemp("images"))


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    def response(*arguments: Any) -> str:
        assert main(["explain", *map(str, arguments)]) == 1
        return capsys.readouterr().err

    return response


def test_a_text_classifier(text_run: Path, fails: Fails) -> None:
    run: Any = load(text_run)
    assert mechanism_of(run) == "bert"
    actual = explain_run(run, "a good film", None, "mood")
    ids = run.words.encode("a good film", longest=run.longest).ids
    with torch.no_grad():
        assert torch.allclose(run.model(torch.tensor([ids])), actual.output, atol=1e-5)
    assert actual.tokens["T"][0] == "[CLS]" and draw(actual).nodes[-1].kind == "output"
    assert "run must be run on a text. Pass --text TEXT" in fails("bert", "--run", text_run)
    assert "must be run on a text" in fails("bert", "--run", text_run, "--text", " \t")
    assert "image (x.png) must be omitted: run is a text model" in fails(
        "bert", "--run", text_run, "--text", "a", "--image", "x.png"
    )
    message = fails("transformer", "--run", text_run, "--text", "a")
    assert f"mechanism (transformer) must be that of the run; {text_run} holds bert" in message
    assert f"regard explain bert --run {text_run}" in message


def test_an_image_classifier(image_run: tuple[Path, Path], fails: Fails) -> None:
    folder, picture = image_run
    run: Any = load(folder)
    assert mechanism_of(run) == "vit"
    actual = explain_run(run, None, picture, "sides")
    ((pixels, _),) = ((actual.recorder.result.tensors[n], name) for n, name in actual.recorder.result.inputs.items())
    with torch.no_grad():
        assert torch.allclose(run.model(pixels), actual.output, atol=1e-5)
    assert actual.tokens["K"] == ["left", "right"] and len(actual.tokens["P"]) == 6
    assert "must be run on an image. Pass --image FILE" in fails("vit", "--run", folder)
    assert "text ('a') must be omitted" in fails("vit", "--run", folder, "--text", "a")
    assert "none.png) must exist" in fails("vit", "--run", folder, "--image", folder / "none.png")
    assert "config.json) must be an image" in fails("vit", "--run", folder, "--image", folder / "config.json")


@pytest.mark.parametrize("config", [{"recipe": "language"}, *({"model_type": name} for name in GPT_TYPES)])
def test_a_language_model(
    config: dict[str, str], tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run, or a Hugging Face directory: `load_language_model` reads both."""
    torch.manual_seed(0)
    letters = Characters.train(["to be or not to be"])
    model = GPT(GPTConfig.llama(vocabulary=len(letters), width=8, heads=2, layers=1)).eval()
    asked: list[Path] = []

    def load_language_model(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(model=model, vocabulary=letters)

    monkeypatch.setattr(trained_models, "load_language_model", load_language_model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = load(tmp_path)
    assert asked == [tmp_path] and mechanism_of(run) == "gpt"
    actual = explain_run(run, "to be", None, "plays")
    with torch.no_grad():
        probabilities, best = model(torch.tensor([letters.encode("to be")]))[0, -1].softmax(-1).topk(5)
    assert torch.allclose(probabilities, actual.output[0], atol=1e-6)
    assert actual.tokens["K"] == [token.replace(" ", "␣") for token in letters.pieces(best.tolist())]
    assert actual.tokens["T"] == ["t", "o", "␣", "b", "e"] and actual.title == "plays"
    assert "must be run on a text. Pass --text TEXT" in fails("gpt", "--run", tmp_path)
    assert "text (28 tokens) must have at most 24" in fails("gpt", "--run", tmp_path, "--text", "to be " * 4 + "to b")
    assert f"mechanism (bert) must be that of the run; {tmp_path} holds gpt" in fails(
        "bert", "--run", tmp_path, "--text", "to"
    )


def test_a_folder_without_a_model(tmp_path: Path, fails: Fails) -> None:
    missing = tmp_path / "none"
    assert f"path ({missing}) must be the folder of a run or of a Hugging Face model; it does not exist" in fails(
        "bert", "--run", missing
    )
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "pretrain"}))
    message = fails("bert", "--run", tmp_path)
    assert (
        f"RUN ({tmp_path}) must be a run of translate, classify, images or language" in message
        and "got pretrain" in message
    )


def test_a_model_without_attention() -> None:
    with pytest.raises(
        ValueError, match=r"must contain a model with attention; got a Linear. Try one trained as a ViT"
    ):
        mechanism_of(SimpleNamespace(model=torch.nn.Linear(1, 1)))  # type: ignore[arg-type]


def test_letters_of_an_image_are_correct_if_sizes_are_equal() -> None:
    """Sixteen patches of four by four, width 16: rows of patches, a patch's side and the heads are all four."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(3, channels=3, image=(16, 16), patch=4, width=16, heads=4, hidden=16, layers=2)).eval()
    chart = draw(image(model, torch.randn(1, 3, 16, 16), ["a", "b", "c"], ""))
    actual = {node.name["en"]: " ".join(chart.values[node.value].letters) for node in chart.nodes}
    assert actual["image"] == "B C Y X"
    assert actual["patch embedding"] == actual["position"] == "B P W"
    assert actual["class token"] == "W" and actual["class token first"] == actual["encoder block 1"] == "B T W"
    assert actual["widen"] == "B F" and actual["queries"] == "B 1 W" and actual["similarity"] == "B H 1 T"
    (patches,) = (node for node in chart.nodes if node.name["en"] == "patch embedding")
    assert [" ".join(chart.values[one.value].letters) for one in patches.operands] == ["B P C·p·p", "W C·p·p", "W"]
