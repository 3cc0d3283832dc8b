"""Text from a language model: streaming, stop strings, partial characters and chat templates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from regard.data import BOS, EOS, UNK, Characters, Subwords
from regard.models import GPT, GPTConfig
from regard.models.sampling import Sampling
from regard.models.token_decoder import Decoder
from regard.tasks.chat_template import render_chat
from regard.tasks.text_generation import TextGenerator
from regard.tasks.text_stream import TextStream

GREEDY = Sampling(temperature=0.0)
LETTERS = Characters("abcdefgh \n你好世界")


def model_for(vocabulary: Any) -> GPT:
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "layers": 2, "positions": 64}
    model = GPT(GPTConfig(vocabulary=len(vocabulary), tied=False, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        model.vocabulary.weight[: EOS + 1] = 0  # special tokens are never the best
    return model


@pytest.fixture
def generator() -> TextGenerator:
    return TextGenerator(model_for(LETTERS), LETTERS)


def test_characters_that_the_model_did_not_learn_are_named(generator: TextGenerator) -> None:
    with pytest.warns(UserWarning, match="prompt has characters that the model reads as <unk>: 秋夜."):
        assert generator.encode("你秋夜秋") == [*LETTERS.encode("你"), UNK, UNK, UNK]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generator.encode("你好")


class Bytes:
    """A vocabulary of bytes, with special tokens and a template: as byte-level BPE has."""

    begin_id = 256
    end_ids = frozenset([257])
    chat_template = "{{ bos_token }}{% for m in messages %}[{{ m['content'] | trim }}]{% endfor %}"

    def __init__(self, fallback: bool = False) -> None:
        self.fallback = fallback
        self.special_tokens = {"bos_token": "<s>", "eos_token": "</s>"}

    def __len__(self) -> int:
        return 258

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        start = [self.begin_id] if special or text.startswith("<s>") else []
        return start + list(text.removeprefix("<s>").encode())

    def decode(self, ids: Iterable[int]) -> str:
        data = bytes(id for id in ids if id < 256)
        if not self.fallback:
            return data.decode("utf-8", errors="replace")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:  # one replacement per byte, as the byte fallback of tokenizers
            return data[: error.start].decode() + "\ufffd" * (len(data) - error.start)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [f"<{id}>" for id in ids]


def streamed(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [*(stream.add(id) for id in ids), stream.finish()]


@pytest.mark.parametrize("fallback", [False, True])
def test_a_character_is_held_back_until_its_bytes_are_complete(fallback: bool) -> None:
    ids = list("a你😀b".encode())
    chunks = streamed(TextStream(Bytes(fallback)), ids)
    assert chunks == ["a", "", "", "你", "", "", "", "😀", "b", ""]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    assert streamed(TextStream(Bytes()), list("a你".encode())[:-1]) == ["a", "", "", "\ufffd"]
    broken = [0xFF] * 200
    assert "".join(streamed(TextStream(Bytes()), broken)) == "\ufffd" * 200


def test_a_character_may_begin_in_the_prompt() -> None:
    ids = list("你".encode())
    assert streamed(TextStream(Bytes(), ids[:2]), ids[2:]) == ["你", ""]


def test_long_streams_equal_the_decoded_text() -> None:
    text = "Ein Baum 你好世界 😀 " * 20
    assert "".join(streamed(TextStream(Bytes()), list(text.encode()))) == text
    subwords = Subwords.train(["a low lower lowest", "a new newer newest"] * 9, 24)
    words = "newest low a lower new " * 12
    prompt = subwords.encode("a low")
    everything = subwords.encode("a low " + words)
    stream = TextStream(subwords, prompt)
    assert "a low" + "".join(streamed(stream, everything[len(prompt) :])) == subwords.decode(everything)


@pytest.mark.parametrize(
    ("stop", "text", "chunks"),
    [
        (["cd"], "abcdef", ["a", "b", "", "", "", "", ""]),
        (["cd"], "acecd", ["a", "", "ce", "", "", ""]),  # c could begin the stop string, and then did not
        (["aab"], "aaab", ["", "", "a", "", ""]),  # a match that begins within a failed one
        (["cd", "abc"], "ab", ["", "", "ab"]),  # nothing follows: the held text is returned
        (["b", "abc"], "abc", ["", "a", "", ""]),  # the shorter one is complete first
        ([], "ab", ["a", "b", ""]),
    ],
)
def test_text_that_may_begin_a_stop_string_is_held_back(stop: list[str], text: str, chunks: list[str]) -> None:
    stream = TextStream(LETTERS, stop=stop)
    assert streamed(stream, LETTERS.encode(text)) == chunks
    assert stream.stopped == any(one in text for one in stop)


def test_a_stream_gives_the_text_of_a_batch(generator: TextGenerator) -> None:
    prompts = ["abc", "你好", "h gfe dcba", ""]
    sampling = Sampling(seed=4)
    results = generator.generate(prompts, sampling, max_new_tokens=20)
    for prompt, one in zip(prompts, results, strict=True):
        chunks = list(generator.stream(prompt, sampling, max_new_tokens=20))
        assert "".join(chunk.text for chunk in chunks) == one.text
        assert tuple(chunk.token for chunk in chunks) == one.tokens
        assert (one.prompt, chunks[-1].reason) == (prompt, one.reason)
        assert [chunk.reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len({one.text for one in results}) == 4
    assert any(set(one.text) & set("你好世界") for one in results)


def test_stop_strings_straddle_tokens(generator: TextGenerator) -> None:
    (free,) = generator.generate("abc", GREEDY, max_new_tokens=20)
    stop = free.text[6:9]
    expected = free.text[: free.text.index(stop)]
    (one,) = generator.generate(["abc"], GREEDY, max_new_tokens=20, stop=["nowhere", stop])
    assert (one.text, one.reason) == (expected, "stop")
    chunks = list(generator.stream("abc", GREEDY, max_new_tokens=20, stop=[stop]))
    assert "".join(chunk.text for chunk in chunks) == expected
    assert chunks[-1].reason == "stop" and len(chunks) == len(expected) + 3
    both = generator.generate(["abc", "abc"], GREEDY, max_new_tokens=len(expected) + 3, stop=[stop])
    assert [one.reason for one in both] == ["stop", "stop"]  # although the length is reached at the same token


def test_an_end_token_is_not_part_of_the_text() -> None:
    vocabulary = Bytes()
    generator = TextGenerator(Scripted([*"好a".encode(), 257]), vocabulary)
    (one,) = generator.generate("x", GREEDY, max_new_tokens=9)
    assert (one.text, one.reason, one.tokens[-1]) == ("好a", "end", "<257>")
    (cut,) = TextGenerator(Scripted([*"a好".encode()]), vocabulary).generate("x", GREEDY, max_new_tokens=3)
    assert (cut.text, cut.reason) == ("a\ufffd", "length")


class Scripted(Decoder[Any]):
    """A decoder that generates given tokens, and keeps the prompt it read."""

    longest = None

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def begin(self, ids: torch.Tensor, lengths: Any = None, *, capacity: int = 64) -> tuple[Any, torch.Tensor]:
        self.prompt, self.count = ids[0].tolist(), 0
        return self, self.step(ids[:, 0], self)

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        self.count += 1
        return torch.nn.functional.one_hot(torch.tensor([self.tokens[self.count - 1]]), 258) * 9.0


def test_special_tokens_come_from_the_vocabulary() -> None:
    decoder = Scripted([257] * 9)
    generator = TextGenerator(decoder, Bytes())
    generator.generate("ab", GREEDY)
    assert decoder.prompt == [256, 97, 98]
    generator.generate("ab", GREEDY, chat=True)
    assert decoder.prompt == [256, *b"[ab]"]  # the template has the begin token: it is not added twice
    assert TextGenerator(decoder, LETTERS).encode("") == [BOS]
    assert TextGenerator(decoder, LETTERS).end_ids == {EOS}


def test_chunks_report_runners_up(generator: TextGenerator) -> None:
    chunk = next(generator.stream("abc", GREEDY, runners_up=2))
    assert len(chunk.runners_up) == 2
    (first, p), (second, q) = chunk.runners_up
    assert len({chunk.token, first, second}) == 3
    assert float(torch.tensor(chunk.log_probability).exp()) >= p >= q > 0
    assert LETTERS.pieces([chunk.id]) == [chunk.token]


def test_a_branch_continues_the_text(generator: TextGenerator) -> None:
    steps = generator.stream("abc", GREEDY, max_new_tokens=8)
    texts = [chunk.text for chunk in steps]
    token = LETTERS.encode("世")[0]
    before = steps.branch(4, token)
    assert before == "".join(texts[:4])
    later = "".join(chunk.text for chunk in steps)
    (fresh,) = generator.generate("abc" + before + "世", GREEDY, max_new_tokens=3)
    assert later == "世" + fresh.text
    steps.close()
    assert list(steps) == []


def test_wrong_arguments_are_named(generator: TextGenerator) -> None:
    for stop in ("ab", ["a", ""]):
        with pytest.raises(ValueError, match="must be a list of strings, none of them empty"):
            generator.generate("a", stop=stop)
    assert generator.generate([]) == []
    with pytest.raises(ValueError, match="prompt 1 \\(65 tokens\\) must have at most 64"):
        generator.generate("a" * 65)
    generator.begin_id = None
    with pytest.raises(ValueError, match=r"prompt \(''\) must not be empty: the vocabulary has no begin token"):
        generator.generate("")
    with pytest.raises(ValueError, match="the model must have a chat template; got a vocabulary without one"):
        generator.generate("a", chat=True)


CHATML = (
    "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}\n{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, <b>世界</b>"}]


def test_templates_render_as_in_transformers() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    templates = [
        CHATML,
        "{{ messages | tojson }}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}x{% endfor %}",
    ]
    for template in templates:
        for answer in (True, False):
            (expected,), _ = utils.render_jinja_template(
                [MESSAGES], chat_template=template, add_generation_prompt=answer
            )
            assert render_chat(template, MESSAGES, answer=answer) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "must accept 2 messages (system, user); got TemplateSyntaxError: Expected an expression"),
        ("{{ raise_exception('No system role') }}", "got TemplateError: No system role"),
        ("{{ nothing.name }}", "got UndefinedError: 'nothing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "must only read the messages; got access to attribute '__class__'"),
        ("{% if messages.append(1) %}{% endif %}", "must only read the messages; got "),
        ("{{ 1 // 0 }}", "got ZeroDivisionError"),
    ],
)
def test_invalid_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        render_chat(template, MESSAGES)
    assert str(error.value).startswith("chat: chat_template must ") and message in str(error.value)
