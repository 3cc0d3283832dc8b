"""Token labels that can be read: a visible form of every token, and fonts that have its glyphs.

Matplotlib 3.11 shapes and orders right-to-left text itself (libraqm), and falls back from font to font, character by
character, through a list of families. What is left to do is to find that list, and to say so when it does not exist.
Matplotlib is imported when a font is asked for; `label` needs none.
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
JOINERS = "\u200c\u200d"  # shape Persian, Indic and emoji sequences: invisible, and meant to be

FALLBACK = "DejaVu Sans"  # comes with matplotlib; has Latin, Greek, Cyrillic, Arabic, Hebrew and the signs above
FONT_PACKAGES = ("noto_cjk_sans_otc",)  # Python packages that carry nothing but font files
REGIONS = {"JP": r"[\u3040-\u30ff]", "KR": r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]"}
CJK = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
PLAIN = re.compile(r"sans|gothic|hei|arial|pingfang", re.IGNORECASE)
DECORATED = re.compile(r"mono|serif|code|typewriter", re.IGNORECASE)
# Last Resort and Blank claim every character and draw none of them; Computer Modern has an encoding of its own.
UNFIT = re.compile(r"^\.|last ?resort|blank|^cm[a-z]+\d+$", re.IGNORECASE)

_told: set[str] = set()
_lock = threading.Lock()


def label(token: object, limit: int = 16) -> str:
    """The visible form of a token: nothing in it is blank, and it is at most `limit` terminal cells wide.

    Spaces at the ends, line ends, tabs and the empty token get a sign; other control characters their escape; a
    combining mark alone a circle to stand on. Subword markers (Ġ, ▁, ##) are visible, and stay as they are.

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
    """`text` cut to `limit` terminal cells (a CJK character takes two), with an ellipsis where it was cut.

    >>> shorten("attention", 6), shorten("注意力机制", 6)
    ('atten…', '注意…')
    """
    if cell_len(text) <= limit:
        return text
    kept = ""
    for character in text:  # a combining mark has no width, so it is never parted from its letter
        if cell_len(kept + character) > limit - 1:
            break
        kept += character
    return kept.rstrip(JOINERS) + CUT


def fit(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The texts as they can be drawn here, and the font families that have their glyphs, in order of preference.

    A character that no font has becomes □ and is warned of, once in a process, with the remedy.

    >>> fit(["שלום", "the"])
    (['שלום', 'the'], ['sans-serif'])
    """
    from matplotlib import rcParams

    texts = list(texts)
    wanted = frozenset(character for text in texts for character in text if _has_ink(character))
    families, missing = _cover(wanted, _region("".join(texts)), tuple(rcParams["font.family"]))
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
    """Whose shapes Han characters take: Japan's beside kana, Korea's beside Hangul, else simplified Chinese."""
    return next((region for region, letters in REGIONS.items() if re.search(letters, text)), "SC")


@lru_cache(maxsize=256)
def _cover(wanted: frozenset[str], region: str, base: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Families that together have the wanted characters, and the characters that none has."""
    from matplotlib import font_manager

    families: list[str] = []
    missing = set(wanted)
    for family in dict.fromkeys((*base, FALLBACK)):
        try:
            path = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        except ValueError:  # the user's settings name a font that is not here
            continue
        found = _drawn_by(path, path.face_index, missing)
        if found or not families:
            families.append(family)
            missing -= found
    for more in (None, _packaged_fonts, _new_fonts):
        if not missing:
            break
        if more is not None:
            _register(more())
        for entry in _candidates(region):
            if found := _drawn_by(entry.fname, entry.index, missing):
                families.append(entry.name)
                missing -= found
    return tuple(families), frozenset(missing)


def _drawn_by(path: str, face: int, characters: set[str]) -> set[str]:
    from matplotlib.ft2font import FT2Font

    if not characters:
        return set()
    try:
        font = FT2Font(str(path), face_index=face)
    except (OSError, RuntimeError):  # removed, or broken, since matplotlib listed it
        return set()
    return {character for character in characters if font.get_char_index(ord(character))}


def _candidates(region: str) -> list[Any]:
    """One upright face per installed family, nearest to regular weight; plain faces of that region first."""
    from matplotlib import font_manager

    faces: dict[str, Any] = {}
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: abs(_weight(entry) - 400)):
        if entry.style == "normal" and not UNFIT.search(entry.name):
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
    """Font files of the Python packages that carry them. They are found, not imported."""
    for package in FONT_PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            yield from sorted(path for path in Path(folder).iterdir() if path.suffix in (".ttc", ".otf", ".ttf"))


def _new_fonts() -> list[Path]:
    """Fonts installed after matplotlib wrote its list: it does not look again by itself."""
    from matplotlib import font_manager

    return [Path(path) for path in sorted(font_manager.findSystemFonts())]


def _register(paths: Iterable[Path]) -> None:
    from matplotlib import font_manager

    known = {str(Path(entry.fname).resolve()) for entry in font_manager.fontManager.ttflist}
    for path in paths:
        if str(path.resolve()) not in known:
            try:
                font_manager.fontManager.addfont(path)
            except Exception:  # FreeType's errors for broken files are of many types
                continue


def _warn(missing: frozenset[str]) -> None:
    with _lock:
        new = sorted(missing - _told)
        _told.update(new)
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
        f"fonts: characters ({shown}) must be in an installed font to be drawn; got none that has them, so each is "
        f"drawn as {MISSING}. To read them, {' and '.join(filter(None, remedies))}, then start Python again.",
        stacklevel=3,
    )
