"""Training in two processes compared with one."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.training import Silent, Training, checkpoint, fit
from tests.training.processes import ROOT, Command
from tests.training.test_loop import SHORT, lines, same_runs
from tests.training.toy import Toy, settings_of

CONFIG = dataclasses.replace(SHORT, average="last", accumulate=2, evaluate_every=7)


def pair(folder: Path, config: Training, *options: str, status: int = 0) -> str:
    """Start two processes like torchrun, but faster, check their exit status, and return the output of both."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # keeps the port reserved for these processes
        free.bind(("localhost", 0))
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
        commands = [Command(folder, config, *options, RANK=rank, LOCAL_RANK=rank, **environment) for rank in "01"]
        assert [command.end() for command in commands] == [status, status], commands[0].text()
    return commands[0].text()


def torchrun(folder: Path, config: Training, *options: str, restarts: int) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "--monitor-interval", "0.1", "-m", "tests.training.toy"]
    words = [*command, "--folder", str(folder), *settings_of(config), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_processes_compute_the_same_as_one(tmp_path: Path) -> None:
    output = pair(tmp_path / "two", CONFIG, "--dropout", "0.0")
    fit(Toy(), CONFIG, tmp_path / "one", recipe={"toy": {"dropout": 0.0}}, display=Silent())
    assert output.count("finished by steps") == 1, "the first process alone speaks"
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert len(one) == len(two) > 5
    for a, b in zip(one, two, strict=True):
        assert (a["event"], a["step"], a.get("tokens")) == (b["event"], b["step"], b.get("tokens"))
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a.get("gradient_norm", 0) == pytest.approx(b.get("gradient_norm", 0), rel=1e-4)
    states = [checkpoint.latest(tmp_path / name) for name in ("one", "two")]
    assert states[0] is not None and states[1] is not None
    for name, value in checkpoint.part(states[0][1], "model").items():
        torch.testing.assert_close(states[1][1][f"model/{name}"], value, rtol=1e-4, atol=1e-6)
    assert not torch.equal(states[1][1]["random/0/torch"], states[1][1]["random/1/torch"])


def test_an_error_of_the_first_process_ends_the_others_in_words(tmp_path: Path) -> None:
    (tmp_path / "run/model.safetensors").mkdir(parents=True)
    output = pair(tmp_path / "run", CONFIG, status=1)
    assert "model.safetensors" in output and "must be" in output
    assert "training: process 1 must reach the other processes; got the end of one of them." in output
    assert "Traceback" not in output


def test_training_survives_a_killed_worker(tmp_path: Path) -> None:
    """The second process kills itself in step 9. All restart from step 6 and end like an uninterrupted run."""
    output = torchrun(tmp_path / "broken", CONFIG, "--dropout", "0.1", "--die", "17", restarts=1)
    assert "resuming after step 6" in output
    pair(tmp_path / "unbroken", CONFIG, "--dropout", "0.1")
    assert same_runs(tmp_path / "unbroken", tmp_path / "broken")
