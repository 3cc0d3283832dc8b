"""The routes: each checks what it is asked, hands the work to the desk, and answers with numbers or a picture."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from ..attention.cells import Cells
from ..attention.streamed_views import Reduce
from ..lens.head_profile import MEASURES
from . import head_statistics, model_routes, tiles
from .guard import LOOPBACK, Guard, Refused, answer, between, fields, one_of, refusal, text_of, whole
from .head_views import Head, Mean
from .static_files import Page
from .target import Layer, Shown, Target
from .work_queue import Cache, Desk, Task

T = TypeVar("T")
OVERVIEW = 1024
"""Pixels of the longer side of a thumbnail, at most."""
TOP = 1000
TEXT, SENTENCE = 500_000, 5_000
"""Characters of a text to run, and of one to translate."""
MOST = 10**12
REDUCE: tuple[Reduce, ...] = ("max", "mean")
KEEP = {"cache-control": "private, max-age=31536000, immutable"}


class App:
    """A target and what is needed to show it."""

    def __init__(self, target: Target, desk: Desk | None = None, cache: Cache | None = None) -> None:
        self.target, self.desk, self.cache = target, desk or Desk(), cache or Cache()
        self._model = threading.Lock()

    @property
    def shown(self) -> Shown:
        return self.target.shown

    def _map(self, request: Request) -> tuple[Shown, Layer, Head | Mean]:
        shown = self._version(request)
        layer = shown.layer(whole("map", request.path_params["map"], 0, MOST))
        return shown, layer, layer.head(request.path_params["head"])

    def _version(self, request: Request) -> Shown:
        shown, given = self.shown, request.query_params.get("v")
        if given is not None and given != shown.version:
            raise Refused(
                410, f"v ({given[:40]!r}) must be the version that is shown now; another text was run. Reload."
            )
        return shown

    async def target_route(self, request: Request) -> Response:
        return answer(self.shown.told(self.target.can))

    async def progress(self, request: Request) -> Response:
        return answer(self.desk.progress())

    async def overview(self, request: Request) -> Response:
        return self._picture(request, await self._overview(request), "image/x-portable-graymap")

    async def overview_png(self, request: Request) -> Response:
        palette = one_of("palette", request.query_params.get("palette"), tiles.PALETTES, "light")
        return self._picture(request, tiles.grey_png(await self._overview(request), palette), "image/png")

    async def _overview(self, request: Request) -> bytes:
        shown, layer, head = self._map(request)
        size = whole("size", request.query_params.get("size"), 1, OVERVIEW, 96)
        height, width = tiles.thumbnail(head.queries, head.keys, size)
        rows, cols = [Cells(0, head.queries, height)], [Cells(0, head.keys, width)]
        return await self._shades(request, shown, layer, head, rows, cols, ("overview", size))

    async def tile(self, request: Request) -> Response:
        shown, layer, head = self._map(request)
        deepest = tiles.deepest(head.queries, head.keys)
        level = whole("level", request.path_params["level"], 0, deepest)
        column, row = (whole(name, request.path_params[name], 0, MOST) for name in ("column", "row"))
        cells = 2 ** (deepest - level)
        rows, cols = tiles.side(row, head.queries, cells), tiles.side(column, head.keys, cells)
        if not rows or not cols:
            across, down = (-(-entries // (cells * tiles.TILE)) for entries in (head.keys, head.queries))
            raise Refused(
                404, f"tile (column {column}, row {row}) must lie in {across} × {down}, those of level {level}."
            )
        shades = await self._shades(request, shown, layer, head, rows, cols, (level, column, row))
        return self._picture(request, shades, "image/x-portable-graymap")

    async def _shades(
        self,
        request: Request,
        shown: Shown,
        layer: Layer,
        head: Head | Mean,
        rows: list[Cells],
        cols: list[Cells],
        place: tuple[object, ...],
    ) -> bytes:
        """Return the shades of a region as a PGM file, from the cache if it is there."""
        asked = request.query_params
        reduce = one_of("reduce", asked.get("reduce"), REDUCE, "max")
        scale = one_of("scale", asked.get("scale"), tiles.SCALES, "linear")
        ticket = whole("ticket", asked["ticket"], 0, MOST) if "ticket" in asked else None
        scope = (shown.version, request.path_params["map"], request.path_params["head"])
        key = (scope, place, reduce, scale)

        def job(task: Task) -> bytes:
            shades = tiles.pgm(head.picture(rows, cols, reduce, task, tiles.shading(scale, head.keys)))
            self.cache.put(key, shades)
            return shades

        cached = self.cache.get(key)
        if cached is not None:
            return cached
        return await self.desk.do(request, f"{layer.name}, head {scope[2]}", job, scope, ticket)

    @staticmethod
    def _picture(request: Request, contents: bytes, media_type: str) -> Response:
        keep = KEEP if "v" in request.query_params else {"cache-control": "no-store"}
        return Response(contents, headers=keep, media_type=media_type)

    async def cell(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        query = whole("query", request.query_params.get("query"), 0, head.queries - 1)
        key = whole("key", request.query_params.get("key"), 0, head.keys - 1)
        row = await self.desk.do(request, f"a row of {layer.name}", lambda task: head.row(query, task))
        weight, rank = numbers(row[key : key + 1])[0], 1 + int((row > row[key]).sum())
        return answer({"query": query, "key": key, "weight": weight, "rank": rank})

    async def query(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        query = whole("query", request.path_params["query"], 0, head.queries - 1)
        row = await self.desk.do(request, f"a row of {layer.name}", lambda task: head.row(query, task))
        return _strongest(request, "keys", "row", row)

    async def key(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        key = whole("key", request.path_params["key"], 0, head.keys - 1)
        column = await self.desk.do(request, f"a column of {layer.name}", lambda task: head.column(key, task))
        return _strongest(request, "queries", "column", column)

    async def received(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        cells, found = await self.desk.do(
            request, f"what the keys of {layer.name} receive", lambda task: head_statistics.received(head, task)
        )
        more = {"cells_per_entry": cells} if cells > 1 else {}
        return answer({"received": numbers(found), **more})

    async def profile(self, request: Request) -> Response:
        layer = self._version(request).layer(whole("map", request.path_params["map"], 0, MOST))
        found = await self.desk.do(
            request,
            f"the profile of {layer.name}",
            lambda task: [head_statistics.profile(head, task) for head in task.over(layer.heads)],
        )
        return answer([dict(zip(MEASURES, numbers(figures), strict=True)) for figures in found])

    async def rollout(self, request: Request) -> Response:
        layers = self._rolled(request)
        token = whole("token", request.path_params["token"], 0, layers[0].keys - 1)
        found = await self.desk.do(request, "rollout", lambda task: head_statistics.rollout(layers, token, task))
        return answer({"weights": numbers(found)})

    def _rolled(self, request: Request) -> list[Layer]:
        """The maps of a rollout: those that are named, or all that go from the last one's sequence to itself."""
        shown, given = self._version(request), request.query_params.get("maps", "all")
        layers = shown.square()
        if given != "all":
            layers = [shown.layer(whole("maps", number, 0, MOST)) for number in given.split(",")[: tiles.TILE]]
        if not layers or any(layer.queries != layer.keys or layer.keys != layers[0].keys for layer in layers):
            raise Refused(400, f"maps ({given[:40]!r}) must be square and of one length. Name some: maps=0,1,2.")
        return layers

    async def image(self, request: Request) -> Response:
        shown = self._version(request)
        if shown.picture is None:
            raise Refused(404, "this target must have a picture; it has none. Give a vision model and --image.")
        return Response(shown.picture, headers=KEEP if "v" in request.query_params else None, media_type="image/png")

    async def overlay(self, request: Request) -> Response:
        shown, asked = self._version(request), request.query_params
        patches = shown.patches
        if patches is None:
            raise Refused(404, "this target must have a picture to lay weights over; it has none.")
        if one_of("rollout", asked.get("rollout"), ("0", "1"), "0") == "1":
            layers = self._rolled(request)
            token = whole("query", asked.get("query"), 0, layers[0].queries - 1, 0)
            row = await self.desk.do(request, "rollout", lambda task: head_statistics.rollout(layers, token, task))
        else:
            head = shown.layer(whole("map", asked.get("map"), 0, MOST)).head(asked.get("head", "mean"))
            query = whole("query", asked.get("query"), 0, head.queries - 1, 0)
            row = await self.desk.do(request, "a row", lambda task: head.row(query, task))
        over = row[patches.first : patches.first + patches.rows * patches.columns]
        if len(over) != patches.rows * patches.columns:
            raise Refused(
                400, f"map ({len(row)} keys) must have a key for each of {patches.rows}×{patches.columns} patches."
            )
        return answer({"rows": patches.rows, "columns": patches.columns, "weights": numbers(over)})

    async def translate(self, request: Request) -> Response:
        found = await fields(request, {"text": str, "beam": int, "n_best": int})
        text, beam = text_of(found, SENTENCE), between(found, "beam", 1, 32, 5)
        n_best = between(found, "n_best", 1, beam, min(5, beam))
        return answer(await self._ask(request, "a translation", lambda: self.target.translate(text, beam, n_best)))

    async def run(self, request: Request) -> Response:
        text = text_of(await fields(request, {"text": str}), TEXT)
        self.target.shown = await self._ask(request, "another text", lambda: self.target.run(text))
        self.cache.clear()
        return answer(self.shown.told(self.target.can))

    async def explained(self, request: Request) -> Response:
        return answer(model_routes.offer(self.target))

    async def explain(self, request: Request) -> Response:
        name, text = request.path_params["name"], request.query_params.get("text")
        chart = model_routes.asked(self.target, name, text)
        return answer(await self._ask(request, f"the chart of {name}", chart))

    async def _ask(self, request: Request, what: str, job: Callable[[], T]) -> T:
        """Ask the model, one text at a time; what it says to one that it cannot read is for the person behind it."""

        def run(task: Task) -> T:
            with self._model:
                try:
                    return job()
                except ValueError as error:
                    raise Refused(400, str(error)) from error

        return await self.desk.do(request, what, run)


