"""Readable token labels: a visible form of every token, and fonts with its glyphs.

Matplotlib falls back through a list of font families, character by character. This module selects that list, and warns
if no font has a character. From 3.11 on, matplotlib also handles right-to-left text (libraqm) and every face of a font
collection; an earlier version draws such text with a warning, and uses the first face. Matplotlib is imported when
fonts are needed; `label` does not need it.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.cells import cell_len

SPACE, EMPTY, CUT, MISSING = "␣", "∅", "…", "□"
CONTROLS = {"\n": "↵", "\r": "⇤", "\t": "⇥"}
BLANK = r"[ \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+"
SPACES_AT_ENDS = re.compile(f"^{BLANK}|{BLANK}$")
DOTTED_CIRCLE = "◌"
JOINERS = "\u200c\u200d"  # join Persian, Indic and emoji sequences; invisible by design

FALLBACK = "DejaVu Sans"  # included in matplotlib; covers Latin, Greek, Cyrillic, Arabic, Hebrew and the symbols above
FONT_PACKAGES = ("noto_cjk_sans_otc",)  # Python packages that contain only font files
REGIONS = {"JP": r"[\u3040-\u30ff]", "KR": r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]"}
CJK = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
PLAIN = re.compile(r"sans|gothic|hei|arial|pingfang", re.IGNORECASE)
DECORATED = re.compile(r"mono|serif|code|typewriter", re.IGNORECASE)
# Last Resort and Blank claim every character but draw none; Computer Modern has a non-standard encoding.
EXCLUDED = re.compile(r"^\.|last ?resort|blank|^cm[a-z]+\d+$", re.IGNORECASE)

SHAPING_SINCE = (3, 11)
"""Version of matplotlib that first orders and joins right-to-left text."""
RIGHT_TO_LEFT = "right-to-left"

_warned: set[str] = set()
"""Characters, and `RIGHT_TO_LEFT`, that the user has been warned about."""
_lock = threading.Lock()


def label(token: object, limit: int = 16) -> str:
    """Return a visible form of a token, at most `limit` terminal cells wide.

    Leading and trailing spaces, line ends, tabs and the empty token are replaced by symbols, and other control
    characters by escapes. A leading combining mark gets a dotted circle. Subword markers (Ġ, ▁, ##) are unchanged.

    >>> [label(t) for t in ("the", " the", "\\n", "", "##ing", "\\u200b", "antidisestablishmentarianism")]
    ['the', '␣the', '↵', '∅', '##ing', '\\\\u200b', 'antidisestablis…']
    """
    text = SPACES_AT_ENDS.sub(lambda spaces: SPACE * len(spaces[0]), str(token)[: 8 * limit])
    if not text:
        return EMPTY
    shown = "".join(map(_visible, text))
    if unicodedata.category(shown[0]).startswith("M"):
        shown = DOTTED_CIRCLE + shown
    return shorten(shown, limit)


def shorten(text: str, limit: int) -> str:
    """Truncate `text` to `limit` terminal cells (a CJK character takes two), with an ellipsis if it is truncated.

    >>> shorten("attention", 6), shorten("注意力机制", 6)
    ('atten…', '注意…')
    """
    if cell_len(text) <= limit:
        return text
    kept = ""
    for character in text:  # a combining mark has no width, so it stays with its letter
        if cell_len(kept + character) > limit - 1:
            break
        kept += character
    return kept.rstrip(JOINERS) + CUT


def fit(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the texts with drawable characters, and the font families for them in order of preference.

    A character that no font has is replaced by □, with one warning per process.

    >>> fit(["שלום", "the"])
    (['שלום', 'the'], ['sans-serif'])
    """
    from matplotlib import rcParams

    texts = list(texts)
    characters = frozenset(character for text in texts for character in text if _has_ink(character))
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in characters):
        _warn_if_unshaped()
    families, missing = _cover(characters, _region("".join(texts)), tuple(rcParams["font.family"]))
    if missing:
        _warn(missing)
        texts = ["".join(MISSING if character in missing else character for character in text) for text in texts]
    return texts, list(families)


def _visible(character: str) -> str:
    if character in CONTROLS:
        return CONTROLS[character]
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and character not in JOINERS:
        return character.encode("unicode_escape").decode()
    return character


def _has_ink(character: str) -> bool:
    return not (character.isspace() or character in JOINERS)


def _region(text: str) -> str:
    """Return the region for Han glyphs: Japan if the text has kana, Korea if it has Hangul, else simplified Chinese."""
    return next((region for region, letters in REGIONS.items() if re.search(letters, text)), "SC")


