"""A server that answers as `regard view` does, on maps made up here: what the page is built and tested against.

python -m tests.view.fake_server --port 8765     then http://127.0.0.1:8765/capture/ , /images/ , /translator/
"""

from __future__ import annotations

import argparse
import json
import math
import re
import struct
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import torch
from torch import Tensor

import regard
from regard.view import web
from regard.view.explain import MECHANISMS, explain
from regard.view.server.tiles import pgm

ROOT = Path(__file__).parents[2]
TILE = 256
POLICY = (  # as strict as that of `regard view`: what the page needs beyond it would not work there
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def png(pixels: Tensor) -> bytes:
    """(H, W, 3) of bytes as a PNG file."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")


def words(count: int) -> list[str]:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8").split()
    pieces = [piece for word in text for piece in re.findall(r"[A-Za-z]{1,7}|[^A-Za-z]+", word)]
    starts = {0}
    for word in text:
        starts.add(max(starts) + len(re.findall(r"[A-Za-z]{1,7}|[^A-Za-z]+", word)))
    return [("Ġ" if place in starts else "") + piece for place, piece in enumerate(pieces)][:count]


def attention(tokens: list[str], others: list[str], seed: int, causal: bool) -> regard.AttentionMap:
    """A map with what maps of trained models show: near tokens, like tokens and a first token that draws many."""
    torch.manual_seed(seed)
    known = {word: torch.randn(16) for word in sorted({*tokens, *others})}
    rates = 1 / (10 ** torch.linspace(0, 3.5, 12))
    near, like, sink = (float(x) for x in torch.tensor([2.2, 0.5, 1.5]) * (0.4 + 1.2 * torch.rand(3)))

    def features(sequence: list[str], weight: bool) -> Tensor:
        place = torch.arange(len(sequence))[:, None] * rates
        if weight:
            place = place - rates * (1 + seed % 3)
        wave = torch.cat([place.sin(), place.cos()], 1) * near
        same = torch.stack([known[word] for word in sequence]) * like
        first = torch.zeros(len(sequence), 1)
        first[:, 0] = sink if weight else 0.0
        if not weight:
            first[0, 0] = 4.0
        return torch.cat([wave, same, first], 1)[None, None]

    q, k = features(tokens, True), features(others, False)
    _, found = regard.attend(q, k, torch.zeros_like(k), is_causal=causal, scale=0.5, return_map=True)
    return found


class Fake:
    """One target: its description and its maps."""

    def __init__(self, kind: str, length: int = 2048, layers: int = 4, heads: int = 6) -> None:
        self.kind = kind
        self.maps: list[list[regard.AttentionMap]] = []
        tables: dict[str, list[str]] = {}
        infos: list[dict[str, object]] = []
        image = None

        def add(name: str, kind: str, count: int, query: list[str], key: list[str], names: tuple) -> None:
            infos.append(
                {"id": len(infos), "name": name, "kind": kind, "heads": count, "queries": len(query)}
                | {"keys": len(key), "query_tokens": names[0], "key_tokens": names[1]}
            )
            seed = 10 * len(infos)
            self.maps.append([attention(query, key, seed + head, kind == "causal") for head in range(count)])

        if kind == "capture":
            tables = {"t0": words(length), "t1": words(length + 90)[length : length + 90]}
            for layer in range(layers):
                add(f"model.layers.{layer}.self_attn", "causal", heads, tables["t0"], tables["t0"], ("t0", "t0"))
            add("decoder.layers.0.cross_attn", "cross", 2, tables["t1"], tables["t0"][:120], ("t1", "t2"))
            tables["t2"] = tables["t0"][:120]
        elif kind == "images":
            rows, columns = 14, 14
            patches = ["[CLS]", *(f"{row},{column}" for row in range(rows) for column in range(columns))]
            for layer in range(3):
                add(f"encoder.layers.{layer}.attention", "self", 4, patches, patches, (None, None))
            image = {"width": 224, "height": 224, "rows": rows, "columns": columns, "first": 1}
        can = {"capture": ["map", "text", "run"], "images": ["map", "image"], "translator": ["translate"]}[kind]
        self.target = {"kind": kind, "title": f"a made-up {kind}", "version": "1", "tokens": tables}
        self.target |= {"maps": infos, "image": image, "can": can}

    def rows(self, index: int, head: str) -> list[regard.AttentionMap]:
        if not 0 <= index < len(self.maps):
            raise LookupError(f"map ({index}) must be one of 0 to {len(self.maps) - 1}.")
        if head == "mean":
            return self.maps[index]
        if not head.isdigit() or int(head) >= len(self.maps[index]):
            raise LookupError(f"head ({head}) must be a number below {len(self.maps[index])}, or mean.")
        return [self.maps[index][int(head)]]

    def row(self, index: int, head: str, query: int) -> Tensor:
        return torch.stack([m[0, 0, query] for m in self.rows(index, head)]).mean(0)

    def column(self, index: int, head: str, key: int) -> Tensor:
        return torch.stack([m[0, 0, :, key] for m in self.rows(index, head)]).mean(0)

    def picture(self, index: int, head: str, rows: tuple, columns: tuple, out: tuple, ask: dict[str, str]) -> bytes:
        reduce = ask.get("reduce", "max")
        cells = torch.stack([m.tile(rows, columns, out, reduce)[0, 0] for m in self.rows(index, head)]).mean(0)
        share = cells / 0.2 if ask.get("scale") == "linear" else 1 + cells.clamp(min=1e-9).log10() / 4
        return pgm((share.clamp(0, 1) * 255).to(torch.uint8))

    def tile(self, index: int, head: str, level: int, column: int, row: int, ask: dict[str, str]) -> bytes:
        info = self.target["maps"][index]
        queries, keys = info["queries"], info["keys"]
        cells = 2 ** (math.ceil(math.log2(max(queries, keys))) - level)
        spans = []
        for place, size in ((row, queries), (column, keys)):
            start, stop = place * TILE * cells, min((place + 1) * TILE * cells, size)
            if not start < stop:
                raise LookupError(f"tile ({level}/{column}/{row}) lies outside the map.")
            spans.append((start, stop))
        out = tuple(math.ceil((stop - start) / cells) for start, stop in spans)
        return self.picture(index, head, spans[0], spans[1], out, ask)

    def profile(self, index: int) -> list[dict[str, float]]:
        found = []
        for m in self.maps[index]:
            part = m[0, 0, :64]
            places = torch.arange(part.shape[-1])
            found.append(
                {
                    "entropy": float(m.entropy().mean()),
                    "distance": float((part * (places - torch.arange(64)[:, None]).abs()).sum(-1).mean()),
                    "first": float(part[:, 0].mean()),
                    "previous": float(part.diagonal(-1).mean()),
                    "same": float(part.diagonal().mean()),
                }
            )
        return found

    def overlay(self, ask: dict[str, str]) -> dict[str, object]:
        image = self.target["image"]
        query = int(ask.get("query", "0"))
        if ask.get("rollout") == "1":
            weights = torch.zeros(1, 1, 1, 1 + image["rows"] * image["columns"])
            weights[..., query] = 1.0
            for index in reversed(range(len(self.maps))):
                weights = 0.5 * weights + 0.5 * torch.stack([weights @ m for m in self.maps[index]]).mean(0)
            row = weights[0, 0, 0]
        else:
            row = self.row(int(ask["map"]), ask["head"], query)
        return {"rows": image["rows"], "columns": image["columns"], "weights": row[image["first"] :].tolist()}

    def photograph(self) -> bytes:
        y, x = torch.meshgrid(torch.linspace(-1, 1, 224), torch.linspace(-1, 1, 224), indexing="ij")
        sun = torch.exp(-((x - 0.3) ** 2 + (y + 0.35) ** 2) * 9)
        hill = ((y - 0.35 + 0.25 * torch.sin(3 * x)) > 0).float()
        red = 0.55 + 0.4 * sun - 0.25 * hill
        green = 0.65 + 0.25 * sun - 0.15 * hill
        blue = 0.85 - 0.3 * sun - 0.5 * hill
        return png((torch.stack([red, green, blue], -1).clamp(0, 1) * 255).to(torch.uint8))


LEXICON = {"the": "die", "cat": "Katze", "sits": "sitzt", "on": "auf", "mat": "Matte", "a": "eine", "red": "rote"}


def translate(text: str, count: int) -> dict[str, object]:
    """Word for word, the last word first: so that links cross."""
    source = [*text.split(), "</s>"]
    target = [*(LEXICON.get(word.lower(), word[::-1]) for word in reversed(source[:-1])), "</s>"]
    order = [*reversed(range(len(source) - 1)), len(source) - 1]
    hypotheses = []
    for place in range(count):
        weights = torch.full((len(target), len(source)), 0.2 / len(source))
        for row, column in enumerate(order):
            weights[row, column] += 0.8 - 0.1 * place
        hypotheses.append(
            {"text": " ".join(target[:-1]) + "!" * place, "score": -0.3 - 0.4 * place, "source": source}
            | {"target": target, "weights": (weights / weights.sum(-1, keepdim=True)).tolist()}
            | {"source_words": source[:-1], "target_words": target[:-1]}
            | {"links": [[column, row] for row, column in enumerate(order[:-1])]}
        )
    return {"hypotheses": hypotheses}


class Server(ThreadingHTTPServer):
    """Several targets under one address, each below its own folder. While `gate` is cleared, no question is answered;
    `refuse` is the answer to the next requests for a query instead, `progress` what is told meanwhile. A number before
    the folder names a visit: of several, the questions of the newest are noted in `asked`, and in `answered` once they
    were."""

    daemon_threads = True

    def __init__(self, port: int = 0, **sizes: int) -> None:
        self.fakes = {kind: Fake(kind, **sizes) for kind in ("capture", "images", "translator")}
        self.gate = threading.Event()
        self.visits = 0
        self.fresh()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def fresh(self) -> None:
        """As at the start, for another visit: nothing asked, nothing refused. What was asked before is answered."""
        self.visits += 1
        self.refuse: str | None = None
        self.progress: dict[str, object] = {"working": [], "waiting": 0}
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.gate.set()

    def done(self) -> bool:
        """Whether every question that was asked has its answer."""
        return len(self.answered) >= len(self.asked)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply(None)

    def do_POST(self) -> None:
        self.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def reply(self, body: dict | None) -> None:
        try:
            kind, data = self.find(body)
            self.send(200, kind, data)
        except (LookupError, IndexError, ValueError) as error:
            self.send(404, "application/json", json.dumps({"error": str(error)}).encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page took its question back
        if self.path in self.server.asked:
            self.server.answered.append(self.path)

    def send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-security-policy", POLICY)
        self.end_headers()
        self.wfile.write(data)

    def find(self, body: dict | None) -> tuple[str, bytes]:
        address = urlsplit(self.path)
        visit, name, *rest = re.sub(r"^(?!/\d+/)", "/0", address.path)[1:].split("/")
        path = "/".join(rest)
        if name not in self.server.fakes:
            raise LookupError(f"no such page ({address.path}); try /capture/.")
        if not path.startswith("api/"):
            file = web.built() / (path or "index.html")
            kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
            return kinds.get(file.suffix, "application/octet-stream"), file.read_bytes()
        if path == "api/progress":  # told while everything else waits
            return "application/json", json.dumps(self.server.progress).encode()
        if int(visit) in (0, self.server.visits):
            self.server.asked.append(self.path)
        self.server.gate.wait()
        if self.server.refuse and "/query/" in path:
            raise LookupError(self.server.refuse)
        ask = {key: values[0] for key, values in parse_qs(address.query).items()}
        with self.server.lock:
            found = answer(self.server.fakes[name], path.removeprefix("api/"), ask, body or {})
        return ("image/png", found) if isinstance(found, bytes) else ("application/json", json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


def top(weights: Tensor, count: int) -> tuple[list[int], list[float]]:
    values, places = weights.topk(min(count, len(weights)))
    return places.tolist(), values.tolist()


def _cell(fake: Fake, index: int, head: str, ask: dict[str, str]) -> dict[str, object]:
    query, key = int(ask["query"]), int(ask["key"])
    row = fake.row(index, head, query)
    return {"query": query, "key": key, "weight": float(row[key]), "rank": int((row > row[key]).sum()) + 1}


def _query(fake: Fake, index: int, head: str, query: str, ask: dict[str, str]) -> dict[str, object]:
    row = fake.row(index, head, int(query))
    keys, weights = top(row, int(ask.get("top", "20")))
    return {"keys": keys, "weights": weights, "row": row.tolist()}


def _key(fake: Fake, index: int, head: str, key: str, ask: dict[str, str]) -> dict[str, object]:
    column = fake.column(index, head, int(key))
    queries, weights = top(column, int(ask.get("top", "20")))
    return {"queries": queries, "weights": weights, "column": column.tolist()}


def _received(fake: Fake, index: int, head: str) -> dict[str, object]:
    maps = fake.rows(index, head)
    return {"received": (torch.stack([m.received()[0, 0] for m in maps]).mean(0) / maps[0].shape[-2]).tolist()}


def _overview(fake: Fake, index: int, head: str, ask: dict[str, str]) -> bytes:
    queries, keys = fake.rows(index, head)[0].shape[-2:]
    scale = int(ask.get("size", "96")) / max(queries, keys)
    out = (max(1, round(queries * scale)), max(1, round(keys * scale)))
    return fake.picture(index, head, (0, queries), (0, keys), out, ask)


def answer(fake: Fake, path: str, ask: dict[str, str], body: dict) -> object:
    routes: dict[str, Callable[..., object]] = {
        r"target": lambda: fake.target,
        r"run": lambda: fake.target | {"title": body["text"], "version": "2"},
        r"translate": lambda: translate(body["text"], body["n_best"]),
        r"image\.png": fake.photograph,
        r"overlay": lambda: fake.overlay(ask),
        r"explain": lambda: {
            "mechanisms": [{"name": name, "text": one.text} for name, one in MECHANISMS.items()],
            "run": None,
        },
        r"explain/([\w-]+)": lambda name: explain(name, ask.get("text")).told(),
        r"maps/(\d+)/profile": lambda index: fake.profile(int(index)),
        r"maps/(\d+)/(\w+)/overview\.pgm": lambda index, head: _overview(fake, int(index), head, ask),
        r"maps/(\d+)/(\w+)/tile/(\d+)/(\d+)/(\d+)\.pgm": lambda index, head, level, column, row: fake.tile(
            int(index), head, int(level), int(column), int(row), ask
        ),
        r"maps/(\d+)/(\w+)/cell": lambda index, head: _cell(fake, int(index), head, ask),
        r"maps/(\d+)/(\w+)/query/(\d+)": lambda index, head, query: _query(fake, int(index), head, query, ask),
        r"maps/(\d+)/(\w+)/key/(\d+)": lambda index, head, key: _key(fake, int(index), head, key, ask),
        r"maps/(\d+)/(\w+)/received": lambda index, head: _received(fake, int(index), head),
    }
    for pattern, route in routes.items():
        if match := re.fullmatch(pattern, path):
            return route(*match.groups())
    raise LookupError(f"no such question ({path}).")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8765)
    server = Server(parser.parse_args().port)
    print(f"{server.url}/capture/  {server.url}/images/  {server.url}/translator/")
    server.serve_forever()
