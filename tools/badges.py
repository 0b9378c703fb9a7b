"""Write the project's public address where it is shown: `make badges REPO=owner/name`.

The address lives in one place, `[project.urls]` of pyproject.toml. From it come the set-up cell of every notebook, the
"open in Colab" badge on every card, and the badge in the README. Without an address the set-up cell says how to bring
a wheel, and there is no badge that could point nowhere.

usage: python tools/badges.py [owner/name]     (without an argument: write everything again from pyproject.toml)
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)\n*")

SETUP_CELL = """\
# In Google Colab this cell adds minipaged beside the torch that is there; anywhere else it does nothing.
import glob, subprocess, sys
REPO = "{repo}"
if "google.colab" in sys.modules:
    wheels = sorted(glob.glob("minipaged-*.whl"))
    source = wheels[-1] if wheels else f"git+https://github.com/{{REPO}}" if REPO else None
    if source is None:
        raise SystemExit("Build a wheel with `make wheel`, upload it with the folder icon on the left, run this again.")
    from importlib.metadata import version
    before = version("torch"), version("numpy")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", source, "gguf"], check=True)
    after = version("torch"), version("numpy")
    print("minipaged", version("minipaged"), "| torch, numpy", "as before" if before == after else f"NOW {{after}}")"""

# The same cell in other languages: its strings and comments, by their English words.
SETUP_WORDS = {
    "zh": {
        "In Google Colab this cell adds minipaged beside the torch that is there; anywhere else it does nothing.": (
            "在 Google Colab 里，这个单元格把 minipaged 装到已有的 torch 旁边；在别处它什么也不做。"
        ),
        "Build a wheel with `make wheel`, upload it with the folder icon on the left, run this again.": (
            "请用 `make wheel` 生成 wheel，点左边的文件夹图标上传，再运行一次本单元格。"
        ),
        "as before": "没有改动",
        "NOW {after}": "变成了 {after}",
    },
}


def repository(pyproject: str) -> str:
    """`owner/name` from pyproject's text, or an empty string while no address is set."""
    url = tomllib.loads(pyproject)["project"].get("urls", {}).get("Repository", "")
    return url.removeprefix("https://github.com/").strip("/")


def set_repository(pyproject: str, repo: str) -> str:
    """pyproject's text with `[project.urls]` saying `repo`."""
    section = f'[project.urls]\nRepository = "https://github.com/{repo}"\n'
    if "[project.urls]" in pyproject:
        return re.sub(r"\[project\.urls\]\n(?:[^\[\n].*\n)*", section, pyproject)
    return pyproject.replace("[project.optional-dependencies]", section + "\n[project.optional-dependencies]", 1)


def setup_cell(repo: str, language: str = "en") -> str:
    """The code of every notebook's set-up cell."""
    code = SETUP_CELL.format(repo=repo)
    for english, words in SETUP_WORDS.get(language, {}).items():
        assert english in code, f"the set-up cell no longer says: {english}"
        code = code.replace(english, words)
    return code


def notebooks(root: Path) -> list[tuple[Path, str]]:
    """Every notebook with its language: those of notebooks/, then its editions in folders named after a language."""
    folder = root / "notebooks"
    editions = sorted(folder.glob("[a-z][a-z]/[0-9][0-9]_*.ipynb"))
    return [(path, "en") for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))] + [(p, p.parent.name) for p in editions]


def badge(repo: str, path: str) -> str:
    """The Colab badge for one notebook, or nothing while there is no address."""
    if not repo:
        return ""
    target = f"https://colab.research.google.com/github/{repo}/blob/main/{path}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({target})\n\n"


def with_badge(text: str, repo: str, path: str) -> str:
    """Markdown with its badge under the first heading, replacing an older one."""
    first, _, rest = BADGE.sub("", text).partition("\n\n")
    return f"{first}\n\n{badge(repo, path)}{rest}"


def write_everywhere(root: Path, repo: str) -> list[Path]:
    """Write set-up cells and badges of all notebooks and of the README; return the files that changed."""
    changed = []
    for path, language in notebooks(root):
        notebook = nbformat.read(path, as_version=4)
        cells = {cell["id"]: cell for cell in notebook.cells}
        cells["setup"].source = setup_cell(repo, language)
        cells["card"].source = with_badge(cells["card"].source, repo, path.relative_to(root).as_posix())
        changed += _write(path, nbformat.writes(notebook) + "\n")
    readme = root / "README.md"
    text = with_badge(readme.read_text(encoding="utf-8"), repo, "notebooks/00_start_here.ipynb")
    return changed + _write(readme, text)


def _write(path: Path, text: str) -> list[Path]:
    if path.read_text(encoding="utf-8") == text:
        return []
    path.write_text(text, encoding="utf-8")
    return [path]


def main(arguments: list[str]) -> int:
    pyproject = ROOT / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    if arguments:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", arguments[0]):
            print(
                f'error: REPO is "{arguments[0]}"; give it as owner/name, such as REPO=ada/minipaged', file=sys.stderr
            )
            return 2
        _write(pyproject, text := set_repository(text, arguments[0]))
    for path in write_everywhere(ROOT, repository(text)):
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
