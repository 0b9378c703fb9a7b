"""The course's live widgets: one file per chapter, one table of words (`words.py`).

A widget is a `Panel`: a few controls above one picture and one spoken sentence. All of its arithmetic is in the pure
function that draws the picture, so a test needs no browser. ipywidgets loads when the first widget is made.
"""
