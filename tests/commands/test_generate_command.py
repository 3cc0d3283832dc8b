"""The command `regard generate`: streaming, batches, JSON, maps, and errors without a traceback."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.commands.main import main
from regard.data import EOS, Characters
from regard.models import GPT, GPTConfig
from regard.models.sampling import Sampling
from regard.tasks.text_generation import TextGenerator

LETTERS = Characters("abcdefgh \n你好世界")
SHORT = ["--tokens", "9", "--temperature", "0"]


def build(**changes: Any) -> TextGenerator:
    torch.manual_seed(0)
    sizes = {"vocabulary": len(LETTERS), "width": 12, "heads": 3, "layers": 2, "positions": 64, "tied": False}
    model = GPT(GPTConfig(**{**sizes, **changes})).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        model.vocabulary.weight[: EOS + 1] = 0  # special tokens are never the best
    return TextGenerator(model, LETTERS)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> TextGenerator:
    """The model that the command opens, independent of its path."""
    one = build()
    monkeypatch.setattr("regard.tasks.open_language_model.open_language_model", lambda path: one)
    return one


def expected(generator: TextGenerator, prompts: list[str], **options: Any) -> list[str]:
    sampling = Sampling(temperature=0.0)
    return [one.text for one in generator.generate(prompts, sampling, max_new_tokens=9, **options)]


PROMPTS = ["abc", "你好", "h g"]


def test_prompts_lines_and_files_give_the_same(
    generator: TextGenerator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = "".join(f"{text}\n" for text in expected(generator, PROMPTS))
    assert main(["generate", "RUN", *PROMPTS, *SHORT]) == 0
    assert capsys.readouterr().out == output
    lines = "".join(f"{prompt}\n" for prompt in PROMPTS)
    for batch in ("1", "2", "8"):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main(["generate", "RUN", *SHORT, "--batch", batch]) == 0
        assert capsys.readouterr().out == output
    (tmp_path / "a.txt").write_text("abc\r\n你好\r\n", encoding="utf-8", newline="")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"h g"))
    files = ["--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.gz")]
    assert main(["generate", "RUN", *files, *SHORT, "--out", str(tmp_path / "new/out.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new/out.txt").read_text(encoding="utf-8") == output


def test_a_folder_as_output_file_is_refused_before_generating(
    generator: TextGenerator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "generate", None)
    monkeypatch.setattr(generator, "stream", None)
    assert main(["generate", "RUN", "abc", *SHORT, "--out", str(tmp_path)]) == 1
    error = f"regard generate: {tmp_path} must be a file; got a folder. Give the path of a file.\n"
    assert capsys.readouterr().err == error


def test_options_reach_the_sampling(generator: TextGenerator, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--temperature",
        "0.7",
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--min-p",
        "0.05",
        "--repetition-penalty",
        "1.1",
    ]
    sampling = Sampling(0.7, 5, 0.9, 0.05, 1.1, 3)
    assert main(["generate", "RUN", "abc", "--tokens", "20", *options, "--seed", "3"]) == 0
    assert capsys.readouterr().out == generator.generate("abc", sampling, max_new_tokens=20)[0].text + "\n"
    assert main(["generate", "RUN", "abc", "--seed", "none", "--tokens", "2"]) == 0


@pytest.mark.parametrize("batch", ["1", "2"])
def test_json_has_one_object_per_prompt(
    generator: TextGenerator, batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = expected(generator, ["你好"])
    assert main(["generate", "RUN", "你好", "abc", *SHORT, "--json", "--batch", batch, "--stop", text[4:6]]) == 0
    output = capsys.readouterr().out
    assert "你好" in output  # not escaped
    one, other = map(json.loads, output.splitlines())
    assert one["prompt"] == "你好" and one["reason"] == "stop" and one["text"] == text[: text.index(text[4:6])]
    assert "".join(one["tokens"]) == text[: text.index(text[4:6]) + 2]
    assert len(one["log_probabilities"]) == len(one["tokens"]) and max(one["log_probabilities"]) < 0
    assert other["reason"] == "length" and len(other["tokens"]) == 9


def test_runners_up_are_printed_with_their_probabilities(
    generator: TextGenerator, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = list(generator.stream("abc", Sampling(temperature=0.0), max_new_tokens=9, runners_up=2))
    assert main(["generate", "RUN", "abc", *SHORT, "--runners-up", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    for line, chunk in zip(lines, chunks, strict=True):
        for token, probability in chunk.runners_up:
            assert f"{probability:.3f} {token!r}" in line
        assert line.split()[0] == f"{torch.tensor(chunk.log_probability).exp():.3f}"
    assert main(["generate", "RUN", "abc", *SHORT, "--runners-up", "2", "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["runners_up"]
    assert [[token for token, _ in one] for one in stored] == [[t for t, _ in chunk.runners_up] for chunk in chunks]


def test_each_token_is_flushed_before_the_next_is_computed(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Output(io.StringIO):
        encoding = "utf-8"

        def flush(self) -> None:
            events.append(self.getvalue())

    step = generator.model.step

    def recorded(tokens: torch.Tensor, state: Any) -> torch.Tensor:
        events.append("step")
        return step(tokens, state)

    monkeypatch.setattr(generator.model, "step", recorded)
    monkeypatch.setattr("sys.stdout", Output())
    assert main(["generate", "RUN", "abc", *SHORT]) == 0
    (text,) = expected(generator, ["abc"])
    order = [text[:1]]
    for count in range(2, 10):
        order += ["step", text[:count]]
    assert events[: len(order)] == order


def test_a_generation_is_saved_as_one_map_per_layer(
    generator: TextGenerator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, picture = tmp_path / "new/maps.safetensors", tmp_path / "heads.png"
    options = ["--watch", str(capture), "--plot", str(picture)]
    assert main(["generate", "RUN", "abc", "你好", *SHORT, *options]) == 0
    texts = expected(generator, ["abc", "你好"])
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts)  # watching does not change it
    for path, prompt, text in zip((capture, tmp_path / "new/maps-2.safetensors"), ("abc", "你好"), texts, strict=True):
        seen = regard.load_capture(path)
        read = (prompt + text)[:-1]
        assert seen.names == ["blocks.0.attention", "blocks.1.attention"]
        with torch.no_grad():
            _, maps = generator.model(torch.tensor([LETTERS.encode(read)]), return_maps=True)
        for m, other in zip(seen, maps, strict=True):
            assert m.query_tokens == m.key_tokens == list(read)
            assert torch.allclose(m.dense(), other.dense(), atol=1e-5)
    assert picture.stat().st_size > 1000 and (tmp_path / "heads-2.png").exists()


class Interrupted(TextGenerator):
    """Presses Ctrl-C at the third step of a prompt that begins with b."""

    def encode(self, prompt: str, *, chat: bool = False) -> list[int]:
        self.model.left = 3 if prompt.startswith("b") else 999
        return super().encode(prompt, chat=chat)


def test_an_interrupted_text_stays_printed(
    generator: TextGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, step = Interrupted(generator.model, LETTERS), generator.model.step

    def interrupting(tokens: torch.Tensor, state: Any) -> torch.Tensor:
        one.model.left -= 1
        if not one.model.left:
            raise KeyboardInterrupt
        return step(tokens, state)

    monkeypatch.setattr(generator.model, "step", interrupting)
    monkeypatch.setattr("regard.tasks.open_language_model.open_language_model", lambda path: one)
    assert main(["generate", "RUN", "abc", "ba", "a", *SHORT]) == 130
    printed = capsys.readouterr()
    first, second = expected(one, ["abc"])[0], next(iter(expected(build(), ["ba"])))
    assert printed.out == f"{first}\n{second[:3]}" and "regard: stopped." in printed.err
    assert main(["generate", "RUN", "abc", "ba", *SHORT, "--out", str(tmp_path / "out.txt")]) == 130
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == f"{first}\n{second[:3]}"


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.commands.test_generate_command import build; from regard.commands.main import main\n"
        "import regard.tasks.open_language_model as place\n"
        "place.open_language_model = lambda path: build(position='rotary', width=24, window=4)\n"
        "sys.exit(main(['generate', 'RUN', 'abc', '--tokens', '100000']))"
    )
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    ) as one:
        assert one.stdout is not None and one.stderr is not None
        assert one.stdout.read(1)
        one.stdout.close()
        assert one.wait(60) == 0
        assert one.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ["a", "--tokens", "0", "--batch", "0"],
            ["tokens (0) must lie in 1…1,048,576", "batch (0) must lie in 1…1,024"],
        ),
        (["a", "--file", "x"], ["prompts (1) and files (1) must not both be given", "file (x) must exist"]),
        (["--file", "."], ["file (.) must be a file; got a folder"]),
        (["a", "--stop", ""], ["stop ('') must not be empty"]),
        (["a", "--plot", "a.gif"], ["plot (a.gif) must end in .png, .svg or .pdf"]),
        (["a", "--watch", "a.npz"], ["watch (a.npz) must end in .safetensors"]),
        (["a", "--batch", "2", "--runners-up", "3"], ["batch (2) must be 1 with --runners-up"]),
        (["a", "--runners-up", "-1"], ["runners-up (-1) must lie in 0…1,024"]),
        (
            ["a", "--top-p", "0", "--temperature", "-1"],
            ["top_p (0.0) must lie in (0, 1]", "temperature (-1.0) must be"],
        ),
        (["a", "--chat"], ["chat: the model must have a chat template"]),
        (["a" * 65], ["prompt 1 (65 tokens) must have at most 64"]),
    ],
)
def test_wrong_values_are_named(
    generator: TextGenerator, arguments: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "RUN", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("regard generate: ") and all(message in error for message in messages)


def test_options_that_do_not_parse_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--seed", "x"], ["--top-k", "1.5"], ["--unknown"]):
        with pytest.raises(SystemExit) as ended:
            main(["generate", "RUN", "a", *arguments])
        assert ended.value.code == 2
    assert "invalid number or none value: 'x'" in capsys.readouterr().err


def test_a_missing_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path / "none"), "a"]) == 1
    assert (
        f"path ({tmp_path / 'none'}) must be the folder of a run or of a Hugging Face model" in capsys.readouterr().err
    )


def test_bytes_that_are_not_utf8_are_named(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\nb\xffa\n")))
    assert main(["generate", "RUN", *SHORT]) == 1
    printed = capsys.readouterr()
    assert printed.out == expected(generator, ["abc"])[0] + "\n"
    assert "line 2 of the standard input must be text in UTF-8; got byte 0xff" in printed.err


@pytest.mark.parametrize("option", ["--watch", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_the_generation(
    generator: TextGenerator, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix = {"--watch": ".safetensors", "--plot": ".png"}[option]
    (tmp_path / "file").touch()
    (tmp_path / f"folder{suffix}").mkdir()
    below, folder = tmp_path / "file" / f"a{suffix}", tmp_path / f"folder{suffix}"
    for path, message in ((below, f"got the file {tmp_path / 'file'}"), (folder, "must be a file; got a folder")):
        assert main(["generate", "RUN", "a", *SHORT, option, str(path)]) == 1
        out, error = capsys.readouterr()
        assert out == "" and error.startswith(f"regard generate: {path} must be ") and message in error
