"""Request handlers: each validates its parameters, submits work to the queue, and returns numbers or an image."""

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
from .generation_routes import GenerationRoutes
from .guard import (
    LOOPBACK,
    Guard,
    RequestError,
    error_response,
    integer_field,
    json_bytes,
    json_response,
    parse_choice,
    parse_integer,
    read_fields,
    text_field,
)
from .head_statistics import numbers
from .head_views import Head, Mean
from .static_files import Page
from .target import Layer, Snapshot, Target
from .work_queue import Cache, Task, WorkQueue

T = TypeVar("T")
MAX_THUMBNAIL = 1024
"""Maximum number of pixels of the longer side of a thumbnail."""
MAX_TOP = 1000
MAX_TEXT_LENGTH, MAX_SENTENCE_LENGTH = 500_000, 5_000
"""Maximum number of characters of a text to run, and of one to translate."""
MAX_NUMBER = 10**12
REDUCE: tuple[Reduce, ...] = ("max", "mean")
CACHE_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}


class App:
    """The request handlers for a target, with its work queue and cache."""

    def __init__(self, target: Target, queue: WorkQueue | None = None, cache: Cache | None = None) -> None:
        self.target, self.queue, self.cache = target, queue or WorkQueue(), cache or Cache()
        self._model = threading.Lock()
        self.generation = GenerationRoutes(target, self.queue, self._model)

    @property
    def snapshot(self) -> Snapshot:
        return self.target.snapshot

    def _map(self, request: Request) -> tuple[Snapshot, Layer, Head | Mean]:
        snapshot = self._version(request)
        layer = snapshot.layer(parse_integer("map", request.path_params["map"], 0, MAX_NUMBER))
        return snapshot, layer, layer.head(request.path_params["head"])

    def _version(self, request: Request) -> Snapshot:
        snapshot, version = self.snapshot, request.query_params.get("v")
        if version is not None and version != snapshot.version:
            raise RequestError(410, f"v ({version[:40]!r}) must be the current version; another text was run. Reload.")
        return snapshot

    async def target_route(self, request: Request) -> Response:
        return json_response(self.snapshot.to_dict(self.target.can))

    async def progress(self, request: Request) -> Response:
        return json_response(self.queue.progress())

    async def overview(self, request: Request) -> Response:
        return self._picture(request, await self._overview(request), "image/x-portable-graymap")

    async def overview_png(self, request: Request) -> Response:
        palette = parse_choice("palette", request.query_params.get("palette"), tiles.PALETTES, "light")
        return self._picture(request, tiles.grey_png(await self._overview(request), palette), "image/png")

    async def _overview(self, request: Request) -> bytes:
        snapshot, layer, head = self._map(request)
        size = parse_integer("size", request.query_params.get("size"), 1, MAX_THUMBNAIL, 96)
        height, width = tiles.thumbnail(head.queries, head.keys, size)
        rows, cols = [Cells(0, head.queries, height)], [Cells(0, head.keys, width)]
        return await self._shades(request, snapshot, layer, head, rows, cols, ("overview", size))

    async def tile(self, request: Request) -> Response:
        snapshot, layer, head = self._map(request)
        deepest = tiles.deepest(head.queries, head.keys)
        level = parse_integer("level", request.path_params["level"], 0, deepest)
        column, row = (parse_integer(name, request.path_params[name], 0, MAX_NUMBER) for name in ("column", "row"))
        cells = 2 ** (deepest - level)
        rows, cols = tiles.side(row, head.queries, cells), tiles.side(column, head.keys, cells)
        if not rows or not cols:
            across, down = (-(-entries // (cells * tiles.TILE)) for entries in (head.keys, head.queries))
            raise RequestError(
                404, f"tile (column {column}, row {row}) must lie in {across} × {down}, the tiles of level {level}."
            )
        shades = await self._shades(request, snapshot, layer, head, rows, cols, (level, column, row))
        return self._picture(request, shades, "image/x-portable-graymap")

    async def _shades(
        self,
        request: Request,
        snapshot: Snapshot,
        layer: Layer,
        head: Head | Mean,
        rows: list[Cells],
        cols: list[Cells],
        region: tuple[object, ...],
    ) -> bytes:
        """Return the shades of a region as a PGM file, from the cache if possible."""
        parameters = request.query_params
        reduce = parse_choice("reduce", parameters.get("reduce"), REDUCE, "max")
        scale = parse_choice("scale", parameters.get("scale"), tiles.SCALES, "linear")
        ticket = parse_integer("ticket", parameters["ticket"], 0, MAX_NUMBER) if "ticket" in parameters else None
        scope = (snapshot.version, request.path_params["map"], request.path_params["head"])
        key = (scope, region, reduce, scale)

        def job(task: Task) -> bytes:
            shades = tiles.pgm(head.picture(rows, cols, reduce, task, tiles.shading(scale, head.keys)))
            self.cache.put(key, shades)
            return shades

        cached = self.cache.get(key)
        if cached is not None:
            return cached
        return await self.queue.submit(request, f"{layer.name}, head {scope[2]}", job, scope, ticket)

    @staticmethod
    def _picture(request: Request, contents: bytes, media_type: str) -> Response:
        headers = CACHE_FOREVER if "v" in request.query_params else {"cache-control": "no-store"}
        return Response(contents, headers=headers, media_type=media_type)

    async def cell(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        query = parse_integer("query", request.query_params.get("query"), 0, head.queries - 1)
        key = parse_integer("key", request.query_params.get("key"), 0, head.keys - 1)
        row = await self.queue.submit(request, f"a row of {layer.name}", lambda task: head.row(query, task))
        weight, rank = numbers(row[key : key + 1])[0], 1 + int((row > row[key]).sum())
        return json_response({"query": query, "key": key, "weight": weight, "rank": rank})

    async def query(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        query = parse_integer("query", request.path_params["query"], 0, head.queries - 1)
        row = await self.queue.submit(request, f"a row of {layer.name}", lambda task: head.row(query, task))
        return _strongest(request, "keys", "row", row)

    async def key(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        key = parse_integer("key", request.path_params["key"], 0, head.keys - 1)
        column = await self.queue.submit(request, f"a column of {layer.name}", lambda task: head.column(key, task))
        return _strongest(request, "queries", "column", column)

    async def received(self, request: Request) -> Response:
        _, layer, head = self._map(request)
        cells, weights = await self.queue.submit(
            request,
            f"the weights that the keys of {layer.name} receive",
            lambda task: head_statistics.received(head, task),
        )
        more = {"cells_per_entry": cells} if cells > 1 else {}
        return json_response({"received": numbers(weights), **more})

    async def profile(self, request: Request) -> Response:
        snapshot = self._version(request)
        layer = snapshot.layer(parse_integer("map", request.path_params["map"], 0, MAX_NUMBER))
        key = (snapshot.version, request.path_params["map"], "profile")
        contents = self.cache.get(key)
        if contents is None:
            profiles = await self.queue.submit(
                request,
                f"the profile of {layer.name}",
                lambda task: [head_statistics.profile(head, task) for head in task.over(layer.heads)],
            )
            contents = json_bytes([dict(zip(MEASURES, numbers(values), strict=True)) for values in profiles])
            self.cache.put(key, contents)
        return json_response(contents)

    async def rollout(self, request: Request) -> Response:
        layers = self._rollout_layers(request)
        token = parse_integer("token", request.path_params["token"], 0, layers[0].keys - 1)
        weights = await self.queue.submit(request, "rollout", lambda task: head_statistics.rollout(layers, token, task))
        return json_response({"weights": numbers(weights)})

    def _rollout_layers(self, request: Request) -> list[Layer]:
        """Return the maps of a rollout: those in the query string, or all self-attention maps like the last one."""
        snapshot, maps = self._version(request), request.query_params.get("maps", "all")
        layers = snapshot.square()
        if maps != "all":
            layers = [
                snapshot.layer(parse_integer("maps", number, 0, MAX_NUMBER)) for number in maps.split(",")[: tiles.TILE]
            ]
        if not layers or any(layer.queries != layer.keys or layer.keys != layers[0].keys for layer in layers):
            raise RequestError(400, f"maps ({maps[:40]!r}) must be square maps of one length. Select some: maps=0,1,2.")
        return layers

    async def image(self, request: Request) -> Response:
        snapshot = self._version(request)
        if snapshot.picture is None:
            raise RequestError(404, "this target must have an image; it has none. Open a vision model with --image.")
        return Response(
            snapshot.picture, headers=CACHE_FOREVER if "v" in request.query_params else None, media_type="image/png"
        )

    async def overlay(self, request: Request) -> Response:
        snapshot, parameters = self._version(request), request.query_params
        patches = snapshot.patches
        if patches is None:
            raise RequestError(404, "this target must have an image for an overlay; it has none.")
        if parse_choice("rollout", parameters.get("rollout"), ("0", "1"), "0") == "1":
            layers = self._rollout_layers(request)
            token = parse_integer("query", parameters.get("query"), 0, layers[0].queries - 1, 0)
            row = await self.queue.submit(request, "rollout", lambda task: head_statistics.rollout(layers, token, task))
        else:
            head = snapshot.layer(parse_integer("map", parameters.get("map"), 0, MAX_NUMBER)).head(
                parameters.get("head", "mean")
            )
            query = parse_integer("query", parameters.get("query"), 0, head.queries - 1, 0)
            row = await self.queue.submit(request, "a row", lambda task: head.row(query, task))
        over = row[patches.first : patches.first + patches.rows * patches.columns]
        if len(over) != patches.rows * patches.columns:
            raise RequestError(
                400, f"map ({len(row)} keys) must have a key for each of {patches.rows}×{patches.columns} patches."
            )
        return json_response({"rows": patches.rows, "columns": patches.columns, "weights": numbers(over)})

    async def translate(self, request: Request) -> Response:
        body = await read_fields(request, {"text": str, "beam": int, "n_best": int})
        text, beam = text_field(body, MAX_SENTENCE_LENGTH), integer_field(body, "beam", 1, 32, 5)
        n_best = integer_field(body, "n_best", 1, beam, min(5, beam))
        return json_response(
            await self._run_model(request, "a translation", lambda: self.target.translate(text, beam, n_best))
        )

    async def run(self, request: Request) -> Response:
        text = text_field(await read_fields(request, {"text": str}), MAX_TEXT_LENGTH)
        self.target.snapshot = await self._run_model(request, "another text", lambda: self.target.run(text))
        self.cache.clear()
        return json_response(self.snapshot.to_dict(self.target.can))

    async def explained(self, request: Request) -> Response:
        return json_response(model_routes.available_charts(self.target))

    async def explain(self, request: Request) -> Response:
        name, text = request.path_params["name"], request.query_params.get("text")
        chart = model_routes.chart_function(self.target, name, text)
        return json_response(await self._run_model(request, f"the chart of {name}", chart))

    async def _run_model(self, request: Request, label: str, job: Callable[[], T]) -> T:
        """Run the model on one text at a time. A ValueError of the model is returned to the client."""

        def run(task: Task) -> T:
            with self._model:
                try:
                    return job()
                except ValueError as error:
                    raise RequestError(400, str(error)) from error

        return await self.queue.submit(request, label, run)


def _strongest(request: Request, names: str, name: str, weights: Tensor) -> Response:
    """Return the indices and values of the `top` largest positive weights, and all weights if they are few."""
    top = parse_integer("top", request.query_params.get("top"), 1, MAX_TOP, 20)
    largest = weights.nan_to_num(0.0).topk(min(top, len(weights)))
    positive = largest.values > 0
    every = numbers(weights) if len(weights) <= head_statistics.MAX_VALUES else None
    return json_response(
        {names: largest.indices[positive].tolist(), "weights": numbers(largest.values[positive]), name: every}
    )


def create(
    target: Target,
    *,
    names: Collection[str] = LOOPBACK,
    any_address: bool = False,
    page: Page | None = None,
    queue: WorkQueue | None = None,
    cache: Cache | None = None,
) -> Starlette:
    """Create the ASGI application. `names` and `any_address` are those of `Guard`."""
    app = App(target, queue, cache)
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
        **app.generation.get(),
    }
    post = {"/api/translate": app.translate, "/api/run": app.run, **app.generation.post()}
    routes = [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
    routes += [Route(path, handler, methods=["POST"]) for path, handler in post.items()]
    routes.append(Route("/{path:path}", (page or Page()).serve, methods=["GET"]))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        app.queue.close()

    handlers: dict[Any, Any] = {RequestError: _request_error, HTTPException: _http, Exception: _unexpected}
    server = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=names, any_address=any_address)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    server.state.app = app
    server.router.redirect_slashes = False
    return server


async def _request_error(request: Request, error: RequestError) -> Response:
    return error_response(error)


async def _http(request: Request, error: HTTPException) -> Response:
    rule = {404: "does not exist", 405: "must be requested with another method"}.get(error.status_code, error.detail)
    return json_response({"error": f"path ({request.url.path[:80]!r}) {rule}."}, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    logging.getLogger(__name__).error("%s %s", request.method, request.url.path, exc_info=error)
    return json_response({"error": f"{type(error).__name__}: internal error. The terminal shows the traceback."}, 500)
