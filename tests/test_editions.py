"""An edition in another language is the English notebook, cell by cell; what drifts is named."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
import pytest

from tools import editions

PAIRS = editions.pairs()
IDS = [f"{other.parent.name}-{other.stem}" for _, other in PAIRS]


def read(path):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize(("english", "other"), PAIRS, ids=IDS)
def test_an_edition_is_up_to_date(english, other):
    assert english.exists(), f"{other.name} has no English notebook"
    found = editions.compare(read(english), read(other))
    assert not found, "update these cells, then python -m tools.editions accept:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize(("english", "other"), PAIRS, ids=IDS)
def test_an_edition_speaks_its_language_and_its_english_one_english(english, other):
    for path, code in ((english, "en"), (other, other.parent.name)):
        calls = [cell for cell in read(path).cells if f'use_language("{code}")' in cell.source]
        assert [cell["id"] for cell in calls] == ["imports"], path


@pytest.mark.parametrize(("english", "other"), PAIRS, ids=IDS)
def test_links_prefer_the_same_language(english, other):
    """A chapter that exists in this language is linked there, not one folder higher."""
    own = {path.name for path in other.parent.glob("*.ipynb")}
    for cell in read(other).cells:
        if cell["id"] != "card":  # the card links the English edition
            for target in editions.LINK.findall(cell.source):
                assert not (target.startswith("../") and Path(target).name in own), f"{cell['id']}: {target}"


# --- the README ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("english", "other"), editions.DOCUMENTS)
def test_the_translated_readme_says_the_same(english, other):
    texts = [(editions.ROOT / name).read_text(encoding="utf-8") for name in (english, other)]
    found = editions.compare_documents(*texts)
    assert not found, f"bring {other} up to date:\n" + "\n".join(map(str, found))
    assert f"]({other})" in texts[0].split("##")[0] and f"]({english})" in texts[1].split("##")[0]
    for target in editions.LINK.findall(texts[1]):
        assert target.startswith(("http", "#")) or (editions.ROOT / target).exists(), target


TABLE = "\n\n| {0} | {1} |\n|---|---:|\n| {2} | 1.5 |\n"
DOCUMENT = [
    "# x\n\n## A\n\n```\nmake lab  # opens\n```\n\n**Note.** See [this](a.md), `name`, two ways."
    + TABLE.format(*"anb"),
    "# x\n\n## 甲\n\n```\nmake lab  # 打开\n```\n\n**注意。** 见[这里](a.md)，`name`，2 种办法。"
    + TABLE.format(*"甲数乙"),
]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("make lab", "make test", "commands and code differ"),
        ("a.md", "b.md", "links differ"),
        ("`name`", "`names`", "code names differ"),
        ("1.5", "1.6", "numbers in tables differ"),
        ("| 乙 | 1.5 |\n", "", "table cells differ"),
        ("2 种", "3 种", "numbers differ"),
        ("**注意。**", "注意。", "bold parts differ"),
        ("## 甲\n\n", "", "sections"),
    ],
)
def test_a_readme_that_drifts_is_named(old, new, words):
    english, other = DOCUMENT
    assert editions.compare_documents(english, other) == [] and old in other
    assert words in "\n".join(map(str, editions.compare_documents(english, other.replace(old, new))))


# --- each kind of drift is seen --------------------------------------------------------------------------------------


FOLDED = "\n\n<details><summary>{0}</summary>\n\n```python\nx = 1  # {1}\n```\n\n</details>"
TEXTS = {  # cell: (type, English, translation)
    "card": (
        "markdown",
        "# 99 · Title\n\nSee [this](05_x.ipynb): 2,048 slots.",
        "# 99 · 标题\n\n见[这里](../05_x.ipynb)：2,048 个槽位。",
    ),
    "code": (
        "code",
        "total = 3 + 4  # add\nprint(f\"{total} slots, {total / 2:.1f} {'x' if total else 'y'} free\")",
        "total = 3 + 4  # 相加\nprint(f\"空闲 {total / 2:.1f}，{'x' if total else 'y'}，共 {total} 个\")",
    ),
    "plain": ("code", "print('as it is')", "print('as it is')"),
    "end": (
        "markdown",
        "## Summary\n\n1. One." + FOLDED.format("Solution", "one"),
        "## 小结\n\n1. 一。" + FOLDED.format("答案", "一"),
    ),
}


def pair():
    """A small notebook and its translation, as both should be."""
    english, other = nbformat.v4.new_notebook(), nbformat.v4.new_notebook()
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    for name, (kind, source, translation) in TEXTS.items():
        english.cells.append(make[kind](source, id=name))
        other.cells.append(make[kind](translation, id=name))
        if source != translation:
            other.cells[-1].metadata["minipaged"] = {"source": editions.fingerprint(source)}
    english.cells[1].outputs = [nbformat.v4.new_output("stream", text="7 slots, 3.5 x free")]
    other.cells[1].outputs = [nbformat.v4.new_output("stream", text="空闲 3.5，x，共 7 个")]
    return english, other


def test_a_good_edition_has_no_findings():
    assert editions.compare(*pair()) == []


def change(index, old, new, which=1):
    def apply(*notebooks):
        cell = notebooks[which].cells[index]
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return apply


def drop(*notebooks):
    del notebooks[1].cells[2]


def swap(*notebooks):
    cells = notebooks[1].cells
    cells[1], cells[2] = cells[2], cells[1]


def add(*notebooks):
    notebooks[1].cells.append(nbformat.v4.new_markdown_cell("more", id="more"))


def forget(*notebooks):
    del notebooks[1].cells[0].metadata["minipaged"]


def retype(*notebooks):
    cells = notebooks[1].cells
    cells[0] = nbformat.v4.new_raw_cell(cells[0].source, id="card")


def tag(*notebooks):
    notebooks[1].cells[1].metadata["tags"] = ["nbval-ignore-output"]


def other_output(*notebooks):
    notebooks[1].cells[1].outputs[0].text = "8 slots"


DRIFT = {
    "another operation": (change(1, "3 + 4", "3 - 4"), "code", "the code differs"),
    "another number": (change(1, "3 + 4", "3 + 5"), "code", "the code differs"),
    "another name": (change(1, "print", "display"), "code", "the code differs"),
    "a placeholder less": (change(1, "，共 {total} 个", ""), "code", "the code differs"),
    "another placeholder": (change(1, "共 {total}", "共 {len(total)}"), "code", "the code differs"),
    "another format": (change(1, ".1f", ".2f"), "code", "the code differs"),
    "a line less": (change(1, "total = 3 + 4  # 相加\n", ""), "code", "the code differs"),
    "another solution": (change(3, "x = 1", "x = 2"), "end", "solution differs"),
    "a stale text": (change(0, "slots", "cells", which=0), "card", "stale"),
    "a stale code cell": (change(1, "free", "unused", which=0), "code", "stale"),
    "a text without a hash": (forget, "card", "stale"),
    "a string that was never translated again": (change(2, "as it is", "as it was", which=0), "plain", "stale"),
    "a wrong number in prose": (change(0, "2,048", "2,084"), "card", "numbers differ"),
    "another link": (change(0, "05_x", "06_x"), "card", "links differ"),
    "a heading less": (change(3, "## 小结", "小结"), "end", "headings differ"),
    "a fold left open": (change(3, "</details>", ""), "end", "folded parts differ"),
    "a point less": (change(3, "1. 一。", "一。1"), "end", "list items differ"),
    "a cell missing": (drop, "plain", "missing"),
    "a cell more": (add, "more", "only in the translation"),
    "another order": (swap, "plain", "order"),
    "another type": (retype, "card", "markdown in English, raw in the translation"),
    "another tag": (tag, "code", "tags differ"),
    "other numbers printed": (other_output, "code", "printed numbers differ"),
}  # fmt: skip


@pytest.mark.parametrize(("apply", "cell", "words"), DRIFT.values(), ids=DRIFT)
def test_drift_is_found_and_named(apply, cell, words):
    english, other = pair()
    apply(english, other)
    found = editions.compare(english, other)
    assert [f for f in found if f.cell == cell and words in f.what], found
    assert {f.cell for f in found} == {cell}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('print("a", x)  # why', 'print("甲", x)'),
        ('f"{a} of {b}"', 'f"{b} 之中的 {a}"'),
        ("'one' 'two'", "'一二'"),
        ('f"no field"', '"没有"'),
        ('"{n} of {m:.1f}".format(n=1, m=2)', '"{m:.1f} 之中的 {n}".format(n=1, m=2)'),
        ('def f():\n    """Doc."""\n    return 1', 'def f():\n    """说明。"""\n    return 1'),
    ],
)
def test_words_and_their_order_are_free(a, b):
    assert editions.skeleton(a) == editions.skeleton(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('"{n}".format(n=1)', '"{m}".format(n=1)'),
        ('"{n:.1f}".format(n=1)', '"{n}".format(n=1)'),
        ('f"{a} {a}"', 'f"{a}"'),
        ('f"{a!r}"', 'f"{a}"'),
        ('b"x"', 'b"y"'),
        ("f'{a[0] + 1}'", "f'{a[0] + 2}'"),
        ('"a", "b"', '"a"'),
        ("None", '""'),
    ],
)
def test_what_is_put_into_words_is_not(a, b):
    assert editions.skeleton(a) != editions.skeleton(b)


def test_a_number_in_letters_may_become_digits_and_no_other():
    english, other = pair()
    english.cells[3].source = english.cells[3].source.replace("One.", "A power of two.")
    other.cells[3].source = other.cells[3].source.replace("1. 一。", "1. 2 的幂。")
    other.cells[3].metadata["minipaged"]["source"] = editions.fingerprint(english.cells[3].source)
    assert editions.compare(english, other) == []
    other.cells[3].source = other.cells[3].source.replace("2 的幂", "3 的幂")
    assert [f.cell for f in editions.compare(english, other)] == ["end"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout with one chapter and its edition."""
    (tmp_path / "notebooks" / "zh").mkdir(parents=True)
    paths = [tmp_path / "notebooks" / name for name in ("99_x.ipynb", "zh/99_x.ipynb")]
    for path, notebook in zip(paths, pair(), strict=True):
        path.write_text(nbformat.writes(notebook), encoding="utf-8")
    monkeypatch.setattr(editions, "ROOT", tmp_path)
    monkeypatch.setattr(editions, "DOCUMENTS", [])
    monkeypatch.setattr(editions, "pairs", lambda: [tuple(paths)])
    return paths


