"""The built page of `regard view`. It is built from the TypeScript in `web/` during set-up."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "assets" / "page"


def page_folder(folder: Path = FOLDER) -> Path:
    """Return the folder that contains index.html and assets/.

    Raises:
        FileNotFoundError: if the package was set up without Node. The message explains how to build the page.

    >>> page_folder(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: view: the page (nowhere/index.html) is not built; run `make page` in the project's folder...
    """
    if not (folder / "index.html").is_file():
        raise FileNotFoundError(
            f"view: the page ({folder / 'index.html'}) is not built; run `make page` in the project's folder with a "
            "network that npm reaches, or install a wheel, which contains it. Everything else works without it."
        )
    return folder
