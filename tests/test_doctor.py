"""The doctor looks, says what is missing and how to get it, changes nothing and never falls ill itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from minipaged import doctor
from minipaged.doctor import GPU, Facts, Package, can_run, examine, in_range, line_of_facts, report

ROOT = Path(__file__).resolve().parent.parent
GOOD = {name: Package(wanted.strip(">=").split(",")[0]) for name, wanted in doctor.NEEDED.items()}
HEALTHY = Facts(
    python="3.12.1",
    system="Linux",
    packages=GOOD | {"jupyterlab": Package("4.6.6"), "triton": Package("3.7.1")},
    cpu_cores=8,
    memory_bytes=16 * 2**30,
    model_place="~/.cache/minipaged/model",
)
T4 = GPU("Tesla T4", (7, 5), 15 * 2**30)
A100 = GPU("NVIDIA A100", (8, 0), 40 * 2**30)


def line(facts, subject):
    (found,) = [line for line in examine(facts) if line.subject == subject]
    return found


def with_package(name, *package):
    return replace(HEALTHY, packages=HEALTHY.packages | {name: Package(*package)})


def run(code="", *, hide=(), **environment):
    """The doctor in a fresh Python, with some packages hidden: (exit code, what it printed)."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in hide)
    code = f"import sys; {hidden}{code}\nfrom minipaged import doctor; sys.exit(doctor.main())"
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.startswith("minipaged "), done.stderr
    return done.returncode, done.stdout


# ---- facts -> lines, without looking at any machine


def test_a_healthy_machine_gets_no_advice():
    assert can_run(examine(HEALTHY))
    text = report(examine(HEALTHY))
    assert "Advice" not in text and text.endswith("The course can run here.")


def test_an_empty_machine_gets_one_line_of_advice_for_each_missing_thing():
    lines = examine(Facts())
    assert not can_run(lines)
    missing = {"Python", *doctor.NEEDED, *doctor.FOR_THE_FETCH, *doctor.OPTIONAL, "model"}
    assert {line.subject for line in lines if line.advice} == missing
    assert all("\n" not in line.advice for line in lines)
    assert report(lines).isascii()


@pytest.mark.parametrize("name", doctor.NEEDED)
def test_each_needed_package_that_is_missing_stops_the_course_and_is_named(name):
    facts = with_package(name)
    assert not can_run(examine(facts))
    assert line(facts, name).advice == f'{name} is not installed: pip install "{name}{doctor.NEEDED[name]}"'


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.5.1+cu121"), ("transformers", "4.57.0"), ("transformers", "6.0.0"), ("ipywidgets", "7.6.9")],
)
def test_a_version_outside_the_range_is_named_with_the_range(name, version):
    facts = with_package(name, version)
    assert not can_run(examine(facts))
    assert f"{name} {version} is outside {doctor.NEEDED[name]}: pip install" in line(facts, name).advice


def test_an_old_python_stops_the_course():
    facts = replace(HEALTHY, python="3.10.14")
    assert not can_run(examine(facts)) and "3.10.14 is outside >=3.11" in line(facts, "Python").advice


def test_a_package_that_cannot_be_imported_is_not_called_missing():
    broken = with_package("torch", "2.13.0", "OSError: libcudart.so: cannot open")
    assert not can_run(examine(broken))
    assert "libcudart.so" in line(broken, "torch").advice and "--force-reinstall torch" in line(broken, "torch").advice
    lacking = with_package("transformers", "5.24.0", "ModuleNotFoundError: no regex", "regex")
    assert line(lacking, "transformers").advice.endswith("imported without regex: pip install regex")


@pytest.mark.parametrize(
    ("version", "wanted", "good"),
    [
        ("2.6", ">=2.6.0", True),
        ("2.13.0+cpu", ">=2.6", True),  # 13 is more than 6, though "1" comes before "6"
        ("2.6.0a0+ecf3bae40a.nv25.01", ">=2.6", True),
        ("5.24.0.dev0", ">=5.15,<6", True),
        ("5.14.9", ">=5.15,<6", False),
        ("6.0.0rc1", ">=5.15,<6", False),
        ("3.8", "", True),
        ("of unknown version", ">=1", False),
        (None, ">=1", False),
    ],
)
def test_versions_are_compared_as_numbers(version, wanted, good):
    assert in_range(version, wanted) is good


