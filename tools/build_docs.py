"""Build the documentation site in English and Chinese: python tools/build_docs.py [OUT]

The pages are the Markdown files of the repository, which the tests execute. This script copies them into one folder per
language, rewrites the links between them, adds a page of the API reference for each public module, builds both sites
with Zensical, and checks every link and anchor of the result. Any warning is an error.

docs/site.toml has the navigation. `python -m pip install '.[docs]'` installs what the build needs (`make docs` does).
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))
import check_site

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/regard"
LANGUAGES = ("en", "zh")
ENGLISH_ONLY = "（英文）"
NOTICE = '!!! note "本页尚无中文版"\n\n    以下是英文原文。\n\n'
SWITCH = re.compile(r"^(English · .*|\[English\].* · 中文)\n\n?", re.MULTILINE)
"""The line that links to the other language, which the site replaces by its menu."""
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")


@cache
def site() -> dict:
    return tomllib.loads((ROOT / "docs/site.toml").read_text(encoding="utf-8"))


def sections() -> list[dict]:
    """Return the sections of the navigation, with their pages and titles."""
    return site()["section"]


@cache
def public_modules() -> dict[str, list[str]]:
    """Return the public modules, which are those with `__all__`, and their public names."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                modules[name] = ast.literal_eval(statement.value)
    return dict(sorted(modules.items()))


