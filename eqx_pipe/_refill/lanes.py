"""Loops of different length in few lanes.

A lane runs the loop of one point. When a quarter of the lanes have finished, their
results are stored and they get the next points. Each point takes the same steps as
alone, so its value is the same.

The number of lanes, the number of steps between checks, and the condition for a refill
were chosen together on CPU, for trip counts from 1 to 1000: each step has a fixed cost,
but fewer lanes leave fewer idle.
"""

import itertools as it
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from .._jaxprs import may_loop_or_call_back
from .._tree import as_data, as_keys, broadcast_mask
from .._types import PyTree

if TYPE_CHECKING:
    from .loop import Loop

# More lanes and steps than 512 and 8 contributed to a speed-up of 1.1 to 1.6 times.
_MOST_LANES = 1024
_STEPS = 16
_LEAST_LANES = 64
# At the end lanes find no more points, which matters if there are few points per lane.
_POINTS_PER_LANE = 32
_LANE_BYTES = 128 * 1024  # they stay in a cache
# One in `_IDLE` lanes must be idle before a refill, which moves values of all lanes.
_IDLE = 4


def num_lanes(size: int, carry_bytes: int) -> int:
    """Return the number of lanes for `size` points."""
    room = _LANE_BYTES // max(1, carry_bytes)
    wanted = min(_MOST_LANES, room, size // _POINTS_PER_LANE)
    return min(size, max(_LEAST_LANES, wanted))


class Lanes:
    """The constant parts of the loops of many points.

    Constants that all lanes share are `None` among the lanes' own constants.
    """

    def __init__(self, loop: "Loop", consts: Sequence[Array]):
        self.size, self.consts = loop.num_points, consts
        self.sizes, self.axes = loop.sizes, loop.axes
        self.test = self._over_lanes(loop.test)
        self.step = self._over_lanes(loop.step)
        # A body that may raise or loop must not run for a point after its end.
        self.guarded = may_loop_or_call_back(loop.body_jaxpr)

    def _over_lanes(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def one(own: list[Any], carry: list[Any]) -> Any:
            pairs = zip(self.consts, own, strict=True)
            return run([x if mine is None else mine for x, mine in pairs], carry)

        return jax.vmap(one)

    def run(self, results: list[Any]) -> list[Any]:
        """Return the final carries; `results` contains the first carries."""
        # PRNG keys cannot be scattered into a buffer; their data can.
        carry_bytes = sum(x.nbytes // self.size for x in map(as_data, results))
        lanes = num_lanes(self.size, carry_bytes)
        point = jnp.arange(lanes, dtype=jnp.int32)
        own, carry = self._load(point), _take(results, point)
        alive = self.test(own, carry)
        # `point == size` means that no point was left for this lane.
        start = (jnp.int32(lanes), point, own, carry, alive, [*map(as_data, results)])

        def turn(state: Any) -> Any:
            following, point, own, carry, alive, stored = state
            carry, alive = self._advance(following, point, own, carry, alive)
            ended = ~alive
            # Lanes still running write out of bounds, which has no effect.
            into = jnp.where(ended, point, self.size)
            stored = [
                x.at[into].set(as_data(c), mode="drop")
                for x, c in zip(stored, carry, strict=True)
            ]
            # Lanes that ended take the next points in order, each a different one.
            number = jnp.cumsum(ended, dtype=jnp.int32)
            fresh = jnp.minimum(following + number - 1, self.size)
            point = jnp.where(ended, fresh, point)
            own = _select(ended, self._load(point), own)
            first = [as_keys(d, x) for d, x in zip(stored, results, strict=True)]
            carry = _select(ended, _take(first, point), carry)
            alive = (point < self.size) & self.test(own, carry)
            following = jnp.minimum(following + number[-1], self.size)
            return following, point, own, carry, alive, stored

        end = lax.while_loop(lambda s: jnp.any(s[1] < self.size), turn, start)
        return [as_keys(d, x) for d, x in zip(end[-1], results, strict=True)]

    def _advance(
        self,
        following: Int32[Array, ""],
        point: Int32[Array, " lanes"],
        own: list[Any],
        carry: list[Any],
        alive: Bool[Array, " lanes"],
    ) -> tuple[list[Any], Bool[Array, " lanes"]]:
        """Step until enough lanes have ended, or all of them if no point is left."""
        lanes = len(point)
        busy = jnp.sum(point < self.size, dtype=jnp.int32)
        few = jnp.where(following < self.size, busy - max(1, lanes // _IDLE), 0)

        def some(_: Any, now: Any) -> Any:
            # Test first: the rest of a step only reads `alive`, so XLA makes no copy. A
            # lane that ends with the last step is found later.
            carry, alive = now
            alive = alive & self.test(own, carry)
            return _select(alive, self.step(own, carry), carry), alive

        def guarded(now: Any) -> Any:
            carry, alive = now
            # A lane is alive, since the loop would otherwise have ended.
            spare = jnp.argmax(alive)
            others = jax.tree.map(
                lambda x: jnp.broadcast_to(x[spare], x.shape), (own, carry)
            )
            given = _select(alive, (own, carry), others)
            carry = _select(alive, self.step(*given), carry)
            return carry, alive & self.test(own, carry)

        def unguarded(now: Any) -> Any:
            # Take several steps per check, since a check sums over all lanes.
            return lax.fori_loop(0, _STEPS, some, now)

        return lax.while_loop(
            lambda now: jnp.sum(now[1], dtype=jnp.int32) > jnp.maximum(few, 0),
            guarded if self.guarded else unguarded,
            (carry, alive),
        )

    def _load(self, point: Int32[Array, " lanes"]) -> list[Any]:
        """Return the lanes' own constants."""
        digits = [point]
        if len(self.sizes) > 1:
            digits = jnp.unravel_index(point, self.sizes)
        return [
            x.at[tuple(it.compress(digits, has))].get(mode="clip") if any(has) else None
            for x, has in zip(self.consts, self.axes, strict=True)
        ]


def _take(arrays: list[Any], point: Int32[Array, " lanes"]) -> list[Any]:
    return [x.at[point].get(mode="clip") for x in arrays]


def _select(mask: Bool[Array, " lanes"], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(
        lambda n, o: lax.select(broadcast_mask(mask, n), n, o), new, old
    )
