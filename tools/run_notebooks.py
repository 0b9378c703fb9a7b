"""Run notebooks top to bottom in fresh kernels and save their outputs: `make notebooks`.

usage: python tools/run_notebooks.py [NOTEBOOK ...]     (all of notebooks/, editions too, when none is named)

A notebook is written only when every cell ran. No widget state is stored (GitHub refuses some of it), stream outputs
are joined, and nothing that names this machine is kept, so that two runs give the same file but for timings.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent


def run(path: Path) -> float:
    """Run one notebook and write it back; return the seconds it took."""
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # no advice about the kernel's transport
    ).execute()
    tidy(notebook)
    aside = path.with_suffix(".partial")
    aside.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(aside, path)
    return time.perf_counter() - started


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs between two equal runs: timestamps, widget state and ids, the kernel's patch version, and in
    how many pieces a cell's printed text arrived."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = in_one_piece([output for output in cell.outputs if output.get("name") != "stderr"])
        for output in cell.outputs:
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def in_one_piece(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Printed texts that follow each other, joined."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def main(names: list[str]) -> int:
    folder = ROOT / "notebooks"
    paths = [Path(name) for name in names] or [
        *sorted(folder.glob("[0-9][0-9]_*.ipynb")),
        *sorted(folder.glob("[a-z][a-z]/[0-9][0-9]_*.ipynb")),
    ]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    failed = 0
    for path in paths:
        print(f"{path.name} ...", end=" ", flush=True)
        try:
            print(f"{run(path):.0f} s", flush=True)
        except CellExecutionError as error:
            failed += 1
            print(f"failed, not written:\n{error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