def test_no_gpu_and_no_triton_do_not_stop_the_course():
    assert line(HEALTHY, "GPU").text == "none: the CPU is enough, in float32"
    assert "interpreted on the CPU" in line(HEALTHY, "Triton").text
    facts = with_package("triton")
    assert can_run(examine(facts)) and line(facts, "Triton").advice.endswith("pip install triton")
    for system, name in (("Darwin", "macOS"), ("Windows", "Windows")):
        triton = line(replace(facts, system=system), "Triton")
        assert triton.ok and not triton.advice and triton.text.startswith(f"not made for {name}")


def test_a_gpu_below_capability_8_gets_float16_and_one_from_8_on_bfloat16():
    both = examine(replace(HEALTHY, gpus=(T4, A100)))
    old, new = [line for line in both if line.subject == "GPU"]
    assert old.text.startswith("Tesla T4, capability 7.5, 15.0 GiB, float16 (below capability 8.0")
    assert new.text == "NVIDIA A100, capability 8.0, 40.0 GiB, bfloat16"
    assert "compiles for the GPU" in line(replace(HEALTHY, gpus=(A100,)), "Triton").text


def test_a_gpu_that_torch_cannot_use_is_said_and_the_cpu_serves():
    facts = replace(HEALTHY, gpus=(replace(A100, capability=(5, 0), problem="no kernel image is available"),))
    assert can_run(examine(facts))
    assert "no kernel image" in line(facts, "GPU").advice
    assert "interpreted" in line(facts, "Triton").text
    assert "CUDA build" in line(replace(HEALTHY, other_gpu="driver"), "GPU").advice
    assert "device='mps'" in line(replace(HEALTHY, other_gpu="mps"), "GPU").text


def test_little_memory_is_advice_and_not_a_refusal():
    facts = replace(HEALTHY, memory_bytes=2 * 2**30)
    assert can_run(examine(facts)) and "2.0 GiB of memory" in line(facts, "CPU").advice
    assert "memory unknown" in line(replace(HEALTHY, memory_bytes=None), "CPU").text


def test_without_a_model_the_doctor_says_how_to_get_it_and_what_the_fetch_needs():
    facts = replace(HEALTHY, model_place=None)
    assert "python -m minipaged.models" in line(facts, "model").advice
    assert not can_run(examine(facts)) and not line(facts, "gguf").ok
    full = replace(facts, free_disk_bytes=10**8)
    assert "0.1 GB are free" in line(full, "model").advice
    locked = replace(facts, free_disk_bytes=10**10, cache_can_be_written=False)
    assert line(locked, "model").advice.endswith("set MINIPAGED_CACHE to a folder that you can write to")


def test_your_own_model_is_named():
    facts = replace(HEALTHY, model="me/tiny", model_place="~/models/tiny")
    assert can_run(examine(facts)) and "stored outputs" in line(facts, "model").advice
    gone = replace(facts, model_place=None)
    assert not can_run(examine(gone)) and "me/tiny is not on this machine" in line(gone, "model").advice


def test_the_line_of_facts_is_the_same_on_every_machine_where_the_course_can_run():
    want = "8 of 8 needed packages in range | SmolLM2-135M-Instruct on this machine | the course can run"
    others = [
        HEALTHY,
        replace(HEALTHY, python="3.13.0", system="Darwin", cpu_cores=2, memory_bytes=None, other_gpu="mps"),
        replace(HEALTHY, gpus=(T4,), model_place="/elsewhere"),
        with_package("jupyterlab"),
    ]
    assert {line_of_facts(facts) for facts in others} == {want}
    assert line_of_facts(with_package("numpy")).startswith("7 of 8 ")
    assert line_of_facts(with_package("numpy")).endswith("the course cannot run yet")


def test_the_ranges_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["course"]
    ours = {**doctor.NEEDED, **doctor.FOR_THE_FETCH}
    assert sorted(asked) == sorted(f"{name}{wanted}" for name, wanted in ours.items() if name != "pip")
    assert project["requires-python"] == doctor.PYTHON


