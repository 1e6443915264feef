"""How many steps the loops of a sweep took, and how many of them for nothing."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import UInt32


class Steps(eqx.Module):
    """The steps of the `while_loop`s at each point of a sweep, as they were counted.

    `needed` is what the point takes by itself. `executed` is what the lane in which it
    was computed went through, until the slowest of its batch had ended. Counts end at
    2^32 - 1.
    """

    needed: UInt32[np.ndarray, " points"]
    executed: UInt32[np.ndarray, " points"]

    def __getitem__(self, part: slice | np.ndarray) -> "Steps":
        return Steps(self.needed[part], self.executed[part])

    @property
    def waste(self) -> float:
        """How many steps were executed for each one that was needed."""
        needed, executed = self._sums
        return executed / needed if needed else 1.0

    @property
    def attrs(self) -> dict[str, Any]:
        """Both in all, for a file."""
        needed, executed = self._sums
        return {
            "steps_needed": needed,
            "steps_executed": executed,
            "waste": round(self.waste, 4),
        }

    @property
    def _sums(self) -> tuple[int, int]:
        both = self.needed, self.executed
        needed, executed = (int(np.sum(x, dtype=np.uint64)) for x in both)
        return needed, executed
