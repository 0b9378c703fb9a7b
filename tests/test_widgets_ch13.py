"""Chapter 13's widgets and pictures say what is in the map, in the tables and in the ledger."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

import minipaged
from minipaged.errors import InvalidInputError
from minipaged.exercises.ch13 import QUIZ, check_13_quiz, from_csr, heads_per_gpu, to_csr
from minipaged.kv_size import models
from minipaged.plots import ch13 as plots
from minipaged.widgets.ch13 import csr_converter, where_is_it

CASES = Path(__file__).parent / "cases"
PACKAGE = Path(minipaged.__file__).parent


def test_every_part_of_the_map_is_here():
    for part in plots.PARTS:
        module, _, symbol = part.ours.partition(".")
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")  # read, not imported: Triton may be missing
        assert symbol in plots.symbols_of(source), part


def test_every_part_of_the_map_is_in_vllm():
    """tests/cases holds what the files named on the map define in vLLM's source distribution of that version."""
    seen = json.loads((CASES / "vllm_symbols.json").read_text())
    assert seen["version"] == plots.VLLM
    for part in plots.PARTS:
        assert part.symbol in seen["files"][part.path], part


def test_the_notebooks_read_one_version_of_vllm_and_name_files_that_it_has():
    seen = json.loads((CASES / "vllm_symbols.json").read_text())
    minor = seen["version"].rpartition(".")[0]
    for path in sorted((PACKAGE.parent / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        text = "\n".join(cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
                         for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])  # fmt: skip
        assert set(re.findall(r"vLLM (0\.\d+)", text)) <= {minor}, path.name
        listed = re.search(r"^- vLLM [\d.]+, source.*", text, re.M)
        for name in re.findall(r"`vllm/(v1/[^`]+\.py|entrypoints/[^`]+\.py)`", listed[0] if listed else ""):
            assert name in seen["files"], f"{path.name}: {name}"


def test_a_source_tree_is_compared_with_the_map(tmp_path):
    path = tmp_path / "v1" / "request.py"
    path.parent.mkdir()
    path.write_text("class Request:\n    def fork(self): ...\n")
    missing = plots.missing_from(tmp_path)
    assert len(missing) == len(plots.PARTS) - 1 and "v1/request.py: Request" not in missing
    assert plots.symbols_of(path.read_text()) == ["Request", "Request.fork"]


def test_the_widget_names_file_and_symbol_of_each_part():
    panel = where_is_it()
    assert "vllm/v1/engine/parallel_sampling.py" in panel.sentence and "nothing is copied" in panel.sentence
    for part in plots.PARTS:
        panel.controls["part"].value = part.key
        assert f"{part.symbol} in vllm/{part.path}" in panel.sentence
    with pytest.raises(InvalidInputError, match="no part 'nothing'"):
        plots.where_is("nothing")


def test_the_map_counts_its_parts():
    counts = plots.map_to_vllm().data
    assert counts["same"] + counts["changed"] + counts["other"] == counts["n"] == len(plots.PARTS)


def test_the_converter_shows_the_tables_of_a_real_pool():
    panel = csr_converter()
    data = panel.picture.data
    assert data["last"] == [2, 3, 4] and data["indptr"] == [0, 3, 4, 8] and len(set(data["indices"])) == 8
    panel.controls["b"].value = 4
    assert panel.picture.data["last"] == [2, 4, 4]
    panel.controls["size"].value = 16
    assert panel.picture.data["indptr"] == [0, 1, 2, 3] and "fill 3 places" in panel.sentence


def test_csr_and_back_is_where_it_began():
    tables, lengths = [[5, 1, 7], [2, -1, -1], [0, 6, -1]], [10, 4, 8]
    assert from_csr(*to_csr(tables, lengths, 4), 4) == (tables, lengths)


def test_heads_on_gpus_are_the_bytes_that_kv_size_counts():
    spec = models()["Llama-3-8B"].spec
    for gpus in (1, 2, 4, 8, 16):
        (each,) = {len(heads) for heads in heads_per_gpu(8, gpus)}
        assert spec.bytes_per_token(tensor_parallel=gpus) == spec.bytes_per_token() * each // 8
    assert plots.split_heads(8, heads_per_gpu(8, 16)).data["copies"] == 2


def test_the_quiz_asks_about_every_chapter():
    assert [question.chapter for question in QUIZ] == list(range(1, 13))


def test_the_solution_of_the_quiz_shows_what_is_computed():
    path = Path(__file__).resolve().parent.parent / "notebooks" / "13_from_minipaged_to_vllm.ipynb"
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c["id"] == "exercise-quiz-solution")
    rows = dict(re.findall(r"^\| \d+ `(\w+)` \| (\S+) \| .+\. \(chapter \d+\) \|$", cell.source, re.M))
    assert rows == {q.key: f"{a:,}" if isinstance(a := q.answer(), int) else a for q in QUIZ}


def test_the_quiz_takes_numbers_as_they_are_printed():
    right = {question.key: question.answer() for question in QUIZ}
    assert check_13_quiz(right | {"bytes": "131,072", "slots": " 16 "}).status == "right"
    assert check_13_quiz(right | {"bytes": "131,073"}).status == "wrong"


def test_the_picture_of_a_part_says_in_its_title_what_became_of_it():
    title = plots.where_is("fork").figure.axes[0].get_title(loc="left")
    assert title == f"fork: done in another way in vLLM {plots.VLLM}"


def test_a_published_number_carries_its_source():
    number = plots.published(24, "launch blog")
    assert f"{number}" == "24 (launch blog)" and f"{number:.1f}" == "24.0" and number / 2 == 12
    for source in ("", " ", None):
        with pytest.raises(InvalidInputError, match="from where"):
            plots.published(24, source)


def test_the_verdict_follows_from_the_conditions():
    ledger = plots.Ledger()
    ledger.add("S1", "a", 1, check="c", result="r", holds=True)
    ledger.add("S2", "b < c", 1, check="c", result="r", holds=False, under=True, note="if")
    ledger.add("S3", "c", 2, check="c", result="r", holds=False, note="no, but")
    assert [entry.verdict for entry in ledger.entries] == list(plots.VERDICTS)
    assert list(ledger.counts.values()) == [1, 1, 1]
    shown = ledger.new()._repr_html_()
    assert shown.count('<th scope="row">') == 3 and shown.count('<th scope="col"') == 6 and "b &lt; c" in shown
    assert not ledger.new().entries and len(ledger.table.entries) == 3
    assert plots.verdicts(ledger).data["numbers"] == "S3"
    for change, why in (
        ({"number": "S1"}, "in the ledger already"),
        ({"result": " "}, "result is empty"),
        ({"holds": False}, "needs a note"),
    ):
        row = {"number": "S4", "claim": "d", "chapter": 3, "check": "c", "result": "r", "holds": True} | change
        with pytest.raises(InvalidInputError, match=why):
            ledger.add(**row)
