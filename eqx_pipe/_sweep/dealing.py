"""Which device computes which points of a call of a kernel.

In each round every device gets one batch, in one round from the first device to the
last, in the next the other way: where cost rises or falls along the points, no device
always gets the dearer batch, let alone the dearer half. Where a loop refills its lanes
a device has but a few large batches, and the points are dealt one by one instead.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Deal:
    """The dealing of points in batches to devices; `singly` is point by point.

    The numbers of devices, rounds and points may be arrays of NumPy or JAX.
    """

    batch_size: int
    num_devices: int
    singly: bool = False

    @property
    def step(self) -> int:
        """How far apart the points of a batch are."""
        return self.num_devices if self.singly else 1

    def first(self, device: Any, turn: Any) -> Any:
        """The first point of the batch of a device in some round."""
        each, others = self.batch_size, self.num_devices
        if self.singly:
            return turn * (each * others) + device
        return (turn * others + self.place(device, turn)) * each

    def place(self, device: Any, turn: Any) -> Any:
        """The place of a device's batch in a round, or the device of that place."""
        return device + turn % 2 * (self.num_devices - 1 - 2 * device)

    def turns(self, device: Any, points: Any) -> Any:
        """In how many rounds a device gets a batch; the last may not be a full one."""
        span = self.batch_size * self.num_devices
        whole = points // span
        # One more if its batch of the last round begins before the end.
        return whole + (points - self.first(device, whole) + span - 1) // span

    def stretches(
        self, rows: np.ndarray, given: np.ndarray, device: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Views of the rows that a device gets, with those of what it gave for them.

        `rows` has one row for each point, in order, `given` one for each point of the
        device, batch after batch.
        """
        each, others = self.batch_size, self.num_devices
        if others == 1:
            yield rows, given[: len(rows)]
            return
        whole = len(rows) // (each * others)
        order = (each, others) if self.singly else (others, each)
        rounds = rows[: whole * each * others].reshape(whole, *order, *rows.shape[1:])
        mine = given[: whole * each].reshape(whole, each, *given.shape[1:])
        if self.singly:
            yield rounds[:, :, device], mine
        else:
            for turn in (0, 1):
                yield rounds[turn::2, self.place(device, turn)], mine[turn::2]
        first = self.first(device, whole)
        last = rows[first : first + each * self.step : self.step]
        yield last, given[whole * each : whole * each + len(last)]
