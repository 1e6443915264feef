"""How large text is, near enough: a picture is laid out where there is no browser."""

import unicodedata

LINE = 16.0
"""The height of a line, in pixels."""

SANS, MONO = 13.0, 11.5
"""Sizes of the two fonts, in pixels: of names, and of shapes."""

_NARROW, _WIDE = set("ijltfr.,:;'|!()[]{}` -"), set("mwMW@%&+=<>~")


def sans_width(text: str, size: float = SANS) -> float:
    """The width of a line of a sans-serif font; rather too wide than too narrow."""
    return size * sum(map(_em, text))


def _em(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in _NARROW:
        return 0.4
    if letter in _WIDE:
        return 0.92
    return 0.7 if letter.isupper() else 0.62


def mono_width(text: str, size: float = MONO) -> float:
    """The width of a line of a font whose letters are equally wide."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return size * (0.605 * (len(text) - wide) + 1.05 * wide)
