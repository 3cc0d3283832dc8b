"""User errors: every command ends with an exit status and a message, never with a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.commands.main import main
from regard.commands.options import output
from tests.tasks.conftest import pairs

SIZES = ["--width", "16", "--hidden", "16", "--encoder-hidden", "16", "--kind", "recurrent", "--log-every", "1"]
DEEP = "[" * 20_000 + "]" * 20_000
WHOLE = ["null", "5", "[1,2]", '"x"', "true", "{}", "", "{", "NaN", "9" * 5000, DEEP, '{"recipe":' * 500]
VALUES: list[Any] = [None, -1, 0, 10**30, 1e308, "x", "", [], {}, [[]], {"x": {"y": []}}, True, 0.5]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 40), ("valid", 5)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(count, seed=len(name)))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    reviews = "".join(f"a {word} film {n}\t{word}\n" for n in range(20) for word in ("good", "bad"))
    (folder / "reviews.tsv").write_text(f"text\tlabel\n{reviews}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def texts(data: Path) -> list[str]:
    return ["--train", str(data / "train.tsv"), "--valid", str(data / "valid.tsv"), "--vocabulary", "60"]


@pytest.fixture(scope="module")
def translator(data: Path, texts: list[str]) -> Path:
    folder = data / "translator"
    assert main(["train", "translate", str(folder), *texts, *SIZES, "--steps", "1", "--warmup", "0"]) == 0
    return folder


@pytest.fixture(scope="module")
def classifier(data: Path) -> Path:
    sizes = ["--width", "16", "--hidden", "16", "--heads", "2", "--layers", "1", "--vocabulary", "60"]
    limits = ["--steps", "1", "--warmup", "0", "--longest", "16"]
    folder = data / "classifier"
    assert main(["train", "classify", str(folder), "--data", str(data / "reviews.tsv"), *sizes, *limits]) == 0
    return folder


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.commands.view.serve", lambda *_: 0)


def status_of(arguments: list[str]) -> int:
    """Return the exit status of a command. Any exception but SystemExit would be a traceback."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def commands(run: Path) -> list[list[str]]:
    folder = str(run)
    if run.name.startswith("translator"):
        return [
            ["translate", folder, "a"],
            ["view", folder],
            ["explain", "bahdanau", "--run", folder, "--text", "a"],
            ["export", folder],
            ["train", "translate", folder],
        ]
    return [
        ["classify", folder, "a"],
        ["view", folder, "--text", "a"],
        ["explain", "bert", "--run", folder, "--text", "a"],
        ["export", folder, "--to", "huggingface"],
        ["train", "classify", folder],
        ["embed", folder, "a"],
    ]


