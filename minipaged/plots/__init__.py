"""The course's pictures: one file per chapter, one look (`minipaged.mplstyle`), one table of words (`words.py`).

Every function takes plain data and returns a `Picture`: a figure and the sentence that says what to see in it.
matplotlib loads when the first picture is made, not before.
"""

from minipaged.plots.base import COLOURS, Picture, colour, new_figure

__all__ = ["COLOURS", "Picture", "colour", "new_figure"]
