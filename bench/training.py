"""Training a translator: target tokens per second against JoeyNMT on Multi30k, in alternating runs.

JoeyNMT needs its own environment. Install torch==2.13.0 first, then joeynmt==2.3.0, sentencepiece==0.2.0 and
importlib_metadata, and set REGARD_JOEYNMT to its Python. Set REGARD_DATA to the folder that contains multi30k/.

Both programs train the same architecture (`MODELS`) from the command line, with the same number of subwords, dropout,
optimizer and tokens per batch, including padding. Each reports its own training speed in target tokens per second. The
first interval is discarded. A round is one run of each, and the program that runs first alternates.

The batches differ, and this is part of the ratio: JoeyNMT shuffles sentences and fills a batch in that order ("no
bucketing", its only choice for batches of tokens), while ours groups sentences of similar length. The share of padding
of both is measured on the same subwords.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Figure, Options, order
from bench.peers import MULTI30K, multi30k, python
from regard.data import Batches, Corpus

PACKAGES = "torch==2.13.0, joeynmt==2.3.0, sentencepiece==0.2.0 and importlib_metadata"
VOCABULARY, TOKENS, WIDTH = 8000, 4096, 256
EVERY = 10
"""Number of steps per interval."""
SPEED = re.compile(r"Step:\s+\d+,.*Tokens per Sec:\s+([\d.]+)")
SUBWORDS = f"""
import sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input="train.de,train.en", model_prefix="subwords", vocab_size={VOCABULARY}, model_type="bpe",
    character_coverage=1.0, unk_id=0, pad_id=1, bos_id=2, eos_id=3, minloglevel=2)
words = [line.split("\\t")[0] for line in open("subwords.vocab", encoding="utf-8")]
open("subwords.txt", "w", encoding="utf-8").write("\\n".join(words) + "\\n")
"""

TRANSFORMER = {
    "type": "transformer",
    "num_layers": 3,
    "num_heads": 4,
    "embeddings": {"embedding_dim": WIDTH, "scale": True, "dropout": 0.0},
    "hidden_size": WIDTH,
    "ff_size": 4 * WIDTH,
    "dropout": 0.2,
    "layer_norm": "pre",
    "activation": "relu",
}
GRU = {
    "type": "recurrent",
    "rnn_type": "gru",
    "embeddings": {"embedding_dim": WIDTH, "scale": False},
    "hidden_size": WIDTH,
    "dropout": 0.3,
    "num_layers": 1,
}
BAHDANAU = {"hidden_dropout": 0.3, "input_feeding": True, "init_hidden": "bridge", "attention": "bahdanau"}

SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}

MODELS: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "transformer": (
        {"tied_embeddings": True, "tied_softmax": True, "encoder": TRANSFORMER, "decoder": TRANSFORMER},
        ["--dropout", "0.2"],  # all other sizes are the defaults of the recipe
    ),
    "recurrent": (
        {"tied_embeddings": True, "encoder": {**GRU, "bidirectional": True}, "decoder": {**GRU, **BAHDANAU}},
        ["--kind", "recurrent", "--dropout", "0.3"],
    ),
}
"""JoeyNMT's configuration of each model, and our command-line options."""


def figures(options: Options) -> Iterator[Figure]:
    rounds = 1 if options.quick else min(options.rounds, 5)
    intervals = 1 if options.quick else 3
    for kind in MODELS:
        shape = f"Multi30k, {TOKENS:,} tokens per batch, {rounds} rounds"
        yield Figure(
            f"tokens/s, {kind} against JoeyNMT",
            shape,
            partial(_ratio, kind, rounds, intervals),
            "ratio",
            ">= 3.0",
        )


def _ratio(kind: str, rounds: int, intervals: int) -> float:
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        interpreter = python("REGARD_JOEYNMT", PACKAGES)
        _prepare(interpreter, kind, folder)
        for turn in range(rounds):
            run = folder / f"ours-{turn}"
            programs = {
                "ours": partial(_ours, kind, run, intervals),
                "JoeyNMT": partial(_theirs, interpreter, folder, intervals),
            }
            speeds = {name: programs[name]() for name in order(list(programs), turn)}
            ratios.append(speeds["ours"] / speeds["JoeyNMT"])
            report = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items())
            print(f"{kind}: {report} tokens/s: {ratios[-1]:.2f}", file=sys.stderr)
        print(batching(Corpus.open(run / "data/train")), file=sys.stderr)
    return statistics.median(ratios)