@lru_cache(maxsize=256)
def _cover(characters: frozenset[str], region: str, base: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return families that together cover the characters, and the characters that no family has."""
    from matplotlib import font_manager

    families: list[str] = []
    missing = set(characters)
    for family in dict.fromkeys((*base, FALLBACK)):
        try:
            path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        except ValueError:  # the user's settings name a font that is not installed
            continue
        covered = _covered_by(path, getattr(path, "face_index", 0), missing)
        if covered or not families:
            families.append(family)
            missing -= covered
    for source in (None, _packaged_fonts, _new_fonts):
        if not missing:
            break
        if source is not None:
            _register(source())
        for entry in _candidates(region):
            if covered := _covered_by(entry.fname, getattr(entry, "index", 0), missing):
                families.append(entry.name)
                missing -= covered
    return tuple(families), frozenset(missing)


def _covered_by(path: str, face: int, characters: set[str]) -> set[str]:
    from matplotlib.ft2font import FT2Font

    if not characters:
        return set()
    try:
        font = FT2Font(str(path), face_index=face) if face else FT2Font(str(path))  # the option exists from 3.11 on
    except (OSError, RuntimeError):  # removed or damaged since matplotlib listed it
        return set()
    return {character for character in characters if font.get_char_index(ord(character))}


def _candidates(region: str) -> list[Any]:
    """Return one upright face per installed family, nearest to regular weight, sans-serif faces of the region first."""
    from matplotlib import font_manager

    faces: dict[str, Any] = {}
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: abs(_weight(entry) - 400)):
        if entry.style == "normal" and not EXCLUDED.search(entry.name):
            faces.setdefault(entry.name, entry)
    return sorted(faces.values(), key=lambda entry: (_rank(entry.name, region), entry.name))


def _rank(name: str, region: str) -> int:
    tags = set(name.split()) & {"SC", "TC", "HK", "JP", "KR"}
    foreign = 0 if region in tags else 2 if tags else 1
    return foreign + 3 * (not PLAIN.search(name)) + 6 * bool(DECORATED.search(name))


def _weight(entry: Any) -> int:
    from matplotlib.font_manager import weight_dict

    return entry.weight if isinstance(entry.weight, int) else weight_dict.get(entry.weight, 400)


def _packaged_fonts() -> Iterator[Path]:
    """Yield the font files of installed font packages, without importing them."""
    for package in FONT_PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            yield from sorted(path for path in Path(folder).iterdir() if path.suffix in (".ttc", ".otf", ".ttf"))


def _new_fonts() -> list[Path]:
    """Return all system fonts, including those installed after matplotlib cached its list."""
    from matplotlib import font_manager

    return [Path(path) for path in sorted(font_manager.findSystemFonts())]


def _register(paths: Iterable[Path]) -> None:
    from matplotlib import font_manager

    known = {str(Path(entry.fname).resolve()) for entry in font_manager.fontManager.ttflist}
    for path in paths:
        if str(path.resolve()) not in known:
            try:
                font_manager.fontManager.addfont(path)
            except Exception:  # FreeType raises many types of errors for damaged files
                continue


def _warn_if_unshaped() -> None:
    import matplotlib

    with _lock:
        if matplotlib.__version_info__ >= SHAPING_SINCE or RIGHT_TO_LEFT in _warned:
            return
        _warned.add(RIGHT_TO_LEFT)
    warnings.warn(
        f"fonts: matplotlib ({matplotlib.__version__}) must be 3.11 or later to draw right-to-left text; letters are "
        "drawn from left to right and are not joined. Try pip install 'matplotlib>=3.11'.",
        stacklevel=3,
    )


def _warn(missing: frozenset[str]) -> None:
    with _lock:
        new = sorted(missing - _warned)
        _warned.update(new)
    if not new:
        return
    shown = "".join(new[:24]) + (f"{CUT} and {len(new) - 24} more" if len(new) > 24 else "")
    remedies = [
        "run `pip install noto-cjk-sans-otc` (15 MB) or install your system's Noto CJK fonts"
        if CJK.search("".join(new))
        else "",
        "install the Noto font of their script" if CJK.sub("", "".join(new)) else "",
    ]
    warnings.warn(
        f"fonts: characters ({shown}) must be in an installed font; no font has them, so each is "
        f"drawn as {MISSING}. To display them, {' and '.join(filter(None, remedies))}, then restart Python.",
        stacklevel=3,
    )
