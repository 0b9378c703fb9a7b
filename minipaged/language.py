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


@cache
def _table(package: str, code: str) -> Mapping[str, str]:
    return {} if code == "en" else importlib.import_module(f"{package}.words_{code}").WORDS
