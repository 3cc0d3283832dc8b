"""Sentence encoders that `bench encode` compares with: the same BERT weights in other libraries, each at its best.

A library is a mapping from a thread setting to a function that turns texts into embeddings, given a batch size. The
benchmark tries every combination and keeps the fastest. All compute in float32.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.harness import threads

Rows = list[list[int]]
"""Token ids of a batch, without padding."""
Run = Callable[[Rows], Tensor]
"""Computes the last hidden vectors of a batch, (B, T, W)."""
Encode = Callable[[Sequence[str], int], Tensor]
"""Maps texts and a batch size to normalized embeddings, (N, W)."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
FUSED = ("EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu")
"""Operators of ONNX Runtime that replace parts of a BERT."""


def transformers_encoders(folder: Path, by_length: bool = True) -> dict[str, Encode]:
    """transformers with PyTorch's SDPA, in PyTorch's threads."""
    model = _bert(folder, "sdpa")

    def run(rows: Rows) -> Tensor:
        ids, mask, _ = map(torch.from_numpy, _padded(rows))
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

    return {"torch's threads": _encoder(folder, run, by_length=by_length)}


def onnxruntime_encoders(folder: Path, scratch: Path) -> dict[str, Encode]:
    """ONNX Runtime with its transformer fusions."""
    import onnxruntime

    path = fused_onnx(folder, scratch)
    count = torch.get_num_threads()

    def encoder(intra: int, spinning: bool, workers: int) -> Encode:
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        settings.intra_op_num_threads = intra
        settings.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])

        def run(rows: Rows) -> Tensor:
            return torch.from_numpy(session.run(None, dict(zip(INPUTS, _padded(rows), strict=True)))[0])

        return _encoder(folder, run, workers)

    return {
        f"{count} threads": encoder(count, True, 1),
        f"{count} threads that do not spin": encoder(count, False, 1),
        f"{count} workers": encoder(1, False, count),
    }


def openvino_encoders(folder: Path, scratch: Path) -> dict[str, Encode]:
    """OpenVINO on the model that it converts from PyTorch, where attention is one operator."""
    import openvino

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing
        model = openvino.convert_model(_Hidden(_bert(folder, "sdpa")), example_input=_example())
    count = torch.get_num_threads()

    def encoder(workers: int) -> Encode:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": workers, "INFERENCE_NUM_THREADS": count}
        compiled = openvino.Core().compile_model(model, "CPU", settings)
        own = local()  # a request serves one thread at a time

        def run(rows: Rows) -> Tensor:
            own.request = getattr(own, "request", None) or compiled.create_infer_request()
            return torch.from_numpy(own.request.infer(list(_padded(rows)))[0].copy())

        return _encoder(folder, run, workers)

    return {f"{count} threads": encoder(1), f"{count} streams": encoder(count)}


def ctranslate2_encoders(folder: Path, scratch: Path) -> dict[str, Encode]:
    """CTranslate2 on its own conversion of the model."""
    import ctranslate2

    path = scratch / "ctranslate2"
    if not path.exists():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(path))
    count = torch.get_num_threads()

    def encoder(workers: int) -> Encode:
        with threads(count):  # creating an encoder changes the thread count of the calling thread
            peer = ctranslate2.Encoder(
                str(path), compute_type="float32", inter_threads=workers, intra_threads=count // workers
            )

        def run(rows: Rows) -> Tensor:
            return torch.from_numpy(np.array(peer.forward_batch(rows).last_hidden_state))

        return _encoder(folder, run, workers)

    return {f"{count} threads": encoder(1), f"{count} workers": encoder(count)}


def fused_onnx(folder: Path, scratch: Path) -> Path:
    """Export the model to ONNX and fuse it with the optimizer of ONNX Runtime; print the fused operators.

    The optimizer knows the patterns of the classic exporter and of eager attention, not those of torch.export.
    """
    from onnxruntime.transformers import optimizer

    model = _bert(folder, "eager")
    plain, fused = scratch / "plain.onnx", scratch / "fused.onnx"
    if not fused.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the classic exporter
            torch.onnx.export(
                _Hidden(model),
                _example(),
                str(plain),
                input_names=list(INPUTS),
                output_names=["hidden"],
                dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*INPUTS, "hidden")},
                opset_version=17,
                dynamo=False,
            )
        config = model.config
        sizes = {"num_heads": config.num_attention_heads, "hidden_size": config.hidden_size}
        optimized = optimizer.optimize_model(str(plain), model_type="bert", opt_level=0, **sizes)
        counts = optimized.get_fused_operator_statistics()
        if counts["Attention"] != config.num_hidden_layers:
            raise RuntimeError(
                f"encode: fused graph ({counts}) must have {config.num_hidden_layers} Attention operators, one per "
                f"layer; got {counts['Attention']}. Unfused, ONNX Runtime would not be at its best."
            )
        print(f"encode: onnxruntime fused {', '.join(f'{counts[name]} {name}' for name in FUSED)}", file=sys.stderr)
        optimized.save_model_to_file(str(fused))
    return fused


class _Hidden(torch.nn.Module):
    """A BERT of transformers that returns only the last hidden vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state


def _bert(folder: Path, attention: str) -> Any:
    import transformers

    return transformers.BertModel.from_pretrained(folder, attn_implementation=attention).eval()


def _example() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.ones(3, 17, dtype=torch.int64)
    return ids, torch.ones_like(ids), torch.zeros_like(ids)


def _padded(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, mask and segments, each (B, T)."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return ids, mask, np.zeros_like(ids)


def _encoder(folder: Path, run: Run, workers: int = 1, by_length: bool = True) -> Encode:
    """Return a function from texts to mean-pooled, normalized embeddings.

    It uses batches with a fixed number of texts, padded to the longest. `by_length` sorts them, longest first. With
    several workers, as many batches run at the same time.
    """
    import transformers

    tokenizer = transformers.BertTokenizer.from_pretrained(folder)

    def encode(texts: Sequence[str], size: int) -> Tensor:
        ids = tokenizer(list(texts), truncation=True, max_length=256)["input_ids"]
        order = sorted(range(len(texts)), key=lambda index: -len(ids[index]) if by_length else index)
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        batches = [[ids[index] for index in group] for group in groups]
        embeddings = [_mean(hidden, rows) for hidden, rows in zip(_each(run, batches, workers), batches, strict=True)]
        output = torch.empty(len(texts), embeddings[0].shape[1])
        output[order] = torch.cat(embeddings)
        return torch.nn.functional.normalize(output, dim=1)

    return encode


def _each(run: Run, batches: Sequence[Rows], workers: int) -> Iterator[Tensor]:
    if workers == 1:
        yield from map(run, batches)
    else:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(run, batches)


def _mean(hidden: Tensor, rows: Rows) -> Tensor:
    """Average the vectors of valid tokens: (B, T, W) → (B, W)."""
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    weights = (torch.arange(hidden.shape[1]) < lengths) / lengths  # (B, T)
    return (weights[:, None] @ hidden)[:, 0]  # (B, W)
