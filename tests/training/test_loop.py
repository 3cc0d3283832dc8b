"""The training loop on the toy task: its computation, limits and resumption."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import math
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.core import files
from regard.core.tensor_files import read_tensors, read_tensors_and_metadata
from regard.training import (
    Display,
    Diverged,
    Interrupted,
    Loss,
    Silent,
    Training,
    Unwritable,
    checkpoint,
    fit,
    load_best,
    read_config,
    seed_all,
    weights_of,
)
from regard.training.distributed import Group
from regard.training.logbook import reached
from regard.training.session import Session
from regard.training.signals import Signals
from tests.training.toy import Batch, Toy

SHORT = Training(steps=20, warmup=3, learning_rate=1e-2, log_every=4, evaluate_every=5, save_every=3, save_seconds=0.0)


def run(folder: Path, config: Training = SHORT, task: Toy | None = None, **options: Any) -> Toy:
    task = task or Toy(dropout=0.1)
    fit(task, config, folder, display=Silent(), **options)
    return task


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics without timings."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second")} for record in records]


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def same_runs(a: Path, b: Path) -> bool:
    """Return whether the last states, the best weights and the metrics of two runs are bit-identical."""
    states = [checkpoint.latest(folder) for folder in (a, b)]
    assert states[0] is not None and states[1] is not None
    positions = [dataclasses.replace(at, seconds=0.0, metrics=0, window={}) for at, _ in states]
    best = [read_tensors(folder / "model.safetensors") for folder in (a, b)]
    return positions[0] == positions[1] and same(states[0][1], states[1][1]) and same(*best) and lines(a) == lines(b)


def test_it_learns_and_writes_all_files(tmp_path: Path) -> None:
    records: list[Mapping[str, Any]] = []
    config = dataclasses.replace(SHORT, steps=120, average="exponential", average_decay=0.9)
    task = Toy(dropout=0.1)
    outcome = fit(task, config, tmp_path, recipe={"toy": {"dropout": 0.1}}, hooks=[records.append], display=Silent())
    assert (outcome.reason, outcome.step, outcome.epoch, outcome.trained) == ("steps", 120, 20, True)
    first, last = lines(tmp_path)[0], lines(tmp_path)[-1]
    assert first["loss"] > 1.0 and last["loss"] < 0.25 and last["accuracy"] > 0.9
    assert [record["step"] for record in records] == [record["step"] for record in lines(tmp_path)]
    assert {record["event"] for record in records} == {"train", "evaluate"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "config.json", "curves.png", "metrics.jsonl", "model.safetensors", "samples.txt"} | {
        "state-00000117",
        "state-00000120",
        "tokenizer.json",
    }
    assert read_config(tmp_path)["toy"] == {"dropout": 0.1}
    assert "= the [model] output" in (tmp_path / "samples.txt").read_text()


def test_the_saved_weights_are_the_best_evaluated_ones(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=60, average="last", average_states=3, average_every=2)
    task = run(tmp_path, config)
    _, metadata = read_tensors_and_metadata(tmp_path / "model.safetensors")
    best = min((r for r in lines(tmp_path) if r["event"] == "evaluate"), key=lambda record: record["loss"])
    assert (metadata["step"], metadata["goal"], float(metadata["value"])) == (str(best["step"]), "loss", best["loss"])
    load_best(task.model, tmp_path)
    task.model.eval()
    with torch.no_grad():
        assert task.evaluate()["loss"] == best["loss"]


def reference(config: Training, task: Toy, group: int) -> Tensor:
    """Return the weights after training in plain PyTorch, with `group` batches per step."""
    parameters = list(task.model.parameters())
    decays = [{"params": [p], "weight_decay": config.weight_decay * (p.ndim > 1)} for p in parameters]
    optimizer = torch.optim.AdamW(decays, lr=1.0, betas=config.betas, eps=config.epsilon)
    batches = [b for e in range(9) for b in task.batches(e, start=0, rank=0, world=1)]
    for step in range(1, (config.steps or 0) + 1):
        losses = [task.loss(batch) for batch in batches[:group]]
        del batches[:group]
        (sum(loss.total for loss in losses) / sum(loss.count for loss in losses)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.clip or 1e9)
        for entry in optimizer.param_groups:
            entry["lr"] = config.learning_rate * min(1, step / config.warmup)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_equals_plain_pytorch(tmp_path: Path, clip: float, accumulate: int) -> None:
    config = dataclasses.replace(
        SHORT, steps=10, clip=clip, accumulate=accumulate, schedule="constant", weight_decay=0.5
    )
    task = run(tmp_path, config, Toy())
    weights = torch.cat([p.detach().flatten() for p in task.model.parameters()])
    torch.testing.assert_close(weights, reference(config, Toy(), accumulate), rtol=1e-4, atol=1e-6)


class Joined(Toy):
    """The toy task with every two batches joined into one."""

    def batches(self, epoch: int, *, start: int, rank: int, world: int) -> Any:
        parts = list(super().batches(epoch, start=0, rank=rank, world=world))
        for a, b in list(zip(parts[::2], parts[1::2], strict=True))[start:]:
            yield Batch(*(torch.cat(pair) for pair in zip(vars(a).values(), vars(b).values(), strict=True)))

    def batches_in(self, epoch: int) -> int:
        return self.many // 2


def test_accumulated_batches_equal_one_large_batch(tmp_path: Path) -> None:
    small = run(tmp_path / "a", dataclasses.replace(SHORT, accumulate=2), Toy())
    large = run(tmp_path / "b", SHORT, Joined())
    for name, value in weights_of(small.model).items():
        torch.testing.assert_close(value, weights_of(large.model)[name], rtol=1e-5, atol=1e-6)
    for a, b in zip(lines(tmp_path / "a"), lines(tmp_path / "b"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5) and a["step"] == b["step"]


def test_a_step_never_crosses_the_end_of_an_epoch(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=None, epochs=3, accumulate=4, evaluate_every=0)
    task = run(tmp_path, config)
    assert [r["step"] for r in lines(tmp_path) if r["event"] == "evaluate"] == [2, 4, 6], "4 batches, then 2"
    assert task.asked == [(epoch, number) for epoch in range(3) for number in range(6)]


def interrupt_at(step: int) -> Any:
    """Return a hook that sends Ctrl-C."""

    def hook(record: Mapping[str, Any]) -> None:
        if record["step"] == step:
            signal.raise_signal(signal.SIGINT)

    return hook


@pytest.mark.parametrize("average", ["none", "exponential", "last"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(tmp_path: Path, average: Any) -> None:
    config = dataclasses.replace(SHORT, accumulate=2, average=average, average_every=2)
    run(tmp_path / "unbroken", config)
    for step in (4, 12):
        with pytest.raises(Interrupted, match=rf"stopped after step {step + 1}; saved: .*state-0+{step + 1}\. Run the"):
            run(tmp_path / "broken", config, hooks=[interrupt_at(step)])
    seed_all(1234)  # another process has other generator states
    run(tmp_path / "broken", config, Toy(dropout=0.1, seed=0))
    assert same_runs(tmp_path / "unbroken", tmp_path / "broken")


def test_the_evaluation_interval_does_not_change_training(tmp_path: Path) -> None:
    often = run(tmp_path / "a", dataclasses.replace(SHORT, evaluate_every=1, average="last"))
    never = run(tmp_path / "b", dataclasses.replace(SHORT, evaluate_every=1000))
    assert same(weights_of(often.model), weights_of(never.model))


def test_ctrl_c_aborts_an_evaluation_which_is_repeated(tmp_path: Path) -> None:
    class Asked(Toy):
        def evaluate(self) -> dict[str, float]:
            if self.evaluations == 1:
                signal.raise_signal(signal.SIGINT)
            return super().evaluate()

    config = dataclasses.replace(SHORT, average="exponential")
    run(tmp_path / "unbroken", config)
    with pytest.raises(Interrupted, match="stopped after step 10;"):
        run(tmp_path / "broken", config, Asked(dropout=0.1))
    run(tmp_path / "broken", config)
    assert same_runs(tmp_path / "unbroken", tmp_path / "broken")


def test_signal_handlers_are_restored(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run(tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_finished_run_takes_no_step(tmp_path: Path) -> None:
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    task = Toy(dropout=0.1)
    outcome = fit(task, SHORT, tmp_path, display=Silent())
    assert (outcome.trained, outcome.step, outcome.reason, task.evaluations) == (False, 20, "steps", 0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_limits_may_be_raised(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, schedule="constant")
    run(tmp_path / "a", config)
    run(tmp_path / "a", dataclasses.replace(config, steps=35))
    longer = run(tmp_path / "b", dataclasses.replace(config, steps=35))
    state = checkpoint.latest(tmp_path / "a")
    assert state is not None and state[0].step == 35
    assert same(checkpoint.part(state[1], "model"), weights_of(longer.model))
    assert read_config(tmp_path / "a")["training"]["steps"] == 35
    with pytest.raises(ValueError, match=r"these differ: training.minutes \(None there, 1.0 here\)\."):
        run(tmp_path / "a", dataclasses.replace(config, steps=None, minutes=1.0))


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path, recipe={"model": {"width": 5}})
    before = (tmp_path / "config.json").read_bytes()
    changed = dataclasses.replace(SHORT, steps=10, clip=2.0)
    with pytest.raises(ValueError) as caught:
        run(tmp_path, changed, recipe={"model": {"width": 6}})
    assert str(caught.value) == (
        f"training: settings must be those of the run in {tmp_path}; these differ: model.width (5 there, 6 here), "
        "training.clip (1.0 there, 2.0 here), training.steps (20 there, 10 here). Only the limits (steps, epochs, "
        "minutes) may be raised. Give the same settings to resume, or another folder."
    )
    assert (tmp_path / "config.json").read_bytes() == before


def test_early_stopping(tmp_path: Path) -> None:
    class Worsening(Toy):
        goal = ("score", "max")

        def evaluate(self) -> dict[str, float]:
            self.evaluations += 1
            return {"score": [0.1, 0.05, 0.3, 0.3, float("nan"), 0.2, 0.9][self.evaluations - 1]}

    config = dataclasses.replace(SHORT, steps=1000, patience=3)
    outcome = fit(Worsening(), config, tmp_path, display=Silent())
    assert (outcome.reason, outcome.step, outcome.best, outcome.best_step) == ("patience", 30, 0.3, 15)
    assert read_tensors_and_metadata(tmp_path / "model.safetensors")[1]["step"] == "15"
    again = fit(Worsening(), dataclasses.replace(config, steps=2000), tmp_path, display=Silent())
    assert (again.trained, again.reason) == (False, "patience")


class Tied(Toy):
    """A task with the same score in most evaluations, and a loss that falls and then rises."""

    goal = ("accuracy", "max")
    values = ((0.5, 3.0), (1.0, 2.0), (1.0, 2.0), (1.0, 0.5), (0.9, 0.1), (1.0, float("nan")), (1.0, 0.7), (1.0, 0.4))

    def __init__(self, evaluations: int = 0) -> None:
        super().__init__()
        self.evaluations = evaluations

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        accuracy, loss = self.values[self.evaluations - 1]
        return {"loss": loss, "accuracy": accuracy}


@pytest.mark.parametrize(("patience", "steps", "best_step"), [(0, 40, 40), (3, 35, 20)])
def test_the_lower_loss_decides_between_equal_scores(tmp_path: Path, patience: int, steps: int, best_step: int) -> None:
    """A lower loss at the same score is an improvement for the saved weights and for early stopping."""
    config = dataclasses.replace(SHORT, steps=40, patience=patience)
    outcome = fit(Tied(), config, tmp_path, display=Silent())
    assert (outcome.best, outcome.best_step, outcome.step) == (1.0, best_step, steps)
    assert read_tensors_and_metadata(tmp_path / "model.safetensors")[1]["step"] == str(best_step)


@pytest.mark.parametrize("stop", [12, 17, 32])
def test_a_resumed_run_compares_losses_of_earlier_sessions(tmp_path: Path, stop: int) -> None:
    config = dataclasses.replace(SHORT, steps=40, schedule="constant")
    fit(Tied(), config, tmp_path / "unbroken", display=Silent())

    class Stopped(Tied):
        def batch_loss(self, batch: Batch) -> Loss:
            if self.model.training and len(self.asked) == stop:
                signal.raise_signal(signal.SIGTERM)
            return super().batch_loss(batch)

    with pytest.raises(Interrupted, match=f"stopped after step {stop};"):
        fit(Stopped(), config, tmp_path / "broken", display=Silent())
    (tmp_path / "broken/metrics.jsonl").unlink()  # no result depends on this file
    fit(Tied(stop // 5), config, tmp_path / "broken", display=Silent())
    best = [read_tensors(tmp_path / name / "model.safetensors") for name in ("unbroken", "broken")]
    assert same(*best)
    states = [checkpoint.latest(tmp_path / name) for name in ("unbroken", "broken")]
    positions = [(state[0].best, state[0].best_step, state[0].misses) for state in states if state is not None]
    assert positions == [(1.0, 40, 0)] * 2


def test_a_goal_must_be_among_the_metrics(tmp_path: Path) -> None:
    task = Toy()
    task.goal = ("bleu", "max")
    with pytest.raises(ValueError, match=r"goal \(bleu, max\) must be a metric of evaluate .*got loss, accuracy"):
        run(tmp_path, SHORT, task)


class Exploding(Toy):
    """The toy task with a loss that becomes non-finite."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__()
        self.at, self.value, self.calls = at, value, 0

    def batch_loss(self, batch: Batch) -> Loss:
        self.calls += self.model.training
        loss = super().batch_loss(batch)
        return Loss(loss.total * (self.value if self.calls >= self.at else 1.0), loss.count, loss.extras)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [8, 10, 11])
