"""The commands `demo` and `info`, and behaviour shared by all commands."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard import __version__
from regard.attention.native import engine
from regard.commands import date_contest, info
from regard.commands import main as commands_main
from regard.commands.demo_progress import ModelBar, evaluations
from regard.commands.main import COMMANDS, main
from regard.core import assets
from regard.models import Hypothesis
from regard.server.target import Target
from regard.tasks.run_files import read_weights
from regard.tasks.translator import Translator


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Output folder of a demo with a few steps, and its printed output."""
    out, printed = tmp_path_factory.mktemp("demo") / "deep/er", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(date_contest, "PAIRS", 500)
        patch.setattr(date_contest, "TEST", 20)
        patch.setattr(date_contest, "VALID", 20)
        for _ in range(2):  # twice in the same folder
            printed.truncate(0)
            assert main(["demo", "--steps", "3", "--out", str(out)]) == 0
    return out, printed.getvalue()


def test_demo_trains_both_and_names_the_page(demo_run: tuple[Path, str]) -> None:
    out, output = demo_run
    assert "additive attention" in output and "fixed context" in output and "correct, of 20 unseen dates" in output
    assert (out / "dates.html").resolve().as_uri() in output.replace("\n", "")
    assert "<title>Reading dates</title>" in (out / "dates.html").read_text(encoding="utf-8")
    assert min(Image.open(out / "dates.png").size) > 100


def test_both_models_of_the_demo_are_trained_for_the_same_steps(demo_run: tuple[Path, str]) -> None:
    configs = [
        json.loads((demo_run[0] / "dates-run" / name / "config.json").read_text()) for name in date_contest.NAMES
    ]
    assert [config["model"].pop("context") for config in configs] == list(date_contest.NAMES)
    assert len({config.pop("sha256") for config in configs}) == 2  # one per file
    assert configs[0] == configs[1] and configs[0]["training"]["steps"] == 3
    assert configs[0]["training"]["minutes"] is None  # no time limit