def value_of(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def home(modules: dict[str, list[str]], module: str, name: str) -> str:
    """Return the module whose page documents a name: of those that export the same object, the first one."""
    value = value_of(module, name)
    return next(each for each in modules if name in modules[each] and value_of(each, name) is value)


def identifier(module: str, name: str) -> str:
    """Return the path by which mkdocstrings loads a name.

    Static analysis takes `regard.attention.attend` for a module, although the package replaces it by the function of
    the same name. Such a function is loaded from its module.
    """
    value = value_of(module, name)
    defined_in = str(getattr(value, "__module__", ""))
    same_name = defined_in.rpartition(".")[2] == name and defined_in != module
    return f"{defined_in}.{name}" if same_name else f"{module}.{name}"


def api_page(modules: dict[str, list[str]], module: str) -> str:
    """Return the page of a module: its docstring, links to names on other pages, and the reference of its own names."""
    lines = [f"# {module}", "", f"::: {module}", "    options:"]
    lines += ["      members: false", "      show_root_heading: false", "      show_root_toc_entry: false", ""]
    own = []
    for name in modules[module]:
        value = value_of(module, name)
        if isinstance(value, ModuleType):
            lines.append(f"- `{module}.{name}`: see [{value.__name__}]({value.__name__}.md)")
        elif (source := home(modules, module, name)) != module:
            lines.append(f"- `{module}.{name}`: see [{source}.{name}]({source}.md#{identifier(source, name)})")
        else:
            own.append(name)
    for name in own:
        lines += ["", f"::: {identifier(module, name)}", "    options:", f"      heading: {module}.{name}"]
        lines += [f"      toc_label: {name}"]
    return "\n".join(lines) + "\n"


def target_of(page: str) -> str:
    """Return the path of a page in the site: ../native/README.md is development/native.md."""
    if not page.startswith("../"):
        return "index.md" if page == "README.md" else page
    path = Path(page.removeprefix("../"))
    return f"development/{(path.parent.name if path.name == 'README.md' else path.stem).lower()}.md"


@cache
def targets() -> dict[Path, str]:
    """Return the path in the site of every page and translation. The folder docs/ is the start page."""
    result = {(ROOT / "docs").resolve(): "index.md"}
    for section in sections():
        for entry in section["pages"]:
            for folder in ("docs", "docs/zh"):
                result[(ROOT / folder / entry["page"]).resolve()] = target_of(entry["page"])
    return result


def source_of(page: str, language: str) -> Path:
    return ROOT / ("docs/zh" if language == "zh" and is_translated(page) else "docs") / page


def asset_target(path: Path) -> str:
    """Return the path in the site of a picture or notebook, of docs/ or of another folder of the repository."""
    return path.relative_to(ROOT / "docs" if ROOT / "docs" in path.parents else ROOT).as_posix()


def rewrite(text: str, source: Path, target: str, language: str, assets: set[Path]) -> str:
    """Return a page as the site needs it, and collect the pictures and notebooks that it links to.

    Links point to pages of the site. A link whose text is the name of a file shows the title of the page instead.
    """
    known = targets()

    def link(match: re.Match[str]) -> str:
        label, address, anchor = match[1], match[2], match[3] or ""
        path = (source.parent / address).resolve()
        if path.suffix in (".png", ".svg", ".ipynb"):
            assets.add(path)
            goal = asset_target(path)
        elif path in known:
            goal = known[path]
            label = titles(language)[goal] if label.endswith(".md") else label
        elif path.is_dir():  # a folder of the repository, which the site does not show
            return label
        else:
            raise SystemExit(f"{source.relative_to(ROOT)}: {address} is not a page of docs/site.toml")
        return f"[{label}]({posixpath.relpath(goal, posixpath.dirname(target) or '.')}{anchor})"

    parts = FENCE.split(SWITCH.sub("", text, count=1))
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    parts[1::2] = [part.replace("```python\n>>>", "```pycon\n>>>", 1) for part in parts[1::2]]
    return "".join(parts)


@cache
def titles(language: str) -> dict[str, str]:
    """Return the title of every page in the navigation, by its path in the site."""
    return {target_of(entry["page"]): entry[language] for section in sections() for entry in section["pages"]}


def is_translated(page: str) -> bool:
    return (ROOT / "docs/zh" / page).is_file() and not page.startswith("../")


def navigation(language: str) -> list[dict]:
    """Return the navigation in the form of Zensical: titles and paths, nested."""
    result = []
    for section in sections():
        pages = []
        for entry in section["pages"]:
            mark = ENGLISH_ONLY if language == "zh" and not is_translated(entry["page"]) else ""
            pages.append({entry[language] + mark: target_of(entry["page"])})
        result.append({section[language]: pages})
    reference = {"en": "API reference", "zh": f"API 参考{ENGLISH_ONLY}"}[language]
    result.insert(-1, {reference: [{module: f"api/{module}.md"} for module in public_modules()]})
    return result


def pages(language: str, assets: set[Path]) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every page of a language."""
    for section in sections():
        for entry in section["pages"]:
            source, target = source_of(entry["page"], language), target_of(entry["page"])
            text = rewrite(source.read_text(encoding="utf-8"), source, target, language, assets)
            if language == "zh" and not is_translated(entry["page"]):
                title, _, rest = text.partition("\n")
                text = f"{title}\n\n{NOTICE}{rest}"
            yield target, text
    modules = public_modules()
    for module in modules:
        yield f"api/{module}.md", api_page(modules, module)


def settings(language: str) -> dict:
    """Return the configuration of Zensical for one language."""
    result = copy.deepcopy(site()["zensical"])
    result |= {"site_name": site()["title"][language], "nav": navigation(language)}
    result["theme"]["language"] = language
    menu = {"en": ("./", "./zh/"), "zh": ("../", "./")}[language]
    names = zip(("English", "中文"), menu, LANGUAGES, strict=True)
    result["extra"]["alternate"] = [{"name": name, "link": link, "lang": each} for name, link, each in names]
    python = result["plugins"]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(PACKAGE.parent)]
    python["options"]["extensions"] = [str(ROOT / "tools/docstring_markdown.py")]
    return result


def toml(value: object) -> str:
    """Return a value in the syntax of TOML, on one line."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {toml(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def stage(language: str, folder: Path) -> None:
    """Write the pages, pictures and configuration of one language."""
    shutil.rmtree(folder, ignore_errors=True)
    assets: set[Path] = set()
    for target, text in pages(language, assets):
        path = folder / "pages" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for asset in assets:
        path = folder / "pages" / asset_target(asset)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(asset, path)
    lines = [f"{key} = {toml(value)}" for key, value in settings(language).items()]
    (folder / "zensical.toml").write_text("\n".join(["[project]", *lines, ""]), encoding="utf-8")


def build(folder: Path) -> None:
    """Run Zensical. Any warning ends the build."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    result = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode or re.search(r"warning|error", result.stdout, re.IGNORECASE):
        raise SystemExit(f"{result.stdout}\n{folder}: the build of the site has warnings or errors")


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/docs").resolve()
    shutil.rmtree(out, ignore_errors=True)
    for language in LANGUAGES:
        folder = out.with_name(f"{out.name}-source") / language
        stage(language, folder)
        build(folder)
        shutil.copytree(folder / "site", out if language == "en" else out / language)
    problems = check_site.problems(out)
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{len(list(out.rglob('*.html')))} pages: {out / 'index.html'}")


if __name__ == "__main__":
    main()
