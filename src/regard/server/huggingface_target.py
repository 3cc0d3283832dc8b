"""A Hugging Face model directory as a target: loaded by `transformers` and watched while it processes an input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers.decoders import ByteLevel
from torch import Tensor, nn

from ..core.json_files import read_json_object
from ..models.huggingface_vit import scale_of
from .guard import RequestError
from .target import Snapshot, Target, brief, snapshot

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_TOKENS = 131_072
"""Maximum number of input tokens from the command line."""
MAX_PAGE_TOKENS = 16_384
"""Maximum number of input tokens from the page."""
MAX_NEW_TOKENS = 128
"""Maximum number of tokens that an encoder-decoder generates."""


class Model(Target):
    """A Hugging Face model and its attention for a text or an image."""

    def __init__(self, folder: Path, config: Mapping[str, Any], text: str | None, image: Path | None) -> None:
        self.folder, self.title = folder, folder.resolve().name
        is_vision = "patch_size" in config and "vocab_size" not in config
        option, value = ("--image FILE", image) if is_vision else ("--text or --file", text)
        if value is None or (text is not None and image is not None):
            raise ValueError(
                f"view: {folder} must be opened with {option} and no other input: it is a {config['model_type']}."
            )
        self.model, self.tokenizer = _load(folder, config, is_vision)
        if is_vision:
            assert image is not None
            self.snapshot = self._image(image, config)
        else:
            assert text is not None
            self.can = ("run",)
            self.snapshot = self.first_snapshot(lambda: self._text(text, MAX_TOKENS))

    def run(self, text: str) -> Snapshot:
        if not self.can:
            raise RequestError(404, "this target must be a text model to run another text; it is a vision model.")
        return self._text(text, MAX_PAGE_TOKENS)

    def _text(self, text: str, most: int) -> Snapshot:
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]  # (1, T)
        limit = min(most, getattr(self.model.config, "max_position_embeddings", None) or most)
        if not 1 <= ids.shape[1] <= limit:
            raise RequestError(
                413, f"text ({ids.shape[1]:,} tokens) must have 1…{limit:,} for {self.title}. Send a shorter text."
            )
        inputs = {"input_ids": ids}
        source = self._tokens(ids)
        target = source
        if getattr(self.model.config, "is_encoder_decoder", False):
            with torch.inference_mode():
                inputs["decoder_input_ids"] = self.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, num_beams=1)
            target = self._tokens(inputs["decoder_input_ids"])
        seen = self._seen(inputs)
        seen.tokens(query=target, key=source)
        return snapshot(seen, "model", f"{self.title}: {brief(text)}", text=text)

    def _tokens(self, ids: Tensor) -> list[str]:
        return readable([str(token) for token in self.tokenizer.convert_ids_to_tokens(ids[0].tolist())])

    def _image(self, path: Path, config: Mapping[str, Any]) -> Snapshot:
        from ..lens.patch_weights import Patches

        pixels, values = read_image(path, self.folder, config)
        seen = self._seen({"pixel_values": values})
        patch = config["patch_size"]
        across, down = (patch, patch) if isinstance(patch, int) else (patch[1], patch[0])
        rows, columns = pixels.shape[0] // down, pixels.shape[1] // across
        first = seen.maps[0].shape[-1] - rows * columns if seen.maps else 0
        seen.image = pixels
        if first >= 0:
            seen.patches = Patches(rows, columns, first)
        return snapshot(seen, "model", f"{self.title}: {path.name}")

    def _seen(self, inputs: Mapping[str, Tensor]) -> Any:
        from ..lens.watch import watch

        with watch(self.model) as seen, torch.inference_mode():
            self.model(**inputs)
        if not len(seen):
            reason = "; ".join(seen.missed[:3]) or "it computes attention by matmul and softmax"
            raise ValueError(f"view: the attention of {self.folder} must be recordable; got none: {reason}.")
        return seen


def _load(folder: Path, config: Mapping[str, Any], is_vision: bool) -> tuple[Any, Any]:
    """Load the model in evaluation mode and, for a text model, its tokenizer. No download, no remote code."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise ValueError(
            f"view: {folder} must be opened with transformers, which is not installed. Try pip install transformers, "
            "or save a capture elsewhere: regard.watch(model), seen.save('x.safetensors')."
        ) from None
    kind = transformers.AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else transformers.AutoModel
    try:
        safe = {"local_files_only": True, "trust_remote_code": False}
        model: nn.Module = kind.from_pretrained(folder, **safe)
        tokenizer = None if is_vision else transformers.AutoTokenizer.from_pretrained(folder, **safe)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"view: {folder} must be a complete model directory; transformers reports: {error}") from error
    return model.eval(), tokenizer


def read_image(path: Path, folder: Path, config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return an image as pixels, uint8 (H, W, 3), and as normalized model input, (1, 3, H, W).

    Size, mean and standard deviation come from `preprocessor_config.json`, else from the model's config, else 0.5.
    """
    import numpy as np
    from PIL import Image, ImageOps

    preprocessing: dict[str, Any] = {}
    if (folder / "preprocessor_config.json").is_file():
        settings_path = folder / "preprocessor_config.json"
        preprocessing = read_json_object(settings_path, "the image preprocessing of a model", where="view")
    height, width = _size(config, preprocessing)
    try:
        with Image.open(path) as file:
            picture = _fitted(ImageOps.exif_transpose(file).convert("RGB"), height, width, preprocessing)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"view: image ({path}) must be an image that Pillow reads; got {error}.") from error
    pixels = torch.from_numpy(np.array(picture))  # (H, W, 3)
    mean, deviation = map(torch.tensor, scale_of(folder, 3))
    values = (pixels / 255 - mean) / deviation
    return pixels, values.permute(2, 0, 1)[None]


def _fitted(picture: Picture, height: int, width: int, preprocessing: Mapping[str, Any]) -> Picture:
    """Resize a picture to the size of the model; with `do_center_crop`, its shorter side, and crop the center."""
    resample = preprocessing.get("resample", 2)
    if not preprocessing.get("do_center_crop"):
        return picture.resize((width, height), resample)
    size = preprocessing.get("size")
    shortest = (size.get("shortest_edge") if isinstance(size, dict) else size) or min(height, width)
    scale = shortest / min(picture.size)
    resized = picture.resize(tuple(max(shortest, int(side * scale)) for side in picture.size), resample)  # type: ignore[arg-type]  # two sides
    left, top = (resized.width - width) // 2, (resized.height - height) // 2
    return resized.crop((left, top, left + width, top + height))


def _size(config: Mapping[str, Any], preprocessing: Mapping[str, Any]) -> tuple[int, int]:
    size: Any = config.get("image_size") or preprocessing.get("size") or 224
    if isinstance(size, dict):
        size = [size.get(name) or size.get("shortest_edge") or 224 for name in ("height", "width")]
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def readable(tokens: list[str]) -> list[str]:
    """Decode byte-level BPE tokens to text, keeping a leading Ġ. Other tokens are unchanged.

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
