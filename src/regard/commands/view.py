"""`regard view [TARGET]`: show attention maps on a web page, by default served to this machine only."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .options import not_utf8

if TYPE_CHECKING:
    import uvicorn

    from ..server.target import Target


EXAMPLE = """example:
  regard view runs/de-en --text "Ein Hund läuft."
  regard view seen.safetensors --save page.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        type=Path,
        nargs="?",
        help="a capture, a run, or a Hugging Face model directory (default: only the charts of Explain)",
    )
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--text", help="input text of the model")
    inputs.add_argument("--file", type=Path, metavar="FILE", help="read the input text from a UTF-8 file")
    inputs.add_argument("--image", type=Path, metavar="FILE", help="input image of the model")
    parser.add_argument(
        "--batch", type=int, default=0, metavar="N", help="index in a captured batch (default: %(default)s)"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write the maps to one HTML file instead of serving them. It needs no network and has at most 16 MiB; "
        "large maps are stored at a lower resolution",
    )
    parser.add_argument(
        "--heads",
        metavar="MAP.HEAD,…",
        help="with --save: heads to store in full, such as 0.3,5.mean; all have overviews (default: all that fit)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=0, help="port (default: any free port)")
    parser.add_argument(
        "--open", action=argparse.BooleanOptionalAction, help="open the browser (default: if there is a screen)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C and return an exit status."""
    from ..core.process import limit_arenas

    limit_arenas(1)  # before any thread starts
    if not 0 <= options.port < 2**16:
        raise ValueError(f"port ({options.port}) must lie in 0…65535; 0 selects any free port.")
    text = _text(options.file) if options.file else options.text
    if options.heads is not None and options.save is None:
        raise ValueError(f"heads ({options.heads}) must come with --save; got no --save. The page shows all heads.")
    target = _target(options.target, text, options.image, options.batch)
    if options.save is not None:
        return _save(target, options.save, options.heads)
    with _listening(options.host, options.port) as listening:
        return serve(target, options.host, listening, _screen() if options.open is None else options.open)


def _target(path: Path | None, text: str | None, image: Path | None, batch: int) -> Target:
    from ..server.open_target import open_target
    from ..server.target import NoTarget

    if path is not None:
        return open_target(path, text, image, batch)
    if text is not None or image is not None:
        name, value = ("--text", text) if text is not None else ("--image", image)
        raise ValueError(f"{name} ({str(value)[:40]!r}) must come with a TARGET: the model that reads it.")
    return NoTarget()


def _save(target: Target, path: Path, heads: str | None) -> int:
    from ..server.saved_page import save_page

    save_page(target, path, None if heads is None else heads.split(","))
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB. Open it in a browser; it needs no network.")
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(f"file ({path})", error) from None


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host ({host}) must be an address of this machine; got {error}. Try 127.0.0.1.") from None
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # on Windows the option would let two servers use the same port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ValueError(f"port ({port}) of host ({host}) must be free; got {error.strerror}. Try --port 0.") from None
    return listening


def serve(target: Target, host: str, listening: socket.socket, open_browser: bool) -> int:
    """Serve a target on a socket until Ctrl-C."""
    server = server_of(target, host, listening)
    address = _address(host, listening.getsockname()[1])
    print(f"{target.snapshot.title}: {address} (press Ctrl-C to stop)", flush=True)
    if open_browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    with suppress(KeyboardInterrupt):  # uvicorn re-raises the signal after it has shut down
        server.run(sockets=[listening])
    return 0


def server_of(target: Target, host: str, listening: socket.socket) -> uvicorn.Server:
    """Return a server for a socket, after printing warnings about access and a missing page."""
    import uvicorn

    from ..server.connection import Connection
    from ..server.guard import LOOPBACK
    from ..server.routes import create
    from ..server.static_files import Page

    any_address = not ipaddress.ip_address(listening.getsockname()[0]).is_loopback
    page = Page()
    names = {*LOOPBACK, host.lower(), *([socket.gethostname()] if any_address else [])}
    app = create(target, names=names, any_address=any_address, page=page)
    if any_address:
        print(f"regard view: anyone who can reach {host} can see these maps and use the model.", file=sys.stderr)
    if not page.built:
        print("regard view: the page is not built; open the address for instructions.", file=sys.stderr)
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=896,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        lifespan="on",
        ws="none",
    )
    return uvicorn.Server(config)


def _address(host: str, port: int) -> str:
    """Return the URL for a browser on this machine."""
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    shown = wildcards.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _screen() -> bool:
    """Return whether a browser can open a window instead of taking over the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
