"""The glossary: two languages, one place for each word, and every link in and out of it leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^((?:<a id=\"[a-z0-9-]+\"></a>)+)\*\*`?([^*`]+)`?\*\* · (.+?) · (.+)<br>\n(.+)$", re.M)
ENTRIES = ENTRY.findall(TEXT)
ANCHORS = re.findall(r'<a id="([^"]+)">', TEXT)

# The words that the Chinese edition keeps to.
FIXED = {
    "autoregressive decoding": "自回归解码", "token": "词元", "vocabulary": "词表", "greedy decoding": "贪婪解码",
    "sampling": "随机采样", "temperature": "温度系数", "nucleus (top-p) sampling": "核采样",
    "end of sequence": "结束标记",
    "tensor": "张量", "scalar": "标量", "attention head": "注意力头", "key": "键", "value": "值", "KV cache": "KV 缓存",
    "GPU memory": "显存", "internal fragmentation": "内部碎片", "external fragmentation": "外部碎片", "paging": "分页",
    "block": "块", "block table": "块表", "logical block": "逻辑块", "physical block": "物理块", "on demand": "按需",
    "prefix": "前缀", "copy-on-write": "写时复制", "throughput": "吞吐量", "concurrency": "并发", "padding": "填充",
    "speculative decoding": "投机采样（推测解码）", "continuous batching": "连续批处理",
    "preemption": "抢占",
    "prefill": "预填充", "memory bandwidth": "显存带宽", "rank": "维数（阶）", "stride": "步幅",
    "draft model": "草稿模型",
    "beam search": "束搜索", "prefix caching": "前缀缓存", "reference count": "引用计数", "swap out": "换出",
    "recompute": "重计算", "causal mask": "因果掩码",
}  # fmt: skip


def slug(term):
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def test_every_paragraph_is_an_entry():
    paragraphs = [p for p in TEXT.split("\n\n")[2:] if not p.startswith("## ")]
    assert len(paragraphs) == len(ENTRIES) > 100


def test_the_words_are_in_order_and_each_has_its_anchor():
    terms = [term for _, term, *_ in ENTRIES]
    assert terms == sorted(terms, key=str.casefold)
    assert len(set(ANCHORS)) == len(ANCHORS)
    for anchors, term, *_ in ENTRIES:
        assert f'<a id="{slug(term)}"></a>' in anchors, term
    headings = re.findall(r"^## (.)$", TEXT, re.M)
    assert headings == sorted({term[0].upper() for term in terms})


@pytest.mark.parametrize(("anchors", "term", "chinese", "place", "definition"), ENTRIES, ids=[e[1] for e in ENTRIES])
def test_an_entry_has_two_languages_a_chapter_and_a_short_definition(anchors, term, chinese, place, definition):
    assert re.search("[\u4e00-\u9fff]", chinese) or term == chinese == "Triton"
    assert FIXED.get(term, chinese) == chinese
    assert definition.endswith(".") and len(re.findall(r"[.?](?: |$)", definition)) <= 2
    number, target = re.fullmatch(r"\[chapter (\d+)\]\((.*)\)", place).groups()
    assert (ROOT / target).exists() and int(Path(target).name[:2]) == int(number)


def test_the_fixed_words_are_all_there():
    assert not set(FIXED) - {term for _, term, *_ in ENTRIES}


def linking_files():
    return [*ROOT.glob("*.md"), *ROOT.glob("notebooks/**/[0-9][0-9]_*.ipynb")]


def test_links_into_the_glossary_reach_a_word():
    for path in linking_files():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
        for anchor in re.findall(r"GLOSSARY\.md#([^)\s]+)\)", text):
            assert anchor in ANCHORS, f"{path.name}: GLOSSARY.md#{anchor}"


def links_of(notebook):
    """The anchors that a notebook's text links, in the order of reading."""
    cells = nbformat.read(notebook, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.findall(r"GLOSSARY\.md#([^)\s]+)\)", text)


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("notebooks/**/[0-9][0-9]_*.ipynb")), ids=lambda path: path.name)
def test_a_chapter_links_each_word_that_it_teaches_and_links_no_word_twice(notebook):
    taught = [(term, anchors) for anchors, term, _, place, _ in ENTRIES if place.endswith(f"{notebook.name})")]
    links = links_of(notebook)
    assert [term for term, anchors in taught if not set(re.findall(r'"([^"]+)"', anchors)) & set(links)] == []
    assert len(links) == len(set(links))


def test_every_chapter_teaches_words():
    chapters = {int(re.search(r"chapter (\d+)", place)[1]) for *_, place, _ in ENTRIES}
    assert chapters == set(range(14))


def test_the_front_doors_link_the_glossary():
    assert "](GLOSSARY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](../GLOSSARY.md)" in (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
