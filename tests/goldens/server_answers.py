"""The answers of the server on every route, for a target of each kind."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from regard.server.open_target import open_target
from tests.goldens.entry_points import create_app
from tests.page.targets import language_model

LANGUAGE = "language"
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "capture": ("capture.safetensors", {"batch": 1}),
    "translator": ("transformer", {"text": "the cat sees a dog"}),
    "recurrent": ("recurrent", {"text": "the cat sees a dog"}),
    "classifier": ("scratch", {"text": "a lovely film"}),
    "huggingface": ("huggingface", {"text": "a lovely film"}),
    "images": ("vit", {"image": "images/test/left/0.png"}),
    LANGUAGE: ("", {}),
}
"""Path and options of `open_target`, by name; the language model is not read from a file."""

MAP = (
    "api/maps/0/0/overview.png?size=5",
    "api/maps/0/mean/overview.png?size=5&reduce=mean&scale=log&palette=dark",
    "api/maps/0/mean/overview.pgm?size=5&reduce=mean&scale=log",
    "api/maps/0/0/tile/0/0/0.pgm?reduce=max&scale=linear",
    "api/maps/0/0/cell?query=1&key=2",
    "api/maps/0/mean/query/1?top=3",
    "api/maps/0/0/key/2?top=3",
    "api/maps/0/0/received",
    "api/maps/0/profile",
)
GET: dict[str, tuple[str, ...]] = {
    "capture": (
        *MAP,
        *("api/rollout/3", "api/rollout/3?maps=0,1", "api/image.png", "api/overlay?map=1&head=0&query=2"),
        *(
            "api/overlay?rollout=1&query=0",
            "api/explain",
            "api/explain/additive?text=a+b",
            "api/unknown",
            "api/maps/9/0/received",
        ),
    ),
    "translator": (*MAP, "api/explain"),
    "recurrent": ("api/maps/0/0/query/1",),
    "classifier": (*MAP, "api/rollout/1", "api/explain/run?text=a+film", "api/explain/run"),
    "huggingface": (*MAP, "api/rollout/1"),
    "images": (*MAP, "api/image.png", "api/overlay?map=0&head=mean&query=0", "api/overlay?rollout=1&query=0"),
    LANGUAGE: ("api/generate",),
}
"""Paths to read, by target."""
POST: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "capture": (("api/run", {"text": "another"}), ("api/translate", {"text": "another"})),
    "translator": (
        ("api/translate", {"text": "a dog", "beam": 3, "n_best": 2}),
        ("api/run", {"text": "a bird"}),
        ("api/translate", {"text": "a dog", "beam": "3"}),
    ),
    "recurrent": (("api/translate", {"text": "a dog", "beam": 2, "n_best": 1}),),
    "classifier": (("api/run", {"text": "the story was dull"}),),
    "huggingface": (("api/run", {"text": "the story was dull"}),),
    "images": (("api/run", {"text": "another"}),),
    LANGUAGE: (("api/run", {"text": "another"}), ("api/generate", {"text": "the cat", "tokens": 0})),
}


def answers(name: str) -> dict[str, Any]:
    """Status, kind and contents of every answer for a target in the current directory; a picture counts as pixels."""
    path, options = TARGETS[name]
    result: dict[str, Any] = {}
    target = language_model() if name == LANGUAGE else open_target(Path(path), **options)
    with TestClient(create_app(target), base_url="http://127.0.0.1:8000") as client:
        for asked in ("api/target", "api/progress", *GET[name]):
            result[f"GET {asked}"] = _answer(client.get(f"/{asked}"))
        for asked, body in POST[name]:
            result[f"POST {asked} {body}"] = _answer(client.post(f"/{asked}", json=body))
        if name == LANGUAGE:
            result |= _generation(client)
    return result


def _generation(client: TestClient) -> dict[str, Any]:
    """The answers about one generation, whose id is random."""
    started = client.post("/api/generate", json={"text": "the cat", "tokens": 3, "runners_up": 2, "temperature": 0.0})
    at = f"/api/generate/{started.json()['id']}"
    return {
        "POST api/generate": _answer(started),
        "GET api/generate/ID/steps": _answer(client.get(f"{at}/steps?from=0&count=3")),
        "GET api/generate/ID/attention": _answer(client.get(f"{at}/attention?token=8&layer=0&head=1")),
        "POST api/generate/ID/branch": _answer(client.post(f"{at}/branch", json={"step": 1, "token": 9})),
        "POST api/generate/ID/continue": _answer(client.post(f"{at}/continue", json={"tokens": 4})),
    }


def _answer(response: Any) -> dict[str, Any]:
    kind = response.headers["content-type"]
    if kind in ("image/png", "image/x-portable-graymap"):
        image = Image.open(io.BytesIO(response.content)).convert("RGB")
        contents: Any = {"size": list(image.size), "pixels": np.asarray(image).reshape(-1).tolist()}
    else:
        contents = response.json()
        if isinstance(contents, dict) and "version" in contents:
            contents["version"] = type(contents["version"]).__name__  # random
        if isinstance(contents, dict) and "limit" in contents and "id" in contents:
            contents["id"] = type(contents["id"]).__name__  # random
        for value in contents.get("values", []) if isinstance(contents, dict) else []:
            if isinstance(value.get("data"), str):  # cells of a chart: 16-bit integers, as shades of a picture
                value["data"] = {"pixels": np.frombuffer(base64.b64decode(value["data"]), "<i2").tolist()}
    return {"status": response.status_code, "kind": kind, "contents": contents}


def routes(capture: Path) -> dict[str, list[str]]:
    """Every path that the server knows, with its methods."""
    app = create_app(open_target(capture))
    return {route.path: sorted(route.methods - {"HEAD"}) for route in app.routes}