def test_stale_cells_are_listed_until_they_are_accepted(folder, capsys):
    assert editions.main([]) == 0
    english = read(folder[0])
    english.cells[0].source = english.cells[0].source.replace("slots", "cells")
    folder[0].write_text(nbformat.writes(english), encoding="utf-8")
    assert editions.main([]) == 1
    assert "  card: stale" in capsys.readouterr().out
    assert editions.main(["accept", "99", "end"]) == 0, "another cell's hash changes nothing here"
    assert editions.main([]) == 1
    assert editions.main(["accept", "99", "card"]) == 0
    assert "1 cells marked" in capsys.readouterr().out
    assert editions.main([]) == 0
    before = folder[1].read_bytes()
    assert editions.main(["accept", "99"]) == 0 and folder[1].read_bytes() == before


def test_a_call_that_means_nothing_says_how(capsys):
    assert editions.main(["refresh"]) == 2 and editions.main(["accept"]) == 2
    assert "usage: python -m tools.editions" in capsys.readouterr().err


def test_a_badge_makes_nothing_stale():
    from tools.badges import with_badge

    english, other = pair()
    before = copy.deepcopy(english.cells[0].source)
    english.cells[0].source = with_badge(before, "ada/minipaged", "notebooks/99_x.ipynb")
    other.cells[0].source = with_badge(other.cells[0].source, "ada/minipaged", "notebooks/zh/99_x.ipynb")
    assert english.cells[0].source != before and editions.compare(english, other) == []
