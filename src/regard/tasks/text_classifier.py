"""A text classifier: a model and its vocabulary, from texts to class probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from ..attention import AttentionMap
from ..core.messages import few
from ..data.bare_text import BareText
from ..data.text_arguments import check_text, listed_texts
from ..data.text_batches import padded_batches, padded_rows
from ..data.wordpiece import WordPiece
from ..models.bert_heads import SequenceClassifier
from ..models.gpt_heads import LastTokenClassifier
from ..models.huggingface_bert import save_bert
from .block_maps import block_maps
from .model_summary import summary

if TYPE_CHECKING:
    from .evaluation import ClassificationScores


@dataclass(frozen=True)
class TextClassifier:
    """A classification model on a BERT or GPT, and its vocabulary.

    Texts are classified in batches of similar length. Results are in the order of the inputs. `load_text_classifier`
    loads a trained one; this one has random weights:

    >>> from regard.models import Bert, BertConfig
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2))
    >>> classifier = TextClassifier(SequenceClassifier(bert, ["old", "new"]).eval(), words)
    >>> classifier
    TextClassifier(SequenceClassifier, 9,362 parameters, labels=(old, new), longest=512)
    >>> classifier.labels, tuple(classifier.probabilities(["a low", "newest", "a new"]).shape)
    (('old', 'new'), (3, 2))
    >>> classifier("a low") in classifier.labels, len(classifier(["a low", "newest"]))
    (True, 2)
    >>> [m.shape for m in classifier.maps("a low")]                     # [CLS] a low [SEP]
    [(3, 4, 4), (3, 4, 4)]
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.tsv").write_text("a low\\told\\na new\\tnew\\n")
    >>> classifier.evaluate(folder / "texts.tsv")["examples"], classifier.export(folder / "exported").name
    (2, 'exported')
    """

    model: SequenceClassifier | LastTokenClassifier
    words: WordPiece | BareText
    longest: int = 512
    """Maximum number of tokens of a text. Longer texts are truncated."""

    def __repr__(self) -> str:
        return summary(self, self.model, labels=f"({few(self.labels)})", longest=self.longest)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.model.labels

    @overload
    def __call__(self, texts: str) -> str: ...  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
    @overload
    def __call__(self, texts: Sequence[str]) -> list[str]: ...
    def __call__(self, texts: str | Sequence[str]) -> str | list[str]:
        """Return the most likely label of a text, or of each of several texts.

        Raises:
            ValueError: if a text is empty; the message gives its number.
        """
        if isinstance(texts, str):
            return self([texts])[0]
        return [self.labels[index] for index in self.probabilities(texts).argmax(1).tolist()]

    @torch.no_grad()
    def maps(self, text: str) -> list[AttentionMap]:
        """Return the attention map of each block for a text: (H, T, T), with its tokens along both axes."""
        ids = self.words.encode(check_text("classify", "text", text), longest=self.longest).ids
        if not ids:
            raise ValueError(f"classify: text ({text!r}) must not be empty.")
        _, maps = self.model(torch.tensor([ids], device=next(self.model.parameters()).device), return_maps=True)
        tokens = self.words.pieces(ids)
        return block_maps(maps, tokens, tokens)

    def evaluate(
        self, file: str | Path, *, text_column: str = "", label_column: str = "", header: bool | None = None
    ) -> ClassificationScores:
        """Classify labelled texts and compare with their labels: accuracy, F1 and the confusion matrix.

        Args:
            file: a .tsv, .csv or .jsonl file, as in `regard train classify`.
            text_column: column of the text; by default the one named text or sentence.
            label_column: column of the label; by default the one named label.
            header: whether the first line of a .tsv file names its columns. By default, known names are detected.
        """
        from .evaluation import evaluate_text_classifier

        return evaluate_text_classifier(self, file, text_column=text_column, label_column=label_column, header=header)

    def export(self, folder: str | Path) -> Path:
        """Write a directory that `transformers` loads as a BertForSequenceClassification. Return the folder.

        Raises:
            ValueError: if the model is a GPT, or its pooling does not exist there.
        """
        if not isinstance(self.words, WordPiece):
            raise ValueError(
                "export: model must be a classifier on a BERT; got one on a GPT, which reads its last token. Fine-tune "
                "a BERT (--from) to export it."
            )
        save_bert(self.model, folder)
        self.words.save(folder)
        return Path(folder)

    @torch.inference_mode()
    def probabilities(self, texts: str | Sequence[str], *, tokens: int = 4096) -> Tensor:
        """Return p(class | text), (N, C), in the order of `labels`; (C,) for a single string.

        Raises:
            ValueError: if a text is empty; the message gives its number.
        """
        if isinstance(texts, str):
            return self.probabilities([texts], tokens=tokens)[0]
        texts = listed_texts("classify", texts)
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise ValueError(f"classify: text {number} ({text!r}) must not be empty.")
        device = next(self.model.parameters()).device
        ids = [encoding.ids for encoding in self.words.encode_all(texts, longest=self.longest)]
        probabilities = torch.empty(len(ids), len(self.labels))
        for indices in padded_batches([len(sequence) for sequence in ids], tokens):
            rows, lengths = padded_rows([ids[index] for index in indices], self.words.pad, device)  # (B, T), (B,)
            probabilities[indices] = self.model(rows, lengths).float().softmax(1).cpu()
        return probabilities


Classifier = TextClassifier
"""Former name of `TextClassifier`."""