def numbers(found: Tensor) -> list[float | None]:
    """As JSON has them: exact, and null for what is not finite."""
    listed: list[float | None] = found.double().tolist()
    return listed if bool(found.isfinite().all()) else [x if abs(x or 0) < float("inf") else None for x in listed]


def _strongest(request: Request, names: str, name: str, weights: Tensor) -> Response:
    """The indices of the `top` largest weights above 0, these weights, and all of them if they are few."""
    top = whole("top", request.query_params.get("top"), 1, TOP, 20)
    found = weights.nan_to_num(0.0).topk(min(top, len(weights)))
    held = found.values > 0
    every = numbers(weights) if len(weights) <= head_statistics.MOST else None
    return answer({names: found.indices[held].tolist(), "weights": numbers(found.values[held]), name: every})


def create(
    target: Target,
    *,
    names: Collection[str] = LOOPBACK,
    wide: bool = False,
    page: Page | None = None,
    desk: Desk | None = None,
    cache: Cache | None = None,
) -> Starlette:
    """The application, for uvicorn or a test. `names` and `wide`: see `Guard`."""
    app = App(target, desk, cache)
    at = "/api/maps/{map}/{head}"
    get: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/api/target": app.target_route,
        "/api/progress": app.progress,
        f"{at}/overview.pgm": app.overview,
        f"{at}/overview.png": app.overview_png,
        f"{at}/tile/{{level}}/{{column}}/{{row}}.pgm": app.tile,
        f"{at}/cell": app.cell,
        f"{at}/query/{{query}}": app.query,
        f"{at}/key/{{key}}": app.key,
        f"{at}/received": app.received,
        "/api/maps/{map}/profile": app.profile,
        "/api/rollout/{token}": app.rollout,
        "/api/image.png": app.image,
        "/api/overlay": app.overlay,
        "/api/explain": app.explained,
        "/api/explain/{name}": app.explain,
    }
    post = {"/api/translate": app.translate, "/api/run": app.run}
    routes = [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
    routes += [Route(path, handler, methods=["POST"]) for path, handler in post.items()]
    routes.append(Route("/{path:path}", (page or Page()).serve, methods=["GET"]))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        app.desk.close()

    handlers: dict[Any, Any] = {Refused: _refused, HTTPException: _http, Exception: _unexpected}
    made = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=names, wide=wide)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    made.state.app = app
    made.router.redirect_slashes = False
    return made


async def _refused(request: Request, error: Refused) -> Response:
    return refusal(error)


async def _http(request: Request, error: HTTPException) -> Response:
    words = {404: "must be one that is served", 405: "must be asked with another method"}.get(
        error.status_code, error.detail
    )
    return answer({"error": f"path ({request.url.path[:80]!r}) {words}."}, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    logging.getLogger(__name__).error("%s %s", request.method, request.url.path, exc_info=error)
    return answer({"error": f"{type(error).__name__}: this must not happen; the terminal shows where it did."}, 500)
