"""A model directory of Hugging Face as a target: read by `transformers`, watched while it reads a text or an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import ByteLevel
from torch import Tensor, nn

from ..core.json_files import read_json_object
from ..models.huggingface_vit import scale_of
from .guard import Refused
from .target import Shown, Target, brief, shown

TOKENS = 131_072
"""Tokens that a model is given from the command line; a page may send LESS."""
LESS = 16_384
WRITTEN = 128
"""Tokens that an encoder-decoder writes."""


class Model(Target):
    """A model, and what it looks at while it reads."""

    def __init__(self, folder: Path, config: Mapping[str, Any], text: str | None, image: Path | None) -> None:
        self.folder, self.title = folder, folder.resolve().name
        sees = "patch_size" in config and "vocab_size" not in config
        wanted, given = ("--image FILE", image) if sees else ("--text or --file", text)
        if given is None or (text is not None and image is not None):
            raise ValueError(
                f"view: {folder} must be given {wanted}, and nothing else: it is a {config['model_type']}."
            )
        self.model, self.tokenizer = _load(folder, config, sees)
        if sees:
            assert image is not None
            self.shown = self._image(image, config)
        else:
            assert text is not None
            self.can = ("run",)
            try:
                self.shown = self._text(text, TOKENS)
            except Refused as error:
                raise ValueError(f"view: {error.words}") from error

    def run(self, text: str) -> Shown:
        if not self.can:
            raise Refused(404, "this target must be a model of text to read another; it is one of images.")
        return self._text(text, LESS)

    def _text(self, text: str, most: int) -> Shown:
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]  # (1, T)
        limit = min(most, getattr(self.model.config, "max_position_embeddings", None) or most)
        if not 1 <= ids.shape[1] <= limit:
            raise Refused(
                413, f"text ({ids.shape[1]:,} tokens) must have 1…{limit:,} for {self.title}. Send a part of it."
            )
        inputs = {"input_ids": ids}
        source = self._tokens(ids)
        target = source
        if getattr(self.model.config, "is_encoder_decoder", False):
            with torch.inference_mode():
                inputs["decoder_input_ids"] = self.model.generate(**inputs, max_new_tokens=WRITTEN, num_beams=1)
            target = self._tokens(inputs["decoder_input_ids"])
        seen = self._seen(inputs)
        seen.tokens(query=target, key=source)
        return shown(seen, "model", f"{self.title}: {brief(text)}")

    def _tokens(self, ids: Tensor) -> list[str]:
        return readable([str(token) for token in self.tokenizer.convert_ids_to_tokens(ids[0].tolist())])

    def _image(self, path: Path, config: Mapping[str, Any]) -> Shown:
        from ..lens.patch_weights import Patches

        pixels, given = read_image(path, self.folder, config)
        seen = self._seen({"pixel_values": given})
        patch = config["patch_size"]
        across, down = (patch, patch) if isinstance(patch, int) else (patch[1], patch[0])
        rows, columns = pixels.shape[0] // down, pixels.shape[1] // across
        first = seen.maps[0].shape[-1] - rows * columns if seen.maps else 0
        seen.image = pixels
        if first >= 0:
            seen.patches = Patches(rows, columns, first)
        return shown(seen, "model", f"{self.title}: {path.name}")

    def _seen(self, inputs: Mapping[str, Tensor]) -> Any:
        from ..lens.watch import watch

        with watch(self.model) as seen, torch.inference_mode():
            self.model(**inputs)
        if not len(seen):
            said = "; ".join(seen.missed[:3]) or "it spells its attention out as matmul and softmax"
            raise ValueError(f"view: {self.folder} must attend where it can be seen; it does not: {said}.")
        return seen


def _load(folder: Path, config: Mapping[str, Any], sees: bool) -> tuple[Any, Any]:
    """The model in evaluation mode, and its tokenizer if it reads text; nothing is fetched, no code of others run."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise ValueError(
            f"view: {folder} must be opened with transformers, which is not installed. Try pip install transformers, "
            "or capture what the model looks at elsewhere: regard.watch(model), seen.save('x.safetensors')."
        ) from None
    kind = transformers.AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else transformers.AutoModel
    try:
        safe = {"local_files_only": True, "trust_remote_code": False}
        model: nn.Module = kind.from_pretrained(folder, **safe)
        reader = None if sees else transformers.AutoTokenizer.from_pretrained(folder, **safe)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"view: {folder} must be a whole model directory; transformers says: {error}") from error
    return model.eval(), reader


def read_image(path: Path, folder: Path, config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """An image as people see it, uint8 (H, W, 3), and as the model takes it, (1, 3, H, W).

    Size, mean and deviation are those of `preprocessor_config.json`, else of the model's config, else 0.5.
    """
    import numpy as np
    from PIL import Image, ImageOps

    about: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").is_file():
        path_of_settings = folder / "preprocessor_config.json"
        about = read_json_object(path_of_settings, "how images are brought to the model", where="view")
    height, width = _size(config, about)
    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB").resize((width, height), about.get("resample", 2))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"view: image ({path}) must be an image that Pillow reads; got {error}.") from error
    pixels = torch.from_numpy(np.array(picture))  # (H, W, 3)
    mean, deviation = map(torch.tensor, scale_of(folder, 3))
    given = (pixels / 255 - mean) / deviation
    return pixels, given.permute(2, 0, 1)[None]


def _size(config: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[int, int]:
    size: Any = config.get("image_size") or about.get("size") or 224
    if isinstance(size, dict):
        size = [size.get(name) or size.get("shortest_edge") or 224 for name in ("height", "width")]
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def readable(tokens: list[str]) -> list[str]:
    """Tokens of byte-level BPE as text, their leading Ġ kept; others as they are.

    >>> readable(["Ġä½ł", "å¥½", "!"])
    ['Ġ你', '好', '!']
    >>> readable(["[CLS]", "##über"])
    ['[CLS]', '##über']
    """
    if not any(token.startswith("Ġ") for token in tokens):
        return tokens
    decoder = ByteLevel()
    marks = [token[:1] if token[:1] in ("Ġ", "Ċ") else "" for token in tokens]
    return [mark + decoder.decode([token[len(mark) :]]) for mark, token in zip(marks, tokens, strict=True)]
