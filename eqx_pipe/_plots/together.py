"""The scale of a dim in its role: what varies together along it is said together."""

import dataclasses
from typing import Any

from .roles import Place
from .scale import FEW, Scale, label_of, scale_of


def place_scale(array: Any, place: Place, log: frozenset[str]) -> Scale:
    """The scale of a dim by its column, and the others with it that rise and fall so.

    For a cloud of points, of which none was chosen, it is the first column.
    """
    column = place.column or next(iter(place.columns), None)
    scale = scale_of(array, place.dim, column, log, spread=place.cloud)
    others = [name for name in place.columns if name != column]
    if place.chosen or place.cloud or not others:
        return scale
    if len(scale.texts) > FEW:
        label = f"{scale.label} (with it {', '.join(others)})"
        return dataclasses.replace(scale, label=label)
    texts = list(scale.texts)
    for name in others:
        other = scale_of(array, place.dim, name, log)
        shown = dict(zip(other.order.tolist(), other.texts, strict=True))
        texts = [f"{t}, {shown[i]}" for t, i in zip(texts, scale.order, strict=True)]
    label = ", ".join(label_of(array, name) for name in (place.column, *others))
    return dataclasses.replace(scale, label=label, texts=texts, ticks=True)
