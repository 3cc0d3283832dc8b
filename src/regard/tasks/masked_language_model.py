"""A masked language model: a BERT and its vocabulary, from texts with gaps to the tokens that fill them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..attention import AttentionMap
from ..data.documents import Documents
from ..data.text_arguments import check_text
from ..data.wordpiece import WordPiece
from ..models.bert import Bert
from ..models.bert_heads import MaskedTokens, Pretraining
from ..models.huggingface_bert import save_bert
from .block_maps import block_maps
from .model_summary import summary

if TYPE_CHECKING:
    from .evaluation import MaskedScores


@dataclass(frozen=True)
class MaskedLanguageModel:
    """A BERT that predicts masked tokens, and its vocabulary.

    `load` loads a trained one; this one has random weights:

    >>> import tempfile
    >>> from regard.models import BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2), pooler=False)
    >>> model = MaskedLanguageModel(MaskedTokens(bert).eval(), words)
    >>> model
    MaskedLanguageModel(MaskedTokens, 9,395 parameters, vocabulary=35)
    >>> len(model("a [MASK] lowest [MASK]")), len(model.predictions("a [MASK]", top=3)[0])
    (2, 3)
    >>> model.bert is bert, model.head is model.model
    (True, True)
    >>> [m.shape for m in model.maps("a low")]                          # [CLS] a low [SEP]
    [(3, 4, 4), (3, 4, 4)]
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("a low lower\\na new newer\\n")
    >>> sorted(model.evaluate(folder / "text.txt", documents="line"))
    ['accuracy', 'loss']
    >>> model.export(folder / "exported").name
    'exported'
    """

    model: MaskedTokens | Pretraining
    words: WordPiece

    def __repr__(self) -> str:
        return summary(self, self.model, vocabulary=len(self.words))

    @property
    def head(self) -> MaskedTokens:
        """The layers that predict tokens, with the BERT below them."""
        return self.model.masked if isinstance(self.model, Pretraining) else self.model

    @property
    def bert(self) -> Bert:
        """The BERT without its head."""
        return self.head.bert

    def __call__(self, text: str) -> list[str]:
        """Return the most likely token for each [MASK] of a text."""
        return [best[0][0] for best in self.predictions(text, top=1)]

    @torch.inference_mode()
    def predictions(self, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """Return the `top` most likely tokens, with their probabilities, for each [MASK] of a text.

        Raises:
            ValueError: if the text has no [MASK], or is longer than the model can read.
        """
        ids = self._ids(text)
        masked = ids[0] == self.words.mask  # (T,)
        if not bool(masked.any()):
            name = self.words.pieces([self.words.mask])[0]
            raise ValueError(f"masked: text ({text!r}) must contain {name} for each token to predict.")
        probabilities = self.head(ids)[0, masked].float().softmax(-1)  # (M, V)
        best = probabilities.topk(min(top, probabilities.shape[1]))
        return [
            list(zip(self.words.pieces(row), values, strict=True))
            for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    @torch.no_grad()
    def maps(self, text: str) -> list[AttentionMap]:
        """Return the attention map of each block for a text: (H, T, T), with its tokens along both axes."""
        ids = self._ids(text)
        _, maps = self.bert(ids, return_maps=True)
        tokens = self.words.pieces(ids[0].tolist())
        return block_maps(maps, tokens, tokens)

    def evaluate(self, *files: str | Path, documents: Documents = "blank", mask: float = 0.15) -> MaskedScores:
        """Predict masked tokens of text files. Arguments as in `regard train pretrain`."""
        from .evaluation import evaluate_masked_language_model

        return evaluate_masked_language_model(self, files, documents=documents, mask=mask)

    def export(self, folder: str | Path) -> Path:
        """Write a directory that `transformers` loads: BertForMaskedLM, or BertForPreTraining. Return the folder."""
        save_bert(self.model, folder)
        self.words.save(folder)
        return Path(folder)

    def _ids(self, text: str) -> torch.Tensor:
        ids = self.words.encode(check_text("masked", "text", text), longest=2**30).ids
        if len(ids) > self.bert.config.positions:
            raise ValueError(
                f"masked: text ({len(ids)} tokens) must have at most {self.bert.config.positions}. Shorten it."
            )
        return torch.tensor([ids], device=next(self.model.parameters()).device)  # (1, T)
