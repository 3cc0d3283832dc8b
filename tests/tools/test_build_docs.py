"""The documentation site has every page and every public name, in English and Chinese, and no broken link."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_public_names import PUBLIC, import_public

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


check_site = load("check_site")
build_docs = load("build_docs")
TRANSLATED = sorted(path.relative_to(DOCS / "zh").as_posix() for path in (DOCS / "zh").rglob("*.md"))
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def navigation_pages() -> list[str]:
    return [entry["page"] for section in build_docs.sections() for entry in section["pages"]]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = navigation_pages()
    assert len(set(listed)) == len(listed)
    assert sorted(page for page in listed if not page.startswith("../")) == [
        p for p in PAGES if not p.startswith("zh/")
    ]
    assert all((DOCS / page).is_file() for page in listed)


def test_every_page_of_the_repository_that_a_page_links_to_is_in_the_navigation() -> None:
    for language in build_docs.LANGUAGES:
        written = dict(build_docs.pages(language, set()))
        assert len(written) == len(navigation_pages()) + len(build_docs.public_modules())


def test_the_chinese_navigation_marks_pages_without_translation() -> None:
    assert {"README.md", "install.md", "quickstart.md"} <= set(TRANSLATED) <= set(navigation_pages())
    assert [page for page in navigation_pages() if page.startswith("how_to/")] == [
        page for page in navigation_pages() if page.startswith("how_to/") and page in TRANSLATED
    ]
    titles = {path: title for section in build_docs.navigation("zh") for (pages,) in [section.values()]
              for page in pages for title, path in page.items()}  # fmt: skip
    for page in navigation_pages():
        assert titles[build_docs.target_of(page)].endswith("（英文）") == (page not in TRANSLATED), page
    texts = dict(build_docs.pages("zh", set()))
    for page in navigation_pages():
        assert ("本页尚无中文版" in texts[build_docs.target_of(page)]) == (page not in TRANSLATED), page


def code(text: str) -> list[str]:
    """Return the code of a page without comments, and without spaces at the ends of lines."""
    return [re.sub(r"[ ]+#.*$|[ ]+$", "", block, flags=re.MULTILINE) for block in FENCE.findall(text)]


@pytest.mark.parametrize("page", [page for page in TRANSLATED if page != "README.md"])
def test_a_translation_has_the_code_and_the_numbers_of_the_original(page: str) -> None:
    original, translation = ((DOCS / folder / page).read_text(encoding="utf-8") for folder in (".", "zh"))
    assert code(translation) == code(original) != []
    assert original.count("\n## ") == translation.count("\n## ")
    tables = [re.findall(r"^\|(.*)\|$", text, re.MULTILINE) for text in (original, translation)]
    numbers = [[sorted(re.findall(r"\d[\d.,]*\d|\d", row)) for row in table] for table in tables]
    assert numbers[0] == numbers[1]


def pages_linked(path: Path) -> set[str]:
    """Return the pages that a Markdown file links to, without regard to their language."""
    links = re.findall(r"\]\(([^):#]+\.md)", path.read_text(encoding="utf-8"))
    targets = [(path.parent / link).resolve().relative_to(ROOT).as_posix() for link in links]
    return {target.replace("docs/zh/", "docs/") for target in targets}


def test_the_chinese_index_has_every_page() -> None:
    assert pages_linked(DOCS / "zh/README.md") == pages_linked(DOCS / "README.md")


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_page_links_to_its_translation_and_back(page: str) -> None:
    up = "../" * (page.count("/") + 1)
    original, translation = ((DOCS / folder / page).read_text(encoding="utf-8") for folder in (".", "zh"))
    assert f"English · [中文]({up.removesuffix('../')}zh/{page})" in original
    assert f"[English]({up}{page}) · 中文" in translation


@pytest.mark.parametrize("path", [ROOT / "README.zh.md", *(DOCS / "zh").rglob("*.md")], ids=lambda path: path.name)
def test_a_chinese_page_links_to_chinese_pages(path: Path) -> None:
    text = re.sub(r"\[(?:English|英文)\]\([^)]*\)", "", path.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^):#]+\.md)", text):
        target = (path.parent / link).resolve().relative_to(ROOT).as_posix()
        assert target.removeprefix("docs/") not in TRANSLATED, f"{link} has a Chinese version"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_its_audience_and_opens_with_an_example(page: str) -> None:
    opening = (DOCS / page).read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"\bis for\b|本页适合", opening, re.MULTILINE)
    assert FENCE.search(opening)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_every_public_name(name: str) -> None:
    pytest.importorskip("transformers")
    modules = build_docs.public_modules()
    page = build_docs.api_page(modules, name)
    headings = set(re.findall(r"^      heading: (\S+)$", page, re.MULTILINE))
    links = set(re.findall(r"^- `(\S+)`: see \[", page, re.MULTILINE))
    assert headings | links == {f"{name}.{each}" for each in import_public(name).__all__}
    assert not headings & links


def test_the_reference_has_every_public_module() -> None:
    assert sorted(build_docs.public_modules()) == sorted(PUBLIC)
    section = next(each for each in build_docs.navigation("en") if "API reference" in each)
    assert [path for page in section["API reference"] for path in page.values()] == [
        f"api/{name}.md" for name in sorted(PUBLIC)
    ]


def test_the_configuration_is_valid_toml() -> None:
    for language in build_docs.LANGUAGES:
        settings = build_docs.settings(language)
        assert tomllib.loads(f"project = {build_docs.toml(settings)}")["project"] == settings


def test_links_are_rewritten_outside_of_code() -> None:
    text = "English · [中文](zh/README.md)\n\n[operator.md](operator.md#masks) [x](zh/faq.md)\n```\n[a](b.md)\n```\n"
    text += "![p](pictures/links.png) [k](../native/README.md) <https://x.y>\n```python\n>>> 1\n1\n```\n"
    assets: set[Path] = set()
    result = build_docs.rewrite(text, DOCS / "README.md", "how_to/page.md", "en", assets)
    assert result == (
        "[The operator and the map](../operator.md#masks) [x](../faq.md)\n```\n[a](b.md)\n```\n"
        "![p](../pictures/links.png) [k](../development/native.md) <https://x.y>\n```pycon\n>>> 1\n1\n```\n"
    )
    assert assets == {DOCS / "pictures/links.png"}


def test_notebooks_are_copied_and_folders_are_not_linked() -> None:
    assets: set[Path] = set()
    text = "[all](../examples) [one](../examples/1_first_steps.ipynb)"
    result = build_docs.rewrite(text, DOCS / "notebooks.md", "notebooks.md", "en", assets)
    assert result == "all [one](examples/1_first_steps.ipynb)"
    assert assets == {ROOT / "examples/1_first_steps.ipynb"}


def test_a_link_to_a_file_that_is_no_page_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"docs/README.md: ../LICENSE is not a page of docs/site.toml"):
        build_docs.rewrite("[licence](../LICENSE)", DOCS / "README.md", "index.md", "en", set())


def test_broken_links_and_anchors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/#part">1</a> <a href="a/#other">2</a> <a href="b/">3</a> <img src="a/x.png"> <a href="#top">4</a>'
        '<a href="https://example.org/nothing">5</a><p id="top">'
    )
    (tmp_path / "a/index.html").write_text('<h2 id="part">x</h2><a href="../index.html">up</a><a href="..">up</a>')
    assert check_site.problems(tmp_path) == [
        "index.html: a/#other has no such anchor",
        "index.html: b/ does not exist",
        "index.html: a/x.png does not exist",
    ]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zensical", reason="make docs installs it")
    monkeypatch.setattr(sys, "argv", ["build_docs.py", str(tmp_path / "site")])
    build_docs.main()
    reference = (tmp_path / "site/api/regard/index.html").read_text(encoding="utf-8")
    assert 'id="regard.AttentionMap"' in reference and "The weights of one call of" in reference
    chinese = (tmp_path / "site/zh/index.html").read_text(encoding="utf-8")
    assert '<html lang="zh"' in chinese and "快速上手" in chinese
    assert "AttentionMap" in (tmp_path / "site/search.json").read_text(encoding="utf-8")


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="make docs installs it")
    to_markdown = load("docstring_markdown").to_markdown
    text = (
        "Sum (*lead, D) of `*x` and <pad>.\n\n    y = a * b\n\nArgs:\n    x: (*lead, D) [a][b].\n\n>>> 1 * 1\n1\n\nEnd."
    )
    assert to_markdown(text) == (
        "Sum (\\*lead, D) of `*x` and &lt;pad>.\n\n    y = a * b\n\nArgs:\n    x: (\\*lead, D) [a]\\[b].\n\n"
        "```pycon\n>>> 1 * 1\n1\n```\n\nEnd."
    )
