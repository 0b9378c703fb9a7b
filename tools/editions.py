"""Compare the editions of a notebook cell by cell, and of the README: `make editions`, or `python -m tools.editions`.

notebooks/zh/06_fragmentation.ipynb is the Chinese edition of notebooks/06_fragmentation.ipynb. Both have the same cells
in the same order, and the same code but for strings and comments. A cell that was translated carries in its metadata
the hash of the English text that it was made from, so that a change of the English is seen as a stale translation.

usage: python -m tools.editions                       list what is stale or differs; exit 1 if anything does
       python -m tools.editions accept 06 [ID ...]    after updating the text: store the hashes of these cells (of all)

To begin an edition: copy the notebook to notebooks/<language>/, write `use_language("<language>")` for
`use_language("en")` in its imports cell (add that line to the English one if it has none), translate, add the chapter's
words to words_<language>.py of plots, widgets and exercises, then `make notebooks` and `accept`.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
import sys
from collections import Counter
from pathlib import Path
from string import Formatter
from typing import NamedTuple

import nbformat

if __package__:
    from tools.badges import BADGE
else:
    from badges import BADGE

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"setup"}  # written by tools/badges.py, in every language
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
NUMERALS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SPELT = {word: str(number) for number, word in enumerate(NUMERALS, 1)}


class Finding(NamedTuple):
    cell: str
    what: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.what}"


def pairs(root: Path = ROOT) -> list[tuple[Path, Path]]:
    """(English notebook, its edition) for every notebook in a folder named after a language."""
    found = sorted((root / "notebooks").glob("[a-z][a-z]/[0-9][0-9]_*.ipynb"))
    return [(path.parent.parent / path.name, path) for path in found]


def fingerprint(source: str) -> str:
    """12 digits of the sha256 of a cell's text; the Colab badge does not count, as its address may change."""
    return hashlib.sha256(BADGE.sub("", source).encode()).hexdigest()[:12]


# --- code that is equal but for strings and comments -----------------------------------------------------------------


