"""`regard view TARGET`: a page that shows what a model looks at, served from this machine to this machine."""

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

if TYPE_CHECKING:
    import uvicorn

    from ..server.target import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="TARGET", type=Path, help="a capture, a run, or a model directory of Hugging Face"
    )
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--text", help="what a model is to read")
    given.add_argument("--file", type=Path, metavar="FILE", help="the same, from a text file in UTF-8")
    given.add_argument("--image", type=Path, metavar="FILE", help="what a model of images is to look at")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="the entry of a captured batch (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (%(default)s: this machine only)")
    parser.add_argument("--port", type=int, default=0, help="(default: any that is free)")
    parser.add_argument(
        "--open", action=argparse.BooleanOptionalAction, help="open the browser (default: where there is a screen)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C; the result is an exit status."""
    from ..core.process import limit_arenas
    from ..server.open_target import open_target

    limit_arenas(1)  # before any thread starts
    if not 0 <= options.port < 2**16:
        raise ValueError(f"port ({options.port}) must lie in 0…65535; 0 takes any that is free.")
    text = _text(options.file) if options.file else options.text
    target = open_target(options.target, text, options.image, options.batch)
    with _listening(options.host, options.port) as listening:
        return serve(target, options.host, listening, _screen() if options.open is None else options.open)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"file ({path}) must be text in UTF-8; got {error.reason} at byte {error.start}.") from None


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host ({host}) must be an address of this machine; got {error}. Try 127.0.0.1.") from None
    listening = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[4])
    except OSError as error:
        listening.close()
        raise ValueError(
            f"port ({port}) of host ({host}) must be free to listen at; got {error.strerror}. Try --port 0."
        ) from None
    return listening


def serve(target: Target, host: str, listening: socket.socket, open_browser: bool) -> int:
    """Serve a target at a socket until Ctrl-C."""
    server = server_of(target, host, listening)
    address = _address(host, listening.getsockname()[1])
    print(f"{target.snapshot.title}: {address} (Ctrl-C ends)", flush=True)
    if open_browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    with suppress(KeyboardInterrupt):  # how uvicorn passes the signal on when it has ended
        server.run(sockets=[listening])
    return 0


def server_of(target: Target, host: str, listening: socket.socket) -> uvicorn.Server:
    """What answers at a socket once it is run. Says what people should know before."""
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
        print(f"regard view: everybody who reaches {host} can look at this and use the model.", file=sys.stderr)
    if not page.built:
        print("regard view: the page is not built; the address says how.", file=sys.stderr)
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
    """Where a browser on this machine finds it."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    shown = anywhere.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
