"""A table of reducers, each with the same of all values at once by NumPy.

An entry is a function that makes a reducer of an output by `by=` and `over=`, and its
reference: a function of the numbers that count, in their order.
"""

import functools as ft

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import eqx_pipe as ep

EDGES = [-1.0, 0.0, 1.5, 6.0]
SHARES = (0.1, 0.5)


def first_and_last(**asked):
    """Return a reducer whose merge does not commute."""

    def merge(a, b):
        first, last = jnp.where(a[0], a[1], b[1]), jnp.where(b[0], b[2], a[2])
        return a[0] | b[0], first, last

    return ep.reduce.Reducer(
        init=lambda s: (False, jnp.zeros(s.shape, s.dtype), jnp.zeros(s.shape)),
        update=lambda a, v: merge(a, (jnp.array(True), v, v)),
        merge=merge,
        finish=lambda a: [a[1], a[2]],
        **asked,
    )


def digits(**asked):
    """Return a reducer that depends on each of its points, and on their order."""
    return ep.reduce.Reducer(
        init=lambda s: (jnp.uint32(0), jnp.uint32(1)),
        update=lambda a, v: (a[0] * 31 + jnp.int32(4 * v).astype("u4"), a[1] * 31),
        merge=lambda a, b: (a[0] * b[1] + b[0], a[1] * b[1]),
        finish=lambda a: np.asarray(a[0]),
        **asked,
    )


def digits_of(x):
    number = 0
    for v in x:
        number = (number * 31 + int(np.int32(4 * v))) % 2**32
    return number


def best(x, k=None):
    """Return the index and the value of the best `k`, or of the best one."""
    order = np.argsort(-x.astype(np.float64), kind="stable")[: 1 if k is None else k]
    return (order[0], x[order[0]]) if k is None else (order, x[order])


def lowest(x, k):
    order = best(-x, k)[0]
    return order, x[order]


def quantiles(x):
    return np.quantile(x, SHARES)


def binned(x):
    below, above = np.sum(x < EDGES[0]), np.sum(x > EDGES[-1])
    return np.histogram(x, EDGES)[0], np.array(EDGES), below, above


R = ep.reduce
REDUCERS = {
    "sum": (R.Sum, np.sum),
    "mean": (R.Mean, np.mean),
    "var": (R.Var, np.var),
    "min": (R.Min, np.min),
    "max": (R.Max, np.max),
    "argmin": (R.ArgMin, lambda x: (best(-x)[0], x.min())),
    "argmax": (R.ArgMax, best),
    "top": (lambda **asked: R.TopK(3, **asked), ft.partial(best, k=3)),
    "low": (
        lambda **asked: R.TopK(300, mode="min", **asked),
        ft.partial(lowest, k=300),
    ),
    "histogram": (lambda **asked: R.Histogram(EDGES, **asked), binned),
    "quantile": (
        lambda **asked: R.Quantile(SHARES, **asked),
        lambda x: np.quantile(x, SHARES),
    ),
    "first and last": (first_and_last, lambda x: [x[0], x[-1]]),
    "digits": (digits, digits_of),
}


def reducers(names, **asked):
    """Return some reducers of the table by their names."""
    return {name: REDUCERS[name][0](**asked) for name in names}


def agree(got, values, where=None):
    """Raise unless results, by name, are those of some values.

    `where` are the places of these among all points, to which indices refer.
    """
    for name, found in got.items():
        leaves = [np.asarray(leaf) for leaf in jtu.tree_leaves(found)]
        wanted = [
            np.asarray(leaf) for leaf in jtu.tree_leaves(REDUCERS[name][1](values))
        ]
        if hasattr(found, "value") and where is not None:  # an index of points
            wanted[0] = np.asarray(where)[wanted[0]]
        for a, b in zip(leaves, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=name)