def test_a_non_finite_loss_raises_with_its_step(tmp_path: Path, at: int, value: float) -> None:
    with pytest.raises(Diverged) as caught:
        run(tmp_path, SHORT, Exploding(at, value))
    assert re.fullmatch(
        rf"training: loss and gradient must stay finite; got NaN or ∞ at step {at}, at a learning rate of 0\.00\d+\. "
        r"Try a lower one \(0\.003\), a longer warm-up \(now 3 steps\) or a clip below 1, in another folder\. The last "
        r"state is undamaged, .*",
        str(caught.value),
    )
    state = checkpoint.latest(tmp_path)
    assert state is not None and state[0].step == (at - 1) // 3 * 3
    assert all(value.isfinite().all() for name, value in state[1].items() if name.startswith("model/"))


def test_non_finite_weights_are_never_saved(tmp_path: Path) -> None:
    class Broken(Toy):
        def evaluate(self) -> dict[str, float]:
            next(iter(self.model.parameters())).data[0] = float("inf")
            return {"loss": 1.0}

    with pytest.raises(Diverged, match=r"weights must stay finite; got NaN or ∞ at step 5,"):
        run(tmp_path, dataclasses.replace(SHORT, save_every=5), Broken())
    assert checkpoint.states(tmp_path) == []


