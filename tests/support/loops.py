"""Loops of different length, for tests of `refill`, and the plain loop."""

import jax
import jax.numpy as jnp
import numpy as np


def reference(init, cond, body, out):
    """Return the loop that `refill` stands for."""

    def fn(point):
        last = jax.lax.while_loop(
            lambda c: cond(point, c), lambda c: body(point, c), init(point)
        )
        return out(point, last)

    return fn


def points(sizes, seed=0, most=40):
    rng = np.random.default_rng(seed)
    n = np.minimum(rng.geometric(0.1, sizes) - 1, most).astype(np.int32)
    return {"n": jnp.asarray(n), "x": jnp.asarray(rng.random(sizes), jnp.float32)}
