"""Chat templates: the text that a model trained on conversations expects around messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, str]
"""{"role": "user", "content": "…"}; other roles are "system" and "assistant"."""


def render_chat(
    template: str, messages: Sequence[Message], special_tokens: Mapping[str, str] | None = None, *, answer: bool = True
) -> str:
    """Return the text of a conversation, up to the beginning of the answer.

    The template comes from the model directory and is not trusted. It runs in a sandbox: it can read the messages, but
    neither attributes of Python objects nor files.

    Args:
        template: in the language of Jinja, as in the `chat_template` of a Hugging Face tokenizer.
        messages: with "role" and "content" each.
        special_tokens: variables of the template such as bos_token and eos_token.
        answer: whether the text ends with the beginning of the assistant's answer.

    Raises:
        ValueError: if the template is invalid, or refuses these messages.

    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\\n{% endfor %}<assistant>"
    >>> render_chat(template, [{"role": "user", "content": "Hello"}])
    '<user>Hello\\n<assistant>'
    """
    try:
        text = _compiled(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=answer,
            **(special_tokens or {}),
        )
    except SecurityError as error:
        raise ValueError(f"chat: chat_template must only read the messages; got {error}.") from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"chat: chat_template must accept {len(messages)} messages ({', '.join(m['role'] for m in messages)}); got "
            f"{type(error).__name__}: {error}."
        ) from None
    return text


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    # these settings and functions are part of the format
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # the filter of Jinja would escape < and >


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
