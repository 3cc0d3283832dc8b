"""Mechanisms and equations in words have a Chinese translation, and no translation is of one that is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from regard.explain import MECHANISMS, box_names

PAGE = Path(__file__).parents[2] / "web/src/explain"


def test_equations_in_words_have_a_translation() -> None:
    tables = (box_names.CALLS, box_names.STAGES, box_names.MODULES, box_names.CAUSAL, box_names.PARTS)
    equations = {name.equation for table in tables for name in table.values()}
    translated = json.loads((PAGE / "equations.zh.json").read_text(encoding="utf-8"))
    assert {each for each in equations if re.search(r"[a-z’'-]{3,},? [a-z]{3,}", each)} <= set(translated) <= equations


def test_mechanisms_have_a_chinese_name() -> None:
    names = json.loads((PAGE / "mechanisms.zh.json").read_text(encoding="utf-8"))
    assert list(names) == [name for name in MECHANISMS if name not in ("transformer", "bert", "gpt")]  # as in English