def batching(corpus: Corpus) -> str:
    """Describe the batches of both programs and their shares of padding, on the lengths of a corpus."""
    lengths = corpus.lengths.astype(np.int64) + 1  # with EOS, (N, 2)
    shuffled = np.random.default_rng(0).permutation(len(lengths))
    theirs = padding(lengths, joeynmt_batches(lengths, shuffled))
    ours = padding(lengths, Batches(corpus, TOKENS).plan(0))
    return (
        f"batching: JoeyNMT fills batches with shuffled sentences, {theirs:.0%} padding; "
        f"ours groups sentences of similar length, {ours:.0%} padding"
    )


def joeynmt_batches(lengths: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Yield batches by the rule of JoeyNMT's TokenBatchSampler: end one when longest × sentences reaches `TOKENS`.

    Args:
        lengths: (N, 2), of source and target with EOS.
        order: indices of the sentences in the order in which they are drawn.
    """
    start, longest = 0, 0
    for stop, index in enumerate(order, 1):
        longest = max(longest, int(lengths[index].max()))
        if longest * (stop - start) >= TOKENS:
            yield order[start:stop]
            start, longest = stop, 0
    if start < len(order):
        yield order[start:]


def padding(lengths: np.ndarray, batches: Iterable[np.ndarray]) -> float:
    """Return the share of padding among all cells of batches, source and target together."""
    cells = sum(len(batch) * int(lengths[batch].max(0).sum()) for batch in batches)
    return 1 - int(lengths.sum()) / cells


def _ours(kind: str, folder: Path, intervals: int) -> float:
    steps = EVERY * (1 + intervals)
    training = ["--steps", str(steps), "--warmup", str(steps), "--log-every", str(EVERY), "--tokens", str(TOKENS)]
    texts = ["--train", *map(str, multi30k("train")), "--valid", *map(str, multi30k("val"))]
    command = [sys.executable, "-m", "regard", "train", "translate", str(folder), *MODELS[kind][1], *texts, *training]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    speeds = [line["tokens_per_second"] for line in lines if line["event"] == "train"]
    return statistics.median(speeds[1:])


def _theirs(interpreter: str, folder: Path, intervals: int) -> float:
    command = [interpreter, "-m", "joeynmt", "train", "config.yaml", "--skip-test"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    speeds: list[float] = []
    output: list[str] = []
    try:
        for line in process.stdout:
            output.append(line)
            if match := SPEED.search(line):
                speeds.append(float(match[1]))
            if len(speeds) > intervals:
                return statistics.median(speeds[1:])
    finally:
        process.kill()
        process.wait()
    raise RuntimeError(f"training: JoeyNMT must report its speed; its last output was\n{''.join(output[-20:])}")


def _prepare(interpreter: str, kind: str, folder: Path) -> None:
    """Write texts, subwords and a configuration to the folder."""
    for part in MULTI30K:
        for packed in multi30k(part):
            (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    subprocess.run([interpreter, "-c", SUBWORDS], cwd=folder, check=True, capture_output=True)
    # JSON is valid YAML.
    (folder / "config.yaml").write_text(json.dumps(_configuration(MODELS[kind][0])), encoding="utf-8")


def _configuration(model: Mapping[str, Any]) -> dict[str, Any]:
    starts = {"initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "bias_initializer": "zeros"}
    return {
        "name": "peer",
        "joeynmt_version": "2.3.0",
        "model_dir": "theirs",
        "use_cuda": False,
        "fp16": False,
        "random_seed": 42,
        "data": {
            "train": "train",
            "dev": "val",
            "test": "test_2016_flickr",
            "dataset_type": "plain",
            "src": _side("de"),
            "trg": _side("en"),
            "special_symbols": {
                **{
                    f"{name}_token": text for name, text in zip(SPECIAL, ("<unk>", "<pad>", "<s>", "</s>"), strict=True)
                },
                **{f"{name}_id": number for number, name in enumerate(SPECIAL)},
            },
        },
        "testing": {"beam_size": 1, "eval_metrics": ["bleu"], "max_output_length": 60, "batch_size": TOKENS},
        "training": {
            "optimizer": "adamw",
            "normalization": "tokens",
            "adam_betas": [0.9, 0.98],
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 1000,
            "learning_rate": 0.0007,
            "weight_decay": 0.0001,
            "clip_grad_norm": 1.0,
            "label_smoothing": 0.1,
            "loss": "crossentropy",
            "batch_size": TOKENS,
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 100,
            "validation_freq": 100_000,
            "logging_freq": EVERY,
            "overwrite": True,
            "shuffle": True,
        },
        "model": {**starts, **model},
    }


def _side(language: str) -> dict[str, Any]:
    return {
        "lang": language,
        "max_length": 100,
        "lowercase": False,
        "normalize": False,
        "level": "bpe",
        "voc_limit": 32000,
        "voc_min_freq": 1,
        "voc_file": "subwords.txt",
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": "subwords.model", "model_type": "bpe", "pretokenizer": "none"},
    }