def test_the_demo_does_not_depend_on_the_clock(
    demo_run: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_clock: Callable[[Callable[[], float]], None],
) -> None:
    """A machine that is a thousand times slower gives the same weights."""
    monkeypatch.setattr(date_contest, "PAIRS", 500)
    monkeypatch.setattr(date_contest, "TEST", 20)
    monkeypatch.setattr(date_contest, "VALID", 20)
    clock = itertools.count(0, 1000)
    set_clock(lambda: float(next(clock)))
    assert main(["demo", "--steps", "3", "--out", str(tmp_path)]) == 0
    for name in date_contest.NAMES:
        ours, theirs = (read_weights(out / "dates-run" / name) for out in (tmp_path, demo_run[0]))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_demo_names_commands_that_open_its_runs(
    demo_run: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[Target] = []
    monkeypatch.setattr("regard.commands.view.serve", lambda target, *_: opened.append(target) or 0)
    commands = [shlex.split(line) for line in demo_run[1].splitlines() if line.startswith("  regard ")]
    assert [words[1] for words in commands] == ["translate", "explain", "view"]
    for words in commands:
        if words[1] == "explain" and not (assets.FOLDER / "index.html").exists():
            words = words[: words.index("--out")]  # without the page, it prints an outline
        assert main(words[1:]) == 0, words
    assert len(opened) == 1 and opened[0].snapshot.layers
    assert capsys.readouterr().out.splitlines()
    fixed = str(demo_run[0] / "dates-run/fixed")
    date = commands[0][-1]
    assert main(["translate", fixed, date]) == 0 and main(["view", fixed]) == 0
    assert main(["explain", "encoder-decoder", "--run", fixed, "--text", date]) == 0


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr()
    assert all(name in output.out for name in COMMANDS) and not output.err


def test_the_path_of_the_kernels_is_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(info, "description", lambda: f"avx2 ({'/folder' * 12}/_native.so)")
    assert main(["info", "--shape", "4,4"]) == 0
    assert f"{'/folder' * 12}/_native.so" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["demo", "--steps", "0"], "steps (0) must be at least 1; 900 are enough"),
        (["demo", "--steps", "-3"], "steps (-3) must be at least 1; 900 are enough"),
        (["info", "--shape", "8"], "shape ('8') must be two or more sizes that end with queries and width; got 1."),
        (["info", "--shape", "1,x,4"], "shape ('1,x,4') must be integers of at least 1; got 'x'. Try --shape 1,8,"),
        (["info", "--shape", "1,0,4"], "shape ('1,0,4') must be integers of at least 1; got '0'."),
        (["info", "--shape", "4,4", "--keys", "-3"], "keys ('-3') must be integers of at least 1; got '-3'."),
        (["info", "--keys", "3"], "keys (3) must come with the shape of a call. Try --shape 1,8,8192,64."),
        (
            ["info", "--shape", "4,4", "--similarity", "mlp"],
            "similarity ('mlp') must be one of scaled_dot, dot,",
        ),
        (["info", "--shape", "4,4", "--dtype", "int8"], "dtype ('int8') must be one of float32, float64, bfloat16"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["trnaslate"], "regard: error: unknown command trnaslate. Did you mean translate?"),
        (["zzz"], "regard: error: unknown command zzz. regard --help lists them."),
        (["train", "clasify", "x"], "regard train: error: unknown recipe clasify. Did you mean classify?"),
        (["train", "zzz", "x"], "unknown recipe zzz. It is one of translate, language, pretrain, classify."),
        (["translate", "x", "--bem", "3", "Hallo"], "regard translate: error: unrecognized option --bem. Did you mean"),
        (
            ["train", "classify", "x", "--train", ".", "--zzz=1"],
            "RUN --train IMAGES: error: unrecognized option",
        ),
        (["explain", "bahdanu"], "argument MECHANISM: unknown mechanism bahdanu. Did you mean bahdanau?"),
        (["explain", "runs/x"], "a trained model is passed with --run."),
        (["translate", "x", "--zzz=1"], "regard translate: error: unrecognized option --zzz. Put a text after --."),
        (["evaluate", "x", "y", "--zzz=1"], "unrecognized option --zzz. regard evaluate --help lists all options."),
    ],
)
def test_a_typing_error_gets_a_suggestion(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_warnings_are_messages_without_a_source_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(options: object) -> int:
        source = Path(commands_main.__file__).with_name("info.py")
        print(warnings.formatwarning("fonts: 你 has no font.", UserWarning, str(source), 3), end="")
        print(warnings.formatwarning("info: no font.", UserWarning, str(source), 3), end="")
        print(warnings.formatwarning("of torch", UserWarning, "/lib/torch/x.py", 3), end="")
        return 0

    before = warnings.formatwarning
    monkeypatch.setattr(COMMANDS["info"][0], "run", warn)
    assert main(["info"]) == 0 and warnings.formatwarning is before
    output = capsys.readouterr().out
    assert (
        output.startswith("regard info: fonts: 你 has no font.\nregard info: no font.\n")
        and "/lib/torch/x.py:3: UserWarning" in output
    )


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--steps", "1", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(date_contest, "run", interrupted)
    assert main(["demo"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_an_interrupted_demo_is_resumed(
    demo_run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("PAIRS", 500), ("TEST", 20), ("VALID", 20)):
        monkeypatch.setattr(date_contest, name, value)
    advance = ModelBar.advance

    def interrupt(bar: ModelBar, step: int, done: float, seconds: float, *, evaluation: float = 0.0) -> None:
        advance(bar, step, done, seconds, evaluation=evaluation)
        if step == 2 and (tmp_path / "dates-run/fixed").exists():
            signal.raise_signal(signal.SIGINT)

    command = ["demo", "--steps", "3", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(ModelBar, "advance", interrupt)
        assert main(command) == 130
    output = capsys.readouterr().out
    assert "stopped after step 2" in output and "Run the same command again to resume." in output
    first = tmp_path / "dates-run/additive/model.safetensors"
    stamp = first.stat().st_mtime_ns
    assert main(command) == 0
    assert first.stat().st_mtime_ns == stamp  # it was finished, and is not trained again
    for name in date_contest.NAMES:
        ours, theirs = (read_weights(out / "dates-run" / name) for out in (tmp_path, demo_run[0]))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        steps = [record["step"] for record in evaluations(tmp_path / "dates-run" / name)]
        assert steps == [1, 2, 3]


def test_a_demo_with_other_data_or_settings_replaces_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PAIRS", 200), ("TEST", 5), ("VALID", 20)):
        monkeypatch.setattr(date_contest, name, value)
    command = ["demo", "--steps", "1", "--out", str(tmp_path)]
    weights = tmp_path / "dates-run/fixed/model.safetensors"
    assert main(command) == 0
    contents = [weights.read_bytes()]
    assert main([*command, "--seed", "1"]) == 0
    contents.append(weights.read_bytes())
    monkeypatch.setattr(date_contest, "PAIRS", 210)  # as after an update of regard
    assert main([*command, "--seed", "1"]) == 0
    contents.append(weights.read_bytes())
    assert len(set(contents)) == 3


def test_demo_with_empty_translations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(date_contest, "PAIRS", 200)
    monkeypatch.setattr(date_contest, "TEST", 5)
    monkeypatch.setattr(date_contest, "VALID", 20)
    search = Translator.search
    empty = Hypothesis((), 0.0)
    monkeypatch.setattr(Translator, "search", lambda *args, **kwargs: [[empty] for _ in search(*args, **kwargs)])
    assert main(["demo", "--steps", "1", "--out", str(tmp_path / "out")]) == 0
    assert "no output" in capsys.readouterr().out and (tmp_path / "out/dates.png").exists()


def test_texts_may_come_before_and_after_options(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[list[str]] = []
    monkeypatch.setattr("regard.commands.translate.run", lambda options: texts.append(options.texts) or 0)
    for words in (["a", "b"], ["--beam", "2", "a", "b"], ["a", "--beam", "2", "b"], ["a", "b", "--beam", "2"]):
        assert main(["translate", "RUN", *words]) == 0
    assert texts == [["a", "b"]] * 4
    for wrong in (["translate", "RUN", "--beams", "2", "a"], ["info", "more"]):
        with pytest.raises(SystemExit):
            main(wrong)


def test_a_closed_pipe_is_not_an_error() -> None:
    command = [sys.executable, "-m", "regard", "train", "translate", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # like `| head`
    assert process.stderr.read() == b"" and process.wait() == 0
    process.stderr.close()


def test_info_shows_the_backend_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    assert __version__ in output and torch.__version__ in output
    rows = [line.split() for line in output.splitlines()]
    assert any(row[:2] == ["causal", "native" if engine.module else "torch"] for row in rows)
    assert engine.module is None or engine.module.isa() in output
    assert any(row[:2] == ["additive", "native" if engine.module else "blocked"] for row in rows)
    assert any(row[:2] == ["callable", "blocked"] for row in rows)


SHAPE = ["info", "--shape", "1,8,8192,64"]


@pytest.mark.parametrize(
    "arguments,wanted",
    [
        (SHAPE, ["1×8×8192×64, 8192 keys, scaled_dot, float32, forward", "auto chooses "]),
        ([*SHAPE, "--keys", "5", "--causal", "--grad"], [", 5 keys, scaled_dot, causal, float32, with gradients"]),
        ([*SHAPE, "--dtype", "float64"], ["auto chooses torch: SDPA serves it; native: ", "blocked    supported"]),
        ([*SHAPE, "--similarity", "bilinear"], ["bilinear"]),
        ([*SHAPE, "--similarity", "additive"], ["torch      no: SDPA supports only dot products"]),
    ],
)
def test_info_of_a_call(arguments: list[str], wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    output = " ".join(capsys.readouterr().out.replace("\n", " ").split())
    assert all(" ".join(part.split()) in output for part in wanted), output


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
def test_info_shows_what_native_does_not_support(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHAPE, "--dtype", "float64"]) == 0
    assert "no: it computes in float32, not in float64" in capsys.readouterr().out
    assert main([*SHAPE, "--similarity", "additive"]) == 0
    assert "auto chooses native: the native kernels serve it." in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [*([name] for name in COMMANDS), *(["data", kind] for kind in ("dates", "tatoeba"))]
)
def test_every_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main([*command, "--help"]) == 0
    output = capsys.readouterr().out
    assert f"  regard {' '.join(command)}" in output.partition("\nexample")[2]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, output in ((["--help"], "demo"), (["--version"], __version__), (["demo", "--help"], "--out")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0 and output in capsys.readouterr().out