def test_the_doctor_can_be_read_by_a_python_that_is_too_old_for_the_course():
    for name in ("doctor", "__init__", "models", "errors"):
        ast.parse((ROOT / "minipaged" / f"{name}.py").read_text(encoding="utf-8"), feature_version=(3, 9))


# ---- looking at real machines


def test_this_machine_can_run_the_course():
    code, text = run()
    assert code == 0 and "  ok  torch " in text, text


@pytest.mark.parametrize("name", ["torch", "transformers", "numpy", "ipywidgets", "matplotlib", "tqdm"])
def test_a_hidden_package_is_reported(name):
    code, text = run(hide=[name])
    assert code == 1
    assert f'{name} is not installed: pip install "{name}' in text and f"  !!  {name} " in text


def test_everything_hidden_at_once_is_still_a_report():
    names = [*doctor.NEEDED, *doctor.FOR_THE_FETCH, *doctor.OPTIONAL, "triton", "huggingface_hub"]
    code, text = run(hide=names)
    assert code == 1 and text.count("is not installed") >= len(doctor.NEEDED)


def test_an_optional_package_that_is_hidden_changes_no_exit_code():
    code, text = run(hide=["jupyterlab", "triton"])
    assert code == 0 and "jupyterlab is not installed" in text


def test_an_old_package_and_a_broken_one_are_told_apart(tmp_path):
    (tmp_path / "tqdm.py").write_text("__version__ = '4.1.0'\n")
    (tmp_path / "matplotlib.py").write_text("raise RuntimeError('half an installation')\n")
    code, text = run(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert code == 1
    assert "tqdm 4.1.0 is outside >=4.60" in text
    assert "cannot be imported (RuntimeError: half an installation)" in text


def test_no_model_is_reported_and_nothing_is_fetched(tmp_path):
    cache = tmp_path / "not made yet"
    code, text = run(MINIPAGED_CACHE=str(cache), MINIPAGED_MODEL="")
    assert code == 1 and "  !!  model " in text and "python -m minipaged.models" in text
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "not made" / "yet"))
    asked = []
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: asked.append((path, mode)))
    assert not doctor._can_write()
    assert asked == [(tmp_path, os.W_OK)]


def test_a_model_of_your_own_is_looked_for(tmp_path):
    code, text = run(MINIPAGED_MODEL=str(tmp_path))
    assert code == 1 and "(MINIPAGED_MODEL), not on this machine" in text
    (tmp_path / "config.json").write_text("{}")
    code, text = run(MINIPAGED_MODEL=str(tmp_path))
    assert code == 0 and "stored outputs" in text


def test_an_id_that_was_never_fetched_is_not_on_this_machine(tmp_path):
    code, text = run(MINIPAGED_MODEL="nobody/no-such-model", HF_HUB_CACHE=str(tmp_path))
    assert code == 1 and "nobody/no-such-model is not on this machine" in text


def test_an_id_in_the_hugging_face_cache_is_found_without_a_network(tmp_path):
    repo = tmp_path / "models--nobody--tiny"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "snapshots" / "abc" / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    code, text = run(MINIPAGED_MODEL="nobody/tiny", HF_HUB_CACHE=str(tmp_path))
    assert code == 0 and "nobody/tiny (MINIPAGED_MODEL) in " in text


def test_looking_imports_no_triton_and_sets_no_variable():
    code = "import os; before = dict(os.environ); from minipaged import doctor; doctor.gather()"
    code += "; print('triton' in sys.modules, dict(os.environ) == before)"
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True)
    assert done.stdout.strip() == "False True", done.stderr


def test_a_look_that_fails_becomes_an_unknown(monkeypatch):
    def fails(*_):
        raise OSError("no such device")

    for look in ("_package", "_cpu_cores", "_memory_bytes", "_gpus", "_model", "_free_disk", "_can_write"):
        monkeypatch.setattr(doctor, look, fails)
    facts = doctor.gather()
    assert facts.memory_bytes is None and facts.gpus == () and facts.model_place is None
    assert report(examine(facts))


def test_the_report_prints_on_a_console_without_unicode(tmp_path):
    folder = tmp_path / "模型"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    code, _ = run(MINIPAGED_MODEL=str(folder), PYTHONIOENCODING="ascii")
    assert code == 0