def test_a_full_disk_stops_the_run_which_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "unbroken")
    through = files.write_bytes

    def full(path: Path, data: bytes) -> None:
        if "state-00000009" in str(path):
            through(path, data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        through(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", full)
        with pytest.raises(Unwritable, match=r"state-00000009 .* must be written; got No space left on device"):
            run(tmp_path / "broken")
    assert [path.name for path in checkpoint.states(tmp_path / "broken")] == ["state-00000003", "state-00000006"]
    run(tmp_path / "broken")
    assert same_runs(tmp_path / "unbroken", tmp_path / "broken")


def test_a_damaged_state_costs_only_its_interval(tmp_path: Path) -> None:
    run(tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", hooks=[interrupt_at(12)])
    newest = checkpoint.states(tmp_path / "broken")[-1] / checkpoint.TENSORS
    os.truncate(newest, newest.stat().st_size - 1)
    with pytest.warns(RuntimeWarning, match=f"{newest} must be a complete safetensors file"):
        run(tmp_path / "broken")
    assert same_runs(tmp_path / "unbroken", tmp_path / "broken")


def test_the_time_limit_includes_earlier_sessions(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=None, minutes=1000.0)
    with pytest.raises(Interrupted):
        run(tmp_path, config, hooks=[interrupt_at(4)])
    state = checkpoint.states(tmp_path)[-1]
    at, tensors = checkpoint.load(state)
    at.seconds = 59_999.8  # nearly the limit
    checkpoint.save(tmp_path, at, tensors)
    records: list[Mapping[str, Any]] = []
    outcome = fit(Toy(dropout=0.1), config, tmp_path, hooks=[records.append], display=Silent())
    assert outcome.reason == "minutes" and outcome.seconds > 59_999.8  # the last evaluation counts, too
    assert all(record["seconds"] >= 59_999.8 for record in records if record["event"] == "train")


def test_a_folder_is_locked_during_a_run(tmp_path: Path) -> None:
    def second(record: Mapping[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"must be used by one process at a time; got a second one\."):
            run(tmp_path)

    run(tmp_path, hooks=[second])


@pytest.mark.parametrize(("claimed", "got"), [(7, 6), (0, 0)])
def test_an_epoch_must_have_the_declared_number_of_batches(tmp_path: Path, claimed: int, got: int) -> None:
    task = Toy()
    task.batches_in = lambda epoch: claimed  # type: ignore[method-assign]
    message = rf"batches_in\(0\) \({claimed}\) must be the number of batches that batches\(0\) yields; got {got}\."
    with pytest.raises(ValueError, match=message):
        run(tmp_path, SHORT, task)


def test_a_model_without_parameters_is_refused(tmp_path: Path) -> None:
    task = Toy()
    task.model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"model \(0 parameters\) must have trainable parameters"):
        run(tmp_path, SHORT, task)


def test_invalid_settings_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"clip \(-1\)"):
        run(tmp_path / "x", dataclasses.replace(SHORT, clip=-1))
    assert not (tmp_path / "x").exists()


def test_bfloat16_can_be_selected(tmp_path: Path) -> None:
    class Peeking(Toy):
        def batch_loss(self, batch: Batch) -> Loss:
            if self.model.training:
                kinds.add(self.model(batch.inputs).dtype)
            return super().batch_loss(batch)

    kinds: set[torch.dtype] = set()
    task = run(tmp_path, dataclasses.replace(SHORT, precision="bfloat16"), Peeking())
    assert kinds == {torch.bfloat16}
    assert {p.dtype for p in task.model.parameters()} == {torch.float32}


def test_compile_can_be_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: asked.append(type(self).__name__))
    run(tmp_path / "a", dataclasses.replace(SHORT, compile=True))
    run(tmp_path / "b", SHORT)
    assert asked == ["Labeller"]


def test_curves_are_drawn(tmp_path: Path, drawing: None) -> None:
    run(tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_warm_up_longer_than_the_minutes_is_refused(tmp_path: Path) -> None:
    """The speed is taken from the first steps; here, each takes 6 seconds of the run's time."""
    config = dataclasses.replace(SHORT, steps=None, minutes=1.0, warmup=50)
    session = Session(Toy(), config, Group(0, 1, torch.device("cpu")), Signals())
    for step in range(1, 4):
        session.progress.step, session.progress.seconds = step, 1 + 6.0 * step
        session.check_warmup()
    session.progress.step, session.progress.seconds = 4, 25.0
    with pytest.raises(ValueError, match=r"warmup \(50\) must not be longer than the run, about 10 steps in 1 minutes"):
        session.check_warmup()
    session.config = dataclasses.replace(config, warmup=9)
    session.check_warmup()


def test_a_warm_up_longer_than_the_epochs_is_refused_and_can_be_corrected_in_the_same_folder(tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, steps=None, epochs=2, warmup=50)
    with pytest.raises(ValueError, match=r"warmup \(50\) must not be longer than the run, 12 steps in 2 epochs"):
        run(tmp_path, config)
    run(tmp_path, dataclasses.replace(config, warmup=0.1))
    with pytest.raises(ValueError, match=r"settings must be those of the run .* training.warmup \(0.1 there, 3 here\)"):
        run(tmp_path, dataclasses.replace(config, warmup=3))


def test_an_evaluation_ends_at_its_deadline_and_keeps_its_size() -> None:
    task, shares = Toy(), list[float]()
    task.report = shares.append
    task.deadline = -math.inf  # its time is over at once
    assert list(task.evaluated("batches", iter([1, 2, 3]), 3)) == [1]  # at least one part
    task.deadline = math.inf
    assert list(task.evaluated("batches", iter([1, 2, 3]), 3)) == [1]  # as many as in the first evaluation
    assert list(task.evaluated("others", iter([1, 2, 3]), 2)) == [1, 2, 3]  # the number may be an estimate
    assert list(task.evaluated("others", iter([1, 2, 3]), 2)) == [1, 2, 3]
    assert shares == [1 / 3, 1.0, 1 / 2, 1.0, 1.0, 1 / 2, 1.0, 1.0]


def test_the_limit_in_minutes_includes_the_last_evaluation() -> None:
    config = dataclasses.replace(SHORT, steps=None, minutes=1.0)
    session = Session(Toy(), config, Group(0, 1, torch.device("cpu")), Signals())
    for seconds, evaluation, reason in (
        (53.9, None, ""),
        (54.0, None, "minutes"),  # a tenth is kept until the duration is known
        (54.0, 2.0, ""),
        (58.0, 2.0, "minutes"),
        (54.0, 30.0, "minutes"),  # never more than a tenth
        (53.9, 30.0, ""),
    ):
        session.progress.seconds, session.evaluation_seconds = seconds, evaluation
        assert reached(session) == reason


def test_an_evaluation_is_announced_and_its_duration_kept(tmp_path: Path) -> None:
    text = io.StringIO()
    fit(Toy(), dataclasses.replace(SHORT, steps=2, warmup=1), tmp_path, display=Display(Console(file=text, width=120)))
    lines = text.getvalue().splitlines()
    announced = lines.index("step 2 · evaluating …")
    assert lines[announced + 1].startswith("step 2 · evaluated: ")
