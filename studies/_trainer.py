"""The peer of `studies.sst2`: BERT fine-tuned with the Trainer of `transformers`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.labelled_text import Example


def finetune(
    model: Path,
    train: Sequence[Example],
    valid: Sequence[Example],
    out: Path,
    *,
    minutes: float,
    epochs: int,
    rate: float,
    batch: int,
    longest: int,
    seed: int,
    sampling: str = "random",
) -> dict[str, float]:
    """Return the best held-out accuracy over epochs, the training speed in samples per second and the total seconds.

    Batches are padded to their longest text. `sampling` is the Trainer's sampling strategy: "random", its default, or
    "group_by_length", which batches texts of similar length. Attention uses SDPA without dropout of its weights, as in
    our model; SDPA is slower with it.
    """
    try:
        import accelerate  # noqa: F401 (required by the Trainer)
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer
        from transformers import TrainingArguments as Arguments
    except ImportError as error:
        raise ValueError(
            f"the peer must be installed; got {error}. Try pip install transformers accelerate."
        ) from error
    tokens = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    network = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=2, attention_probs_dropout_prob=0.0, trust_remote_code=False
    )
    rows = [_encoded(tokens, examples, longest) for examples in (train, valid)]
    clock = _clock(60 * minutes)
    settings = Arguments(
        output_dir=str(out / "trainer"),
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=64,
        num_train_epochs=epochs,
        learning_rate=rate,
        weight_decay=0.01,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        train_sampling_strategy=sampling,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=50,
        report_to="none",
        use_cpu=True,
        seed=seed,
    )
    trainer = Trainer(
        model=network,
        args=settings,
        train_dataset=rows[0],
        eval_dataset=rows[1],
        data_collator=DataCollatorWithPadding(tokens),
        compute_metrics=_accuracy,
        callbacks=[clock],
    )
    clock.began = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - clock.began
    scores = [line["eval_accuracy"] for line in trainer.state.log_history if "eval_accuracy" in line]
    steps = trainer.state.global_step
    return {
        "accuracy": max(scores),
        "samples_per_second": min(steps * batch, len(train) * epochs) / clock.training,
        "seconds": seconds,
        "epochs": trainer.state.epoch or 0.0,
    }


def _accuracy(output: Any) -> dict[str, float]:
    return {"accuracy": float((output.predictions.argmax(-1) == output.label_ids).mean())}


def _encoded(tokens: Any, examples: Sequence[Example], longest: int) -> list[dict[str, Any]]:
    output = tokens([example.text for example in examples], truncation=True, max_length=longest)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": int(example.label)}
        for ids, mask, example in zip(output["input_ids"], output["attention_mask"], examples, strict=True)
    ]


def _clock(limit: float) -> Any:
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Stop training at the time limit, and sum the time of epochs without evaluations."""

        def __init__(self) -> None:
            self.began = self._epoch = time.monotonic()
            self.training = 0.0

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self._epoch = time.monotonic()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.training += time.monotonic() - self._epoch

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if time.monotonic() - self.began > limit:
                control.should_training_stop = True
                control.should_evaluate = True

    return Clock()
