"""What was raised at the points of a sweep that failed."""

from collections.abc import Mapping

import equinox as eqx
import numpy as np
from jaxtyping import Int64


class Raised(eqx.Module):
    """The points that failed, in order, and for each of them which of some texts."""

    points: Int64[np.ndarray, " failed"]
    which: Int64[np.ndarray, " failed"]
    texts: tuple[str, ...] = eqx.field(static=True)

    @staticmethod
    def of(errors: Mapping[str, np.ndarray]) -> "Raised | None":
        """From the points for each text; `None` if there are none."""
        errors = {text: points for text, points in errors.items() if len(points)}
        if not errors:
            return None
        points = np.concatenate(list(errors.values())).astype(np.int64)
        which = np.repeat(np.arange(len(errors)), [len(p) for p in errors.values()])
        order = np.argsort(points, kind="stable")
        return Raised(points[order], which[order], tuple(errors))

    def as_dict(self) -> dict[int, str]:
        """The text for each point."""
        which = (self.texts[k] for k in self.which.tolist())
        return dict(zip(self.points.tolist(), which, strict=True))

    def by_text(self) -> dict[str, Int64[np.ndarray, " _failed"]]:
        """The points for each text."""
        return {text: self.points[self.which == k] for k, text in enumerate(self.texts)}

    def picked(self, index: Int64[np.ndarray, " picked"]) -> "Raised | None":
        """That of the points at some indices, in their order."""
        place = np.searchsorted(self.points, index)
        place = np.minimum(place, len(self.points) - 1)
        new = np.flatnonzero(self.points[place] == index)
        which = self.which[place[new]]
        return Raised.of({t: new[which == k] for k, t in enumerate(self.texts)})