class _Blank(ast.NodeTransformer):
    """Every string becomes empty. What an f-string or a format string puts in stays, in any order."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        inside = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        for part in inside:
            part.value = self.visit(part.value)  # its format, such as .1f, stays as it is
        if not inside:
            return ast.Constant("")
        return ast.JoinedStr(sorted(inside, key=ast.dump))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        fields: list[ast.expr] = []
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "format"
            and isinstance(function.value, ast.Constant)
        ):
            names = Counter(
                (name, spec) for _, name, spec, _ in Formatter().parse(function.value.value) if name is not None
            )
            fields = [ast.Constant(sorted(names.items()))]  # type: ignore[arg-type]
        self.generic_visit(node)
        node.args += fields
        return node


def skeleton(code: str) -> str:
    """The code without its strings, comments and layout."""
    return ast.dump(_Blank().visit(copy.deepcopy(ast.parse(code))))


# --- one cell and its translation ------------------------------------------------------------------------------------


def numbers(text: str) -> Counter[str]:
    """The numbers in a text, however it is worded."""
    return Counter(NUMBER.findall(text))


def _numbers_apart(english: str, other: str) -> str:
    """What differs in the numbers; "two" may become 2, where another language writes a digit."""
    a, b = (numbers(FENCE.sub("", text)) for text in (english, other))
    spelt = Counter(SPELT[word] for word in re.findall(r"[a-z]+", english.lower()) if word in SPELT)
    return "" if not a - b and not b - a - spelt else _difference(a, b)


def _targets(text: str) -> Counter[str]:
    """What a text links to, by name: the same notebook may lie one folder higher."""
    return Counter(
        target.rsplit("/", 1)[-1] if ".ipynb" in target else target.lstrip("./") for target in LINK.findall(text)
    )


def _compare_text(english: str, other: str) -> list[str]:
    english, other = BADGE.sub("", english), BADGE.sub("", other)
    found = []
    for name, count in {
        "headings": lambda text: re.findall(r"^#+ ", text, re.M),
        "folded parts": lambda text: re.findall(r"</?(?:details|summary)>", text),
        "table rows": lambda text: len(re.findall(r"^\|", text, re.M)),
        "list items": lambda text: re.findall(r"^(?:[*-]|\d+\.) ", text, re.M),
        "links": _targets,
    }.items():
        a, b = count(english), count(other)
        if a != b:
            found.append(f"{name} differ: {_difference(a, b)}")
    if apart := _numbers_apart(english, other):
        found.append(f"numbers differ: {apart}")
    for a, b in zip(FENCE.findall(english), FENCE.findall(other), strict=False):
        if skeleton(a) != skeleton(b):
            found.append("the code of its solution differs")
    return found


def _difference(a: object, b: object) -> str:
    if isinstance(a, Counter) and isinstance(b, Counter):
        return f"only in English {dict(a - b)}, only in the translation {dict(b - a)}"
    return f"{a} in English, {b} in the translation"


def _printed(cell: nbformat.NotebookNode) -> Counter[str]:
    """The numbers that a code cell printed."""
    texts = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return numbers("\n".join(texts))


def stale(english: nbformat.NotebookNode, other: nbformat.NotebookNode) -> bool:
    """Was this cell translated from another text than the English one of now?"""
    if english["id"] in GENERATED or english.source == other.source:
        return False
    return other.metadata.get("minipaged", {}).get("source") != fingerprint(english.source)


def compare(english: nbformat.NotebookNode, other: nbformat.NotebookNode) -> list[Finding]:
    """Everything in which an edition is not the English notebook in another language."""
    ours, theirs = ([cell["id"] for cell in notebook.cells] for notebook in (english, other))
    found = [Finding(name, "missing in the translation") for name in ours if name not in theirs]
    found += [Finding(name, "only in the translation") for name in theirs if name not in ours]
    if not found and ours != theirs:
        first = next(b for a, b in zip(ours, theirs, strict=True) if a != b)
        found.append(Finding(first, "the cells are not in the English order"))
    cells = {cell["id"]: cell for cell in other.cells}
    for cell in english.cells:
        if cell["id"] in cells:
            found += [Finding(cell["id"], what) for what in _compare_cell(cell, cells[cell["id"]])]
    return found


def _compare_cell(english: nbformat.NotebookNode, other: nbformat.NotebookNode) -> list[str]:
    if english.cell_type != other.cell_type:
        return [f"{english.cell_type} in English, {other.cell_type} in the translation"]
    found = ["stale: the English text is not the one that was translated"] if stale(english, other) else []
    if english.metadata.get("tags", []) != other.metadata.get("tags", []):
        found.append("tags differ")
    if english.cell_type == "markdown":
        return found + _compare_text(english.source, other.source)
    if skeleton(english.source) != skeleton(other.source):
        return [*found, "the code differs in more than strings and comments"]
    if "nbval-ignore-output" not in english.metadata.get("tags", []):
        a, b = _printed(english), _printed(other)
        if a != b:
            found.append(f"printed numbers differ: {_difference(a, b)}")
    return found


# --- the README ------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
DOCUMENTS = [("README.md", "README.zh.md")]


def compare_documents(english: str, other: str) -> list[Finding]:
    """What a translated README lacks or has changed, by its sections: commands, tables, links, numbers, code names."""
    ours, theirs = (re.split(r"^(?=## )", BADGE.sub("", text), flags=re.M) for text in (english, other))
    if len(ours) != len(theirs):
        return [Finding("headings", f"{len(ours) - 1} sections in English, {len(theirs) - 1} in the translation")]
    return [
        Finding(a.partition("\n")[0].strip("# "), what)
        for a, b in zip(ours, theirs, strict=True)
        for what in _compare_section(a, b)
    ]


def _compare_section(english: str, other: str) -> list[str]:
    found = []
    for name, count in {
        "commands and code": lambda text: [_without_comments(block) for block in BLOCK.findall(text)],
        "table cells": lambda text: [line.count("|") for line in re.findall(r"^\|.*", text, re.M)],
        "numbers in tables": lambda text: [_table_numbers(row) for row in re.findall(r"^\|.*", text, re.M)],
        "list items": lambda text: len(re.findall(r"^- ", text, re.M)),
        "bold parts": lambda text: text.count("**"),
        "links": lambda text: Counter(re.sub(r"README(\.zh)?\.md", "README", target) for target in LINK.findall(text)),
        "code names": lambda text: Counter(re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))),
    }.items():
        a, b = count(english), count(other)
        if a != b:
            found.append(f"{name} differ: {_difference(a, b)}")
    if apart := _numbers_apart(BLOCK.sub("", english), BLOCK.sub("", other)):
        found.append(f"numbers differ: {apart}")
    return found


def _without_comments(block: str) -> list[str]:
    return [re.sub(r"\s*# .*", "", line) for line in block.splitlines()]


def _table_numbers(row: str) -> list[str]:
    """The cells of a row that are numbers, in their order."""
    return [cell.strip() for cell in row.split("|") if re.fullmatch(r"[~\d., s]+", cell.strip())]


# --- the command -----------------------------------------------------------------------------------------------------


def accept(english: Path, other: Path, names: list[str]) -> int:
    """Store the hashes of the English cells in their translations; return how many changed."""
    source = {cell["id"]: cell for cell in nbformat.read(english, as_version=4).cells}
    notebook = nbformat.read(other, as_version=4)
    changed = 0
    for cell in notebook.cells:
        if (names and cell["id"] not in names) or cell["id"] not in source:
            continue
        translated = cell["id"] not in GENERATED and cell.source != source[cell["id"]].source
        mark = {"source": fingerprint(source[cell["id"]].source)} if translated else None
        if cell.metadata.get("minipaged") != mark:
            changed += 1
            cell.metadata.pop("minipaged", None)
            if mark:
                cell.metadata["minipaged"] = mark
    if changed:
        other.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return changed


def main(arguments: list[str]) -> int:
    if arguments and (arguments[0] != "accept" or len(arguments) < 2):
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for english, other in pairs():
        name = other.relative_to(ROOT)
        if arguments:
            if other.stem.startswith(arguments[1]):
                print(f"{name}: {accept(english, other, arguments[2:])} cells marked")
            continue
        found = compare(*(nbformat.read(path, as_version=4) for path in (english, other)))
        failed += len(found)
        print(f"{name}: " + ("up to date" if not found else f"{len(found)} to look at"))
        for finding in found:
            print(f"  {finding}")
    for english, other in [] if arguments else DOCUMENTS:
        found = compare_documents(*((ROOT / name).read_text(encoding="utf-8") for name in (english, other)))
        failed += len(found)
        print(f"{other}: " + ("up to date" if not found else f"{len(found)} to look at"))
        for finding in found:
            print(f"  {finding}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
