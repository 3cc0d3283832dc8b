"""Run every command shown in the documentation on toy data. Options may come before and after texts."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.commands import demo, train, view
from regard.commands.main import COMMANDS as ALL_COMMANDS
from regard.commands.main import _parse, main
from regard.core import assets
from regard.data import Characters, WordPiece
from regard.models import GPT, Bert, BertConfig, GPTConfig, save_bert
from regard.tasks.loading import load_translator
from regard.tasks.text_generation import TextGenerator
from regard.tasks.translator import Alignment, Translation
from tests.tasks.conftest import pairs
from tests.tasks.sample_texts import labelled, write_labelled, write_plain

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(regard [^`]+)`")
ONLY_PARSED = {
    "data tatoeba": "needs the network",
    "data bible": "needs the network",
    "data fashion-mnist": "needs the network",
    "demo": "trains for minutes; tests/commands/test_main_command.py runs it with three steps",
    "view": "serves until Ctrl-C; tests/commands/test_view_command.py opens and ends servers",
}
"""Beginnings of commands that are parsed but not run, with the reason."""
BENCH = ("ein mann sitzt auf einer bank .", "a man sits on a bench .")
"""A pair whose words are in the vocabulary, so that a chart shows them."""
SMALL = ["--width", "16", "--hidden", "16", "--steps", "1", "--warmup", "0", "--log-every", "1"]
BERT = ["--heads", "2", "--layers", "1", "--vocabulary", "60"]
TINY = {
    "translate": [*SMALL, "--vocabulary", "120", "--tokens", "200"],
    "pretrain": [*SMALL, *BERT, "--longest", "32"],
    "classify": [*SMALL, *BERT, "--longest", "32"],
    "finetune": ["--steps", "1", "--warmup", "0", "--longest", "32"],
    "language": [*SMALL, "--heads", "2", "--layers", "1", "--context", "40", "--vocabulary", "characters"],
    "continue": ["--steps", "1", "--warmup", "0"],
    "images": [*SMALL, "--heads", "2", "--held-out", "0.2", "--crop", "0"],
}


def fenced() -> list[str]:
    """Return the commands in code blocks, without usage lines such as `regard view TARGET [--text TEXT]`."""
    lines = [
        line
        for document in DOCUMENTS
        for block in FENCED.findall(document.read_text(encoding="utf-8"))
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [" ".join(line.split("  #")[0].split()) for line in lines if re.match(r"regard (?!.* \[)", line)]


def inline() -> list[str]:
    """Return the complete commands within sentences."""
    commands = [
        command
        for document in DOCUMENTS
        for command in INLINE.findall(FENCED.sub("", document.read_text(encoding="utf-8")))
    ]
    return sorted({command for command in commands if len(command.split()) > 2 and not re.search(r"[\[|…]", command)})


def in_help() -> list[str]:
    """Return the examples of `--help`. The demo takes minutes, and a server does not end."""
    texts = [module.EXAMPLE for module, _ in ALL_COMMANDS.values() if module not in (demo, view)]
    lines = "\n".join([*texts, *(f"  {example}" for example in train.EXAMPLES.values())]).splitlines()
    return [re.split(r"\s{2,}", line.strip())[0] for line in lines if line.startswith("  regard ")]


COMMANDS = list(dict.fromkeys([*fenced(), *in_help()]))


def test_the_documents_show_commands() -> None:
    assert len(COMMANDS) > 20 and len(inline()) > 15
    names = {command.split()[1] for command in COMMANDS}
    assert names >= {"train", "translate", "classify", "embed", "explain", "export", "data"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with all files that the commands name, and a run of each kind."""
    folder = tmp_path_factory.mktemp("workspace")
    for name, count in (("train", 60), ("val", 8), ("test", 3)):
        for side, language in enumerate(("de", "en")):
            lines = "".join(f"{pair[side]}\n" for pair in [*pairs(count, seed=len(name)), *[BENCH] * (count // 2)])
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    write_plain(folder / "reviews.txt", 40)
    write_labelled(folder / "reviews.tsv", 40)
    for name in ("plays", "more"):
        write_plain(folder / f"{name}.txt", 40)
    texts = [text for text, _ in labelled(6)]
    (folder / "lines.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (folder / "corpus.txt.gz").write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    for name in ("DIRECTORY", "all-MiniLM-L6-v2"):
        words = WordPiece.train(texts, 60)
        save_bert(Bert(BertConfig(len(words), width=16, heads=2, hidden=16, layers=1, positions=64)), folder / name)
        words.save(folder / name)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 12, 12), np.uint8)
    for number, image in enumerate(pixels):
        path = folder / "data/fashion-mnist/train" / ("boot", "shirt")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    Image.fromarray(pixels[0]).save(folder / "boot.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            words = shlex.split(command)
            if words[1] == "train" and words[3].startswith("runs/") and not Path(words[3]).exists():
                assert run(words) == 0, command
    return folder


def language_model() -> TextGenerator:
    """A tiny model with a chat template, in place of those that the documents name."""
    letters = Characters("".join(map(chr, range(32, 127))))
    letters.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"  # type: ignore[attr-defined]
    return TextGenerator(GPT(GPTConfig(len(letters), width=16, heads=2, layers=1)), letters)


def run(words: list[str]) -> int:
    """Run a command as documented. Training commands take one step of a tiny model."""
    if words[1] == "train" and "--help" not in words:
        kind = words[2]
        if kind == "classify":
            images = any(Path(word).is_dir() for word in words[4:] if word.startswith("data/"))
            kind = "images" if images else "finetune" if "--from" in words else "classify"
        if kind == "language" and "--from" in words:
            kind = "continue"
        if "…" in words:
            data = ["--train", "train.de", "train.en", "--valid", "val.de", "val.en"]
            words = [word for word in words if word not in ("…", "--train", "--valid")] + data
        words = [*words, *TINY[kind]]
    if words[1] == "explain" and "--out" in words and not (assets.FOLDER / "index.html").exists():
        words = words[: words.index("--out")]  # without the page, it prints an outline
    if words[1:3] == ["data", "dates"]:
        words = [*words, "--count", "20"]
    try:
        return main(words[1:])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_runs(
    workspace: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command.removeprefix("regard ").startswith(tuple(ONLY_PARSED)):
        assert _parse(shlex.split(command)[1:]).run
        return
    if command.startswith("regard export") and command.endswith("ctranslate2"):
        pytest.importorskip("ctranslate2")
    words = shlex.split(command)
    if words[1] == "train" and len(words) > 4:  # in a separate folder, because another command has trained the run
        shutil.copytree(workspace, tmp_path / "new")
        monkeypatch.chdir(tmp_path / "new")
        shutil.rmtree(words[3], ignore_errors=True)
    else:
        monkeypatch.chdir(workspace)
    if words[1] == "generate":
        monkeypatch.setattr("regard.tasks.open_language_model.open_language_model", lambda path: language_model())
    for sign in ("<", ">"):
        if sign in words:
            index = words.index(sign)
            if sign == "<":
                monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(words[index + 1]).read_bytes())))
            del words[index : index + 2]
    assert run(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out or "--out" in words


def python_scripts() -> list[str]:
    """Return the scripts: blocks of Python that begin with an import and are not doctests, because they need files."""
    blocks = [
        block
        for document in DOCUMENTS
        for block in re.findall(
            r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ]
    return list(dict.fromkeys(block for block in blocks if block.startswith("import regard\n")))


def test_the_documents_show_scripts() -> None:
    assert len(python_scripts()) >= 3


@pytest.mark.parametrize("script", python_scripts(), ids=lambda script: str(script.splitlines()[-1])[:40])
def test_a_documented_script_runs(workspace: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training functions take one step of a tiny model."""
    monkeypatch.chdir(workspace)
    train_translator = regard.train_translator
    tiny = {"width": 16, "hidden": 16, "steps": 1, "warmup": 0, "vocabulary": 120, "tokens": 200, "minutes": None}
    monkeypatch.setattr(
        regard,
        "train_translator",
        lambda folder, **settings: train_translator(f"{folder}-{len(script)}", **{**settings, **tiny}),
        raising=False,
    )
    exec(script, {})


@pytest.mark.parametrize("command", inline())
def test_an_inline_command_is_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    if words[1] == "explain":
        assert run(["regard", *words[1 : words.index("--out")]]) == 0
        assert capsys.readouterr().out
    elif words[1] != "train":  # each training recipe parses its own options
        assert _parse(words[1:]).run


OPTIONS = [
    ["--alignments"],
    ["--alignments", "input"],
    ["--alignments=output", "--beam", "2"],
    ["--n-best", "2", "--beam", "2"],
    ["--longest", "4", "--length-penalty", "0.5"],
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_options_may_come_before_between_and_after_texts(
    workspace: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    texts, folder = ["a dog", "-- the cat"], str(workspace / "runs/de-en")
    for arguments in (
        [folder, *options, "--", *texts],
        [folder, texts[0], *options, "--", texts[1]],
        [*options, folder, "--", *texts] if len(options) != 1 else [folder, *options, "--", *texts],
    ):
        assert main(["translate", *arguments]) == 0, arguments
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2] and outputs[0].count("\n") == (4 if "--n-best" in options else 2)
    plain = [[folder, *options, "a dog", "the cat"], [folder, "a dog", "the cat", *options]]
    assert [main(["translate", *arguments]) for arguments in plain] == [0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_python_as_documented(workspace: Path) -> None:
    """`load_translator` takes a string, and `look` and `align` accept the result of `translate`."""
    translator = load_translator(str(workspace / "runs/de-en"))
    single = translator.translate("the cat", longest=6)
    assert isinstance(single[0], Translation) and single[0].source == "the cat"
    assert translator.translate(["the cat"], longest=6) == [single]
    several = translator.translate(["the cat", "a dog"], longest=6)
    assert [m.shape[-1] for m in translator.look(several)] == [len(one.read) for (one,) in several]
    assert translator.look(single[0])[0].shape == translator.look(single)[0].shape
    alignment = translator.align(single[0])
    assert isinstance(alignment, Alignment) and alignment.links == translator.align(several)[0].links
    with pytest.raises(ValueError, match=r"translations must come from `translate` or `known`; got a str"):
        translator.look(["the cat"])  # type: ignore[list-item]


def test_a_single_string_is_one_text(workspace: Path) -> None:
    from regard.tasks.embedder import Embedder
    from regard.tasks.loading import load_image_classifier, load_text_classifier

    classifier, embedder = load_text_classifier(str(workspace / "runs/mood")), Embedder.load(workspace / "DIRECTORY")
    assert classifier.probabilities("a fine film").equal(classifier.probabilities(["a fine film"])[0])
    assert embedder.embed("a fine film").equal(embedder.embed(["a fine film"])[0])
    with pytest.raises(ValueError, match=r"images \(boot.png\) must be a list, even for a single file"):
        load_image_classifier(str(workspace / "runs/fashion")).classify("boot.png")
