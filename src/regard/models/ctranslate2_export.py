"""Export of a trained Transformer to CTranslate2. Its greedy translations are identical, token for token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Vocabulary
from ..layers import DecoderBlock, EncoderBlock, LearnedPosition, MultiHeadAttention, sinusoids
from .encoder_decoder import EncoderDecoder
from .model_directory import exporting
from .transformer import Transformer

POSITIONS = 1024
"""Number of sinusoidal positions that are exported. CTranslate2 would compute its own in another layout."""


def to_ctranslate2(
    model: EncoderDecoder, source: Vocabulary, target: Vocabulary, folder: str | os.PathLike[str]
) -> Path:
    """Write a folder that `ctranslate2.Translator` opens, with the two vocabularies.

    Inputs and outputs are tokens of the vocabularies, as in `pieces(encode(text))`, without `</s>`.

    Raises:
        ValueError: if CTranslate2 does not support the model or is not installed, or the folder holds a run.
        Unwritable: if a file cannot be written, for example because the disk is full.

    >>> import tempfile
    >>> from regard.data import Characters
    >>> from regard.models import TransformerConfig
    >>> letters = Characters("abc")
    >>> model = Transformer(TransformerConfig(len(letters), len(letters), width=8, heads=2, hidden=16))
    >>> folder = to_ctranslate2(model, letters, letters, tempfile.mkdtemp())
    >>> "model.bin" in [path.name for path in folder.iterdir()]
    True
    """
    try:
        from ctranslate2.specs import TransformerSpec
        from ctranslate2.specs.common_spec import Activation
    except ImportError:
        raise ValueError(
            "export: ctranslate2 must be installed; got no such package. Try pip install 'regard[ctranslate2]'."
        ) from None
    transformer = _supported(model)
    config = transformer.config
    activation = {"relu": Activation.RELU, "gelu": Activation.GELU, "silu": Activation.SWISH}[config.activation]
    layers = (config.encoder_layers, config.decoder_layers)
    spec = TransformerSpec.from_config(layers, config.heads, pre_norm=config.norm_first, activation=activation)
    _fill_side(
        spec.encoder,
        spec.encoder.embeddings[0],
        transformer.source,
        transformer.source_position,
        transformer.encoder_norm,
    )
    _fill_side(
        spec.decoder, spec.decoder.embeddings, transformer.target, transformer.target_position, transformer.decoder_norm
    )
    for layer_spec, encoder_block in zip(spec.encoder.layer, transformer.encoder, strict=True):
        assert isinstance(encoder_block, EncoderBlock)
        _fill_block(layer_spec, encoder_block)
    for layer_spec, decoder_block in zip(spec.decoder.layer, transformer.decoder, strict=True):
        assert isinstance(decoder_block, DecoderBlock)
        _fill_block(layer_spec, decoder_block)
        _fill_cross(layer_spec.attention, decoder_block)
    _fill(spec.decoder.projection, [transformer.vocabulary])
    _fill_vocabularies(spec, source, target)
    spec.validate()
    with exporting(Path(folder)) as temporary:
        spec.save(str(temporary))
        source.save(temporary / "source.json")
        target.save(temporary / "target.json")
    return Path(folder)


def _supported(model: Any) -> Transformer:
    if not isinstance(model, Transformer):
        raise ValueError(
            f"export: model ({type(model).__name__}) must be a Transformer: CTranslate2 has no recurrent models. Train "
            "with --kind transformer to export the model, or use it with regard translate, or regard.load in Python."
        )
    for name, known in (("similarity", ("scaled_dot",)), ("position", ("sinusoidal", "learned"))):
        value = getattr(model.config, name)
        if value not in known:
            raise ValueError(
                f"export: {name} ({value}) must be {' or '.join(known)}: CTranslate2 has no other. Train with --{name} "
                f"{known[0]} to export the model, or use it with regard translate, or regard.load in Python."
            )
    return model


def _fill_side(spec: Any, embeddings: Any, embedding: nn.Embedding, position: Any, norm: nn.Module) -> None:
    """Fill the embeddings, positions and the final norm of the encoder or decoder."""
    embeddings.weight = _to_numpy(embedding.weight)
    width = embedding.embedding_dim
    table = position.weight if isinstance(position, LearnedPosition) else sinusoids(torch.arange(POSITIONS), width)
    spec.position_encodings.encodings = _to_numpy(table)
    if isinstance(norm, nn.LayerNorm):
        _fill_norm(spec.layer_norm, norm)


def _fill_block(spec: Any, block: EncoderBlock | DecoderBlock) -> None:
    attention: MultiHeadAttention = block.attention
    _fill(spec.self_attention.linear[0], [attention.query, attention.key, attention.value])
    _fill(spec.self_attention.linear[1], [attention.out])
    _fill_norm(spec.self_attention.layer_norm, block.around_attention.norm)
    _fill(spec.ffn.linear_0, [block.feedforward.up])
    _fill(spec.ffn.linear_1, [block.feedforward.down])
    _fill_norm(spec.ffn.layer_norm, block.around_feedforward.norm)


def _fill_cross(spec: Any, block: DecoderBlock) -> None:
    attention: MultiHeadAttention = block.cross_attention
    _fill(spec.linear[0], [attention.query])
    _fill(spec.linear[1], [attention.key, attention.value])
    _fill(spec.linear[2], [attention.out])
    _fill_norm(spec.layer_norm, block.around_cross_attention.norm)


def _fill(spec: Any, linears: Sequence[Any]) -> None:
    """Fill one layer with the concatenated projections of the same input."""
    spec.weight = _to_numpy(torch.cat([linear.weight for linear in linears]))
    if linears[0].bias is not None:
        spec.bias = _to_numpy(torch.cat([linear.bias for linear in linears]))


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _to_numpy(norm.weight), _to_numpy(norm.bias)


def _fill_vocabularies(spec: Any, source: Vocabulary, target: Vocabulary) -> None:
    spec.register_source_vocabulary(source.pieces(range(len(source))))
    spec.register_target_vocabulary(target.pieces(range(len(target))))
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = "<unk>", "<s>", "</s>"
    config.decoder_start_token, config.add_source_eos = "<s>", True
    config.layer_norm_epsilon = 1e-5


def _to_numpy(x: Tensor) -> Any:
    return x.detach().to("cpu", torch.float32).contiguous().numpy()