@pytest.mark.parametrize("content", WHOLE, ids=lambda text: text[:12] or "empty")
@pytest.mark.parametrize("kind", ["translator", "classifier"])
def test_an_invalid_config_gives_a_message(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / kind
    shutil.copytree(request.getfixturevalue(kind), run)
    (run / "config.json").write_text(content, encoding="utf-8")
    for arguments in commands(run):
        if arguments[0] == "embed" and content == "{}":
            continue  # a BERT of default size, too large for a test
        assert status_of(arguments) == 1, arguments
        output = capsys.readouterr().err
        assert len(output) < 2000 and str(run) in output, arguments


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths to all leaves of nested objects."""
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))


@pytest.mark.parametrize("kind", ["translator", "classifier"])
def test_an_invalid_value_in_a_run_gives_a_message_or_has_no_effect(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, choose = tmp_path / kind, random.Random(19)
    shutil.copytree(request.getfixturevalue(kind), run)
    for path in [path for path in sorted(run.glob("*.json")) if path.name not in ("confusion.json", "tokenizer.json")]:
        whole = path.read_text(encoding="utf-8")
        for keys in leaves(json.loads(whole)):
            changed = json.loads(whole)
            inner = changed
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = choose.choice(VALUES)
            path.write_text(json.dumps(changed), encoding="utf-8")
            arguments = choose.choice([command for command in commands(run) if command[0] != "train"])
            assert status_of(arguments) in (0, 1), (arguments, path.name, keys, inner[keys[-1]])
            assert len(capsys.readouterr().err) < 2000
        path.write_text(whole, encoding="utf-8")


@pytest.mark.parametrize("name", ["width", "hidden", "encoder-hidden", "layers", "vocabulary", "tokens", "longest"])
@pytest.mark.parametrize("value", ["0", "-8", "1" + "0" * 30])
def test_sizes_out_of_bounds_are_named(
    texts: list[str], tmp_path: Path, name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ["recurrent"] if name in ("encoder-hidden", "layers") else ["recurrent", "transformer"]:
        run = ["train", "translate", str(tmp_path / "run"), *texts, "--kind", kind, "--steps", "1", "--warmup", "0"]
        assert status_of([*run, f"--{name}={value}"]) == 1
        output = capsys.readouterr().err
        assert f"{name.replace('-', '_')} ({value}) must be at" in output
    assert not (tmp_path / "run").exists()


def test_all_invalid_sizes_are_named_at_once(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--width", "0", "--heads", "-1", "--dropout", "2", "--encoder-layers", "99999", "--steps", "1"]
    assert status_of(["train", "translate", str(tmp_path / "run"), *texts, *wrong, "--warmup", "0"]) == 1
    output = capsys.readouterr().err
    for part in ("width (0)", "heads (-1)", "dropout (2.0)", "encoder_layers (99999) must be at most 1,024"):
        assert part in output
    wide = ["--width", "65536", "--hidden", "262144", "--encoder-layers", "9", "--steps", "1", "--warmup", "0"]
    assert status_of(["train", "translate", str(tmp_path / "run"), *texts, *wide]) == 1
    assert "sizes must give a model of at most 20,000,000,000 parameters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "beam (0) must lie in 1…1,024"),
        (["--beam", "9" * 9], "must lie in 1…1,024"),
        (["--longest", "-1"], "longest (-1) must lie in"),
        (["--n-best", "9"], "n-best (9) must lie in 1…5, the beam"),
        (["--length-penalty", "nan"], "length-penalty (nan) must lie in −10…10."),
        (["--length-penalty", "300"], "length-penalty (300.0) must lie in −10…10."),
        (["--longest-source", "3"], "text 2 (4 tokens) must have at most 3. Translate sentence by sentence"),
        (["--plot", "x.gif"], "must end in .png"),
    ],
)
def test_options_of_translate(
    translator: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["the", "the cat sees the"] if "source" in options[0] else ["the"]
    assert status_of(["translate", str(translator), *texts, *options]) == 1
    assert message in capsys.readouterr().err


def test_a_text_of_20000_words_is_refused(translator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["translate", str(translator), "the cat " * 10_000]) == 1
    assert "(20,001 tokens) must have at most 1,024" in capsys.readouterr().err


def test_text_that_is_not_utf8(
    translator: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = os.fsdecode(b"\xff\xfe")  # how Python decodes such an argument
    for arguments, content, words in (
        (["translate", str(translator), bad], b"", "TEXT 1 must be text in UTF-8; got byte 0xff at position 0"),
        (["translate", str(translator)], b"a cat\ncaf\xe9\n", "line 2 of the standard input must be text in UTF-8"),
        (["classify", str(classifier)], b"\xff\xfea\x00", "It seems to be UTF-16: try `iconv -f UTF-16 -t UTF-8`"),
        (["translate", str(translator)], "房间很干净\n".encode("gb18030"), "try `iconv -f GB18030 -t UTF-8`"),
        (["explain", "dot", "--text", bad], b"", "--text must be text in UTF-8"),
        (["view", str(translator), "--text", bad], b"", "--text must be text in UTF-8"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert status_of(arguments) == 1
        assert words in capsys.readouterr().err


def test_a_byte_order_mark_is_removed(
    translator: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = []
    for content in (b"the cat\n", b"\xef\xbb\xbfthe cat\r\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="latin-1"))
        assert main(["translate", str(translator), "--longest", "4"]) == 0
        output.append(capsys.readouterr().out)
    assert output[0] == output[1]


def test_missing_streams(translator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate streams closed by `>&-`, `2>&-` and `<&-`."""
    for name in ("stdout", "stderr", "stdin"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, None)
            assert status_of(["translate", str(translator), *(["a cat"] if name != "stdin" else [])]) == 0
            assert status_of(["--help"]) == 0


def regard(*arguments: str, redirected: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a separate process."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "regard", *arguments]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment})


def test_a_locale_without_unicode_reads_and_writes_utf8() -> None:
    ascii_only = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = regard("explain", "dot", "--text", "注意力机制", **ascii_only)
    assert done.returncode == 0 and "注意力机制".encode() in done.stdout and not done.stderr, done.stderr


def test_streams_that_are_closed_or_full() -> None:
    done = regard("--help", redirected=">&-")
    assert done.returncode == 0 and not done.stderr
    if Path("/dev/full").exists():
        done = regard("explain", "dot", redirected="> /dev/full")
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("line 9 is too long")])
def test_an_output_file_keeps_the_results_before_an_error(
    tmp_path: Path, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("earlier\n")
    with pytest.raises(type(error)), output(path):
        raise error
    assert path.read_text() == "earlier\n" and not capsys.readouterr().err
    with pytest.raises(type(error)), output(path) as file:
        print("first", file=file)
        raise error
    assert path.read_text() == "first\n" and capsys.readouterr().err == f"{path} has the results so far.\n"
