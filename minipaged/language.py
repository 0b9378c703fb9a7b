"""Which language pictures, widgets and checks speak: one call, or the environment variable MINIPAGED_LANG.

Every word that a reader sees stands in a table: `plots/words.py`, `widgets/words.py`, `exercises/words.py`. A second
language is a file beside it (`words_zh.py`) with the same keys. What it lacks is said in English, so that a chapter can
be translated alone. The code of the notebooks, the names of the library and its errors stay as they are.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from functools import cache

from minipaged.errors import InvalidInputError, shown

LANGUAGES = {"en": "English", "zh": "中文"}

_chosen: list[str] = []  # at most one


def use_language(code: str) -> None:
    """Let pictures, widgets and checks speak this language from now on: "en" or "zh".

    Raises:
        InvalidInputError: there are no words in that language; the message names those there are.
    """
    _chosen[:] = [_known(code, "the language")]


def language() -> str:
    """The language in use: what `use_language` chose, else MINIPAGED_LANG, else English."""
    return _chosen[0] if _chosen else _known(os.environ.get("MINIPAGED_LANG") or "en", "MINIPAGED_LANG")


def _known(code: str, name: str) -> str:
    """ "zh" for "zh", "ZH" and "zh_CN.UTF-8"."""
    short = re.split(r"[-_.]", code)[0].lower() if isinstance(code, str) else None
    if short not in LANGUAGES:
        raise InvalidInputError(f"{name} is {shown(code)}; there are words in {', '.join(map(repr, LANGUAGES))}")
    return short


def words(package: str, english: Mapping[str, str], key: str, code: str | None = None) -> str:
    """The format string for `key` from the table of `package` in a language (the one in use), else in English."""
    short = language() if code is None else _known(code, "the language")
    if not isinstance(key, str) or key not in english:
        raise InvalidInputError(f"there are no words for {shown(key)}")
    return _table(package, short).get(key) or english[key]


_COUNTED = (
    "beam|block|byte|character|copie|embedding|guess|head|key|layer|multiprocessor|number|pass|part|place|prediction|"
    "program|querie|request|row|sample|score|sequence|slot|step|text|token|turn|word"
)
_DONE = {"are": "is", "have": "has", "pass": "passes"}
_DONE |= {verb: f"{verb}s" for verb in ("differ", "hold", "leave", "name", "stay")}
_ONE = re.compile(
    rf"(?<![\d.,])1 ((?:KV |empty |free |new |prompt |query |rejected )?)({_COUNTED}|axe)e?s"
    rf"(?: ({'|'.join(_DONE)}))?\b"
)


def singular(text: str) -> str:
    """English text with "1 tokens" as "1 token" and "1 rows differ" as "1 row differs"; "1.1 tokens" stays."""
    return _ONE.sub(_one, text) if "1 " in text else text


def _one(found: re.Match[str]) -> str:
    noun = {"axe": "axis", "copie": "copy", "querie": "query"}.get(found[2], found[2])
    return f"1 {found[1]}{noun}" + (f" {_DONE[found[3]]}" if found[3] else "")


@cache
def _table(package: str, code: str) -> Mapping[str, str]:
    return {} if code == "en" else importlib.import_module(f"{package}.words_{code}").WORDS
