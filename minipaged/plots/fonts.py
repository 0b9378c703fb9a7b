"""A font for Chinese words in pictures: found among those installed, or a sentence that says what to install.

The course's pictures use DejaVu Sans, which comes with matplotlib and has no Chinese glyphs. matplotlib takes a missing
glyph from the next font in the list, so one more name is enough. Without any such font a picture would show empty
boxes: its words then stay English.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from pathlib import Path

from minipaged.errors import require

# Simplified forms first; the last ones have every character too, some of them in another country's form.
CANDIDATES = {
    "zh": (
        "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
        "PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti", "Microsoft YaHei", "SimHei", "DengXian",
        "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Sarasa Gothic SC", "HarmonyOS Sans SC",
        "Noto Sans CJK JP", "Source Han Sans", "Droid Sans Fallback", "Arial Unicode MS", "Noto Serif CJK SC", "SimSun",
    ),
}  # fmt: skip
_FILES = ("noto", "sourcehan", "pingfang", "hiragino", "heiti", "msyh", "simhei", "deng", "wqy", "wenquanyi", "droid")
_PROBE = {"zh": "词块"}

ADVICE = (
    "没有找到中文字体，图中的文字暂用英文。安装任意一种即可：Debian、Ubuntu 用 apt install fonts-noto-cjk"
    "（或体积小的 fonts-wqy-microhei），Fedora 用 dnf install google-noto-sans-cjk-fonts；装好后重启内核。\n"
    "(No installed font has Chinese glyphs: words in pictures stay English. The line above says what to install.)"
)


@cache
def font_for(code: str) -> str | None:
    """The name of an installed font with this language's glyphs; None for English, and where there is none."""
    if code not in CANDIDATES:
        return None
    return _known_font(code) or _new_font(code)


def _known_font(code: str) -> str | None:
    """The best candidate in matplotlib's own list."""
    require("matplotlib", "drawing a picture")
    from matplotlib import font_manager

    # Some of these fonts have no bold face. matplotlib then draws the titles in the regular one, and need not say so.
    logging.getLogger("matplotlib.font_manager").addFilter(_not_about_weight)
    files = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    return next((name for name in CANDIDATES[code] if name in files and _has_glyphs(files[name], _PROBE[code])), None)


def _not_about_weight(record: logging.LogRecord) -> bool:
    return "font weight" not in record.getMessage()


def _new_font(code: str) -> str | None:
    """matplotlib keeps its list in a file; a font that was installed later is not in it yet."""
    from matplotlib import font_manager

    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        if any(mark in Path(path).name.lower().replace("-", "") for mark in _FILES):
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):  # a broken or unreadable file is as good as none
                continue
    return _known_font(code)


def _has_glyphs(path: str, probe: str) -> bool:
    from matplotlib import ft2font

    try:
        font = ft2font.FT2Font(path)
    except (OSError, RuntimeError):
        return False
    return all(font.get_char_index(ord(letter)) for letter in probe)


@cache
def drawable(code: str) -> bool:
    """Can words in this language be drawn here? Says once what to install where they cannot."""
    if code not in CANDIDATES or font_for(code):
        return True
    print(ADVICE, file=sys.stderr)
    return False
