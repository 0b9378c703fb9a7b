"""The tools that write into the repository: badges from one address, notebooks from one run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from tools import badges, resolve, run_notebooks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def copy(tmp_path):
    """The files that badges are written into, copied aside."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def everything(root):
    paths = [*(path for path, _ in badges.notebooks(root)), root / "README.md"]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_one_address_reaches_every_badge_and_setup_cell_and_can_change(copy):
    before = everything(copy)
    badges.write_everywhere(copy, "ada/minipaged")
    first = everything(copy)
    for name, text in first.items():
        assert "colab.research.google.com/github/ada/minipaged/blob/main/notebooks/" in text, name
        if name.endswith(".ipynb"):
            assert f"/blob/main/{name})" in text
            assert 'REPO = \\"ada/minipaged\\"' in text
    badges.write_everywhere(copy, "grace/other")
    assert not any("ada/minipaged" in text for text in everything(copy).values())
    badges.write_everywhere(copy, "")
    assert everything(copy) == before, "taking the address away must restore every file"
    assert badges.write_everywhere(copy, "") == []


def test_the_address_lives_in_pyproject_alone():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    once = badges.set_repository(text, "ada/minipaged")
    assert badges.repository(once) == "ada/minipaged"
    assert badges.repository(badges.set_repository(once, "grace/other")) == "grace/other"
    assert badges.set_repository(once, "grace/other").count("[project.urls]") == 1


def test_what_is_committed_follows_from_pyproject():
    repo = badges.repository((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, text in everything(ROOT).items():
        assert ("colab.research.google.com/github" in text) == bool(repo), name


@pytest.mark.parametrize("repo", ["minipaged", "a/b/c", "https://x/y", "own er/x"])
def test_a_malformed_address_is_refused(repo, capsys):
    assert badges.main([repo]) == 2
    assert "owner/name" in capsys.readouterr().err


def test_a_failing_notebook_is_not_written(tmp_path, capsys):
    path = tmp_path / "bad.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(notebook, path)
    before = path.read_text()
    assert run_notebooks.main([str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_a_stored_run_keeps_no_trace_of_the_machine(tmp_path):
    path = tmp_path / "good.ipynb"
    code = (
        "import sys, ipywidgets\nprint(1, flush=True)\nprint('w', file=sys.stderr, flush=True)\nprint(2)\n"
        "ipywidgets.IntSlider()"
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    assert run_notebooks.main([str(path)]) == 0
    assert not any(word in path.read_text() for word in ("widget-view", '"widgets"', "iopub", '"name": "stderr"'))
    assert nbformat.read(path, 4).cells[0].outputs[0].text == "1\n2\n"  # in one piece


def run_setup_cell(monkeypatch, folder, repo=""):
    """The set-up cell as Colab runs it, in `folder`, but for pip; the commands that it gave."""
    commands = []
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command) if check else None)
    exec(compile(badges.setup_cell(repo), "setup", "exec", dont_inherit=True), {})
    return commands


def test_in_colab_the_setup_cell_installs_minipaged_beside_what_is_there(monkeypatch, tmp_path, capsys):
    """Never torch, numpy or what Colab has besides: no dependency is followed."""
    (tmp_path / "minipaged-0.1.0-py3-none-any.whl").touch()
    for repo, source in (("", "minipaged-0.1.0-py3-none-any.whl"), ("ada/x", "minipaged-0.1.0-py3-none-any.whl")):
        ((*pip, _, no_deps, wheel, gguf),) = run_setup_cell(monkeypatch, tmp_path, repo)
        assert pip == [sys.executable, "-m", "pip", "install"]
        assert (no_deps, wheel, gguf) == ("--no-deps", source, "gguf")
    assert "torch, numpy as before" in capsys.readouterr().out


def test_in_colab_without_a_wheel_the_setup_cell_takes_the_repository_or_says_what_to_do(monkeypatch, tmp_path):
    assert "git+https://github.com/ada/x" in run_setup_cell(monkeypatch, tmp_path, "ada/x")[0]
    with pytest.raises(SystemExit, match="make wheel"):
        run_setup_cell(monkeypatch, tmp_path)


def test_outside_colab_the_setup_cell_does_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it ran something"))
    exec(compile(badges.setup_cell("ada/x"), "setup", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == ""


def test_resolve_asks_for_published_packages_only():
    wanted = resolve.published((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert "torch==" in wanted and 'triton==3.7.1; platform_system == "Linux"' in wanted and "-e" not in wanted
