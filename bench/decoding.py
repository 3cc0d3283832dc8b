"""Beam search over 1,000 sentences: ours against Marian's `generate` and CTranslate2, with the same model.

Set REGARD_DATA to the folder that contains multi30k/. A small post-norm Transformer, the one variant that all three
support, is trained for some minutes and stored in OUT/decoding. Its weights are copied to `MarianMTModel` of
transformers and exported to CTranslate2, both in float32. All contenders batch sentences of similar length. The peers
use their fastest batch size, determined on a fifth of the sentences. Marian uses all threads or one, whichever is
faster. CTranslate2 uses one worker per thread, which takes two thirds of the time of one worker with all threads.
(That second setting is not measured here, because its remaining threads slow Marian down by half.) The searches stop
by different rules, so translations may differ; 90 % must be equal.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bench._skips import installed
from bench.harness import Case, Figure, Options, Versus, threads
from bench.peers import multi30k
from regard.data import BOS, EOS, PAD, read_pairs
from regard.layers import DecoderBlock, EncoderBlock, MultiHeadAttention, sinusoids
from regard.models import Transformer
from regard.models.ctranslate2_export import to_ctranslate2
from regard.tasks.loading import load_translator
from regard.tasks.translator import Translator

SIZE, LONGEST = 5, 60
MINUTES = 12.0
POSITIONS = 512
SIZES = (16, 32, 64, 128)
"""Batch sizes that are tried for the peers."""
BARS = {"marian": ">= 3.0", "ctranslate2": ">= 0.7"}
Sentences = Sequence[tuple[int, ...]]
Translations = list[tuple[int, ...]]
Search = Callable[[Sentences], Translations]


def cases(options: Options) -> Iterator[Case]:
    translator = _model(options)
    read = _sentences(translator, options)
    contenders: dict[str, Callable[[], Translations]] = {"ours": lambda: _ours(translator, read)}
    for name, ways in _peers(translator, options):
        contenders[name] = _Best(name, ways, read)
    versus = [Versus("ours", name, BARS[name]) for name in contenders if name != "ours"]
    if versus:
        yield Case("beam search", f"{len(read):,} sentences, beam {SIZE}", contenders, versus, most_rounds=7)


def _peers(translator: Translator, options: Options) -> Iterator[tuple[str, dict[str, Search]]]:
    """Yield the searches of every peer that is installed."""
    if installed("decoding", "transformers"):
        yield "marian", _marian(translator.model)
    if installed("decoding", "ctranslate2"):
        yield "ctranslate2", _ctranslate2(translator, options)


class _Best:
    """A peer with its fastest settings, which are determined and printed at the first call."""

    def __init__(self, name: str, ways: Mapping[str, Search], read: Sentences) -> None:
        self.name, self.ways, self.read = name, ways, read
        self.best: str | None = None

    def __call__(self) -> Translations:
        if self.best is None:
            some, taken = self.read[::5], {}
            for name, search in self.ways.items():
                search(some)
                start = time.perf_counter()
                search(some)
                taken[name] = time.perf_counter() - start
            self.best = min(taken, key=lambda name: taken[name])
            timings = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken.items())
            print(f"decoding: {self.name} is fastest with {self.best} ({timings})", file=sys.stderr)
        return self.ways[self.best](self.read)


def figures(options: Options) -> Iterator[Figure]:
    translator = _model(options)
    read = _sentences(translator, options)
    ours = _ours(translator, read)
    for name, ways in _peers(translator, options):
        theirs = next(iter(ways.values()))(read)
        shape = f"{len(read):,} sentences, beam {SIZE}"
        yield Figure(f"same translation as {name}", shape, partial(_agree, ours, theirs), "fraction", ">= 0.9")


def _agree(ours: Translations, theirs: Translations) -> float:
    return sum(map(tuple.__eq__, ours, theirs)) / len(ours)


def _model(options: Options) -> Translator:
    """Load the model from OUT/decoding; train it first if necessary."""
    folder = options.out / ("decoding-quick" if options.quick else "decoding")
    if not (folder / "model.safetensors").exists():
        texts = ["--train", *map(str, multi30k("train")), "--valid", *map(str, multi30k("val"))]
        limit = ["--steps", "40", "--warmup", "20"] if options.quick else ["--minutes", str(MINUTES), "--warmup", "600"]
        rate = ["--no-norm-first", "--learning-rate", "1e-3"]  # post-norm training diverges at higher rates
        rate += ["--vocabulary", "5000", "--tokens", "1200", "--dropout", "0.1"]
        command = [sys.executable, "-m", "regard", "train", "translate", str(folder), *texts, *limit, *rate]
        subprocess.run(command, check=True)
    return load_translator(folder)


def _sentences(translator: Translator, options: Options) -> list[tuple[int, ...]]:
    """Return token ids with EOS, longest sentence first, which is the best order for every contender."""
    pairs = islice(read_pairs(multi30k("test_2016_flickr")), 50 if options.quick else 1000)
    ids = [(*tokens, EOS) for tokens in translator.source.encode_all([source for source, _ in pairs])]
    return sorted(ids, key=len, reverse=True)


def _ours(translator: Translator, read: Sentences) -> Translations:
    return [hypotheses[0].tokens for hypotheses in translator.search(read, size=SIZE, longest=LONGEST)]


def _marian(model: Any) -> dict[str, Search]:
    """Return one search for each number of threads and batch size."""
    theirs = marian(model)

    @torch.inference_mode()
    def run(read: Sentences, batch: int, count: int) -> Translations:
        written: Translations = []
        with threads(count):
            for start in range(0, len(read), batch):
                rows = read[start : start + batch]
                lengths = torch.tensor([len(row) for row in rows])
                ids = torch.full((len(rows), int(lengths.max())), PAD)
                for index, row in enumerate(rows):
                    ids[index, : len(row)] = torch.tensor(row)
                mask = torch.arange(ids.shape[1]) < lengths[:, None]
                results = theirs.generate(
                    input_ids=ids,
                    attention_mask=mask.long(),
                    num_beams=SIZE,
                    max_new_tokens=LONGEST,
                    length_penalty=1.0,
                    early_stopping=False,
                    do_sample=False,
                )
                written += [_strip_markers(row) for row in results.tolist()]
        return written

    return {
        f"{size} sentences, {count} threads": partial(run, batch=size, count=count)
        for count in sorted({1, torch.get_num_threads()})
        for size in SIZES[1:]
    }


def _strip_markers(row: list[int]) -> tuple[int, ...]:
    """Return the tokens between BOS and EOS."""
    row = row[1:]
    return tuple(row[: row.index(EOS)] if EOS in row else row)


def marian(model: Transformer) -> Any:
    """Copy the model to a `MarianMTModel` of transformers."""
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    config = model.config
    peer = MarianMTModel(
        MarianConfig(
            vocab_size=config.source_vocabulary,
            max_position_embeddings=POSITIONS,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.hidden,
            decoder_ffn_dim=config.hidden,
            d_model=config.width,
            activation_function=config.activation,
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ).eval()
    peer.generation_config = GenerationConfig(
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS
    )
    table = sinusoids(torch.arange(POSITIONS), config.width).float()
    with torch.no_grad():
        peer.model.shared.weight.copy_(model.target.weight)
        for side, blocks in ((peer.model.encoder, model.encoder), (peer.model.decoder, model.decoder)):
            side.embed_positions.weight.copy_(table)
            for theirs, ours in zip(side.layers, blocks, strict=True):
                _copy_block(theirs, ours)
    return peer


def _copy_block(theirs: Any, ours: Any) -> None:
    assert isinstance(ours, EncoderBlock | DecoderBlock)
    _copy_attention(theirs.self_attn, ours.attention)
    parts: list[tuple[Any, Any]] = [(theirs.self_attn_layer_norm, ours.around_attention.norm)]
    if isinstance(ours, DecoderBlock):
        _copy_attention(theirs.encoder_attn, ours.cross_attention)
        parts.append((theirs.encoder_attn_layer_norm, ours.around_cross_attention.norm))
    parts += [
        (theirs.fc1, ours.feedforward.up),
        (theirs.fc2, ours.feedforward.down),
        (theirs.final_layer_norm, ours.around_feedforward.norm),
    ]
    for to, part in parts:
        to.load_state_dict(part.state_dict())


def _copy_attention(theirs: Any, ours: MultiHeadAttention) -> None:
    for to, part in ((theirs.q_proj, ours.query), (theirs.k_proj, ours.key), (theirs.v_proj, ours.value)):
        to.load_state_dict(part.state_dict())
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def _ctranslate2(translator: Translator, options: Options) -> dict[str, Search]:
    """Return one search for each batch size."""
    import ctranslate2

    folder = Path(options.out, "ctranslate2")
    to_ctranslate2(translator.model, translator.source, translator.target, folder)
    ids = {token: index for index, token in enumerate(translator.target.pieces(range(len(translator.target))))}
    workers = torch.get_num_threads()
    with threads(workers):  # creating a translator changes the thread count of the calling thread
        peer = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=workers, intra_threads=1)

    def run(read: Sentences, batch: int) -> Translations:
        results = peer.translate_batch(
            [translator.source.pieces(row[:-1]) for row in read],
            beam_size=SIZE,
            max_batch_size=batch,
            max_decoding_length=LONGEST,
            length_penalty=1.0,
        )
        return [tuple(ids[token] for token in one.hypotheses[0]) for one in results]

    return {f"{size} sentences": partial(run, batch=size) for size in SIZES}
