"""Equations that are written in words have a Chinese translation, and no translation is of an equation that is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from regard.explain import box_names

STORED = Path(__file__).parents[2] / "web/src/explain/equations.zh.json"


def test_equations_in_words_have_a_translation() -> None:
    tables = (box_names.CALLS, box_names.STAGES, box_names.MODULES, box_names.CAUSAL, box_names.PARTS)
    equations = {name.equation for table in tables for name in table.values()}
    translated = json.loads(STORED.read_text(encoding="utf-8"))
    assert {each for each in equations if re.search(r"[a-z’'-]{3,},? [a-z]{3,}", each)} <= set(translated) <= equations
