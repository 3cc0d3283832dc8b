"""The API types of the page match the server: real responses are compiled against them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from regard.server.open_target import open_target
from regard.server.routes import create
from regard.server.target import Target
from regard.server.work_queue import Task
from regard.training import logbook
from tests.page import runs, targets
from tests.page.test_assets import ROOT, demand, node

WEB = ROOT / "web"
COMPILER = WEB / "node_modules/typescript/bin/tsc"
MAP = "/api/maps/0/0"
ANSWERS = {
    "capture": {
        "/api/target": "Target",
        f"{MAP}/cell?query=3&key=2": "CellAnswer",
        f"{MAP}/query/3?top=2": "QueryAnswer",
        f"{MAP}/key/3?top=2": "KeyAnswer",
        f"{MAP}/received": "ReceivedAnswer",
        "/api/maps/0/profile": "Profile[]",
        "/api/progress": "Progress",
        "/api/explain": "ExplainOffer",
        "/api/explain/dot": "Chart",
        "/api/explain/bahdanau": "Chart",
        "/api/nothing": "RefusalAnswer",
    },
    "images": {"/api/target": "Target", "/api/overlay?map=0&head=0": "OverlayAnswer"},
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    """Yield the name of a type and a response of that type."""
    demand(node() and COMPILER.exists(), "no TypeScript; run make page")
    created: dict[str, Target] = {"capture": targets.capture(40, layers=1, heads=2), "images": targets.images()}
    result: list[tuple[str, Any]] = []
    for name, answers in ANSWERS.items():
        app = create(created[name])
        task = Task("a task")
        task.started = True
        app.state.app.queue._tasks.append(task)
        client = TestClient(app, base_url="http://127.0.0.1")
        result += [(type, client.get(address).json()) for address, type in answers.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logbook, "draw", lambda records, goal: b"")
        target = open_target(runs.translator(tmp_path_factory.mktemp("translator")))
    client = TestClient(create(target), base_url="http://127.0.0.1")
    result.append(("Target", client.get("/api/target").json()))
    translated = client.post("/api/translate", json={"text": "the cat sees a dog", "beam": 2, "n_best": 2})
    result.append(("TranslateAnswer", translated.json()))
    return [*result, *generation_samples()]


def generation_samples() -> list[tuple[str, Any]]:
    """Return the responses about a generation."""
    client = TestClient(create(targets.language_model()), base_url="http://127.0.0.1")
    started = client.post("/api/generate", json={"text": "the cat", "tokens": 2, "runners_up": 2}).json()
    at = f"/api/generate/{started['id']}"
    result = [("Target", client.get("/api/target").json()), ("LanguageInfo", client.get("/api/generate").json())]
    result += [("GenerationStart", started), ("StepsAnswer", client.get(f"{at}/steps").json())]
    result += [("StepsAnswer", client.get(f"{at}/steps?count=9").json())]
    result.append(("AttentionAnswer", client.get(f"{at}/attention?token=3&layer=1&head=2").json()))
    result.append(("BranchAnswer", client.post(f"{at}/branch", json={"step": 1, "token": 5}).json()))
    result.append(("BranchAnswer", client.post(f"{at}/continue", json={"tokens": 3}).json()))
    return result


def compiled(samples: list[tuple[str, Any]], folder: Path) -> str:
    """Return the errors of the compiler."""
    names = sorted({type.removesuffix("[]") for type, _ in samples} - {"Chart"})
    lines = [
        f'import type {{ {", ".join(names)} }} from "{(WEB / "src/api/types.ts").as_posix()}";',
        f'import type {{ Chart }} from "{(WEB / "src/explain/chart_model.ts").as_posix()}";',
    ]
    lines += [f"export const answer{n}: {type} = {json.dumps(sample)};" for n, (type, sample) in enumerate(samples)]
    (folder / "answers.ts").write_text("\n".join(lines), encoding="utf-8")
    options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2023,dom", "--module", "esnext"]
    options += ["--moduleResolution", "bundler", "--allowImportingTsExtensions", "--exactOptionalPropertyTypes"]
    options += ["--ignoreConfig"]
    command = [str(node()), str(COMPILER), *options, "answers.ts"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_responses_match_the_types_of_the_page(samples: list[tuple[str, Any]], tmp_path: Path) -> None:
    assert compiled(samples, tmp_path) == ""


def test_a_difference_does_not_compile(samples: list[tuple[str, Any]], tmp_path: Path) -> None:
    of = dict(samples)
    lacking = {name: value for name, value in of["CellAnswer"].items() if name != "rank"}
    added = {**of["QueryAnswer"], "more": 1}
    changed = {**of["OverlayAnswer"], "rows": "2"}
    wrong = [("CellAnswer", lacking), ("QueryAnswer", added), ("OverlayAnswer", changed)]
    errors = compiled([*wrong, ("Chart", of["Chart"])], tmp_path)
    assert (
        "'rank' is missing" in errors
        and "'\"more\"' does not exist" in errors
        and "'string' is not assignable" in errors
    )
