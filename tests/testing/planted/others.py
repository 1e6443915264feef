"""Axes, reducers and loaders; and results that are consistent, and wrong.

A reference is given where only it reveals the bug.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep
import eqx_pipe.testing as ept

from .row import Row, of_function

_KEY = jr.key(1)


class Own(ep.Axis):
    """An axis that computes its values by a function."""

    fn: object = eqx.field(static=True)
    n: int = eqx.field(static=True, default=5)
    dim: str | None = eqx.field(static=True, default=None)
    draws: bool = eqx.field(static=True, default=False)

    @property
    def needs_key(self):
        return self.draws

    def __len__(self):
        return self.n

    def value(self, i, key):
        return self.fn(i, key)


def of_axis(name, bug, sound, reference=None, draws=False, n=5):
    def check(fn):
        axis = Own(fn, n, draws=draws)
        ept.check_axis(axis, key=_KEY if draws else None, reference=reference)

    return Row(name, bug, sound, check, reference is not None)


def reducer(**changes):
    """Return a sum with some of its parts replaced."""
    parts = {
        "init": lambda struct: jnp.zeros(struct.shape, struct.dtype),
        "update": lambda state, value: state + value,
        "merge": lambda a, b: a + b,
        "finish": lambda state: state,
    }
    return ep.reduce.Reducer(**{**parts, **changes})


def of_reducer(name, bug, sound, values, reference=None):
    def check(reducer):
        ept.check_reducer(reducer, values, reference=reference)

    return Row(name, bug, sound, check, reference is not None)


class Records:
    """Numbers on the host: six, or as many as `read` says."""

    def __init__(self, read):
        self.n, self.calls = (6, 0) if callable(read) else (read, 0)
        self.read = read if callable(read) else lambda i, calls: i

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.calls += 1
        return np.float32(self.read(i, self.calls))


def of_pipe(name, bug, sound, where="pipe"):
    """Return a row for a stage of a loader."""

    def check(stage):
        source = ep.data.ArraySource(jnp.arange(6.0))
        ept.check_loader(ep.data.Loader(source, batch_size=3, **{where: stage}))

    return Row(name, bug, sound, check)


class Narrows:
    """A method that proposes points round the best one, closer in each round.

    `best` returns the index of the best of some values, and `points` the proposals for
    a centre, a width and the number of the round.
    """

    def __init__(self, best=np.argmin, points=None):
        self.best, self.points = best, points or around

    def init(self, space, key):
        return {"space": space, "centre": 0.5, "u": None, "round": 0}

    def ask(self, state, num):
        u = self.points(state["centre"], state["round"], num)
        u = np.abs((u + 1) % 2 - 1)  # mirrored at the ends
        return state["space"].from_unit(u[:, None]), {**state, "u": u}

    def tell(self, state, losses, result):
        centre = state["u"][self.best(np.asarray(result.values))]
        return {**state, "centre": centre, "round": state["round"] + 1}


def around(centre, number, num):
    return centre + 0.5 / 1.5**number * np.linspace(-1, 1, num)


def at_random(centre, number, num):
    return np.random.default_rng(number).uniform(size=num)


def twice(centre, number, num):
    return np.repeat(around(centre, number, num // 2), 2)


def of_method(name, bug, sound, expects=None):
    def check(method):
        space = {"x": ep.Uniform(0, 1)}
        ept.check_method(method, lambda p: p["x"], space, expects=expects)

    return Row(name, bug, sound, check)


def shared_noise(batch, *, key):
    return batch + jr.normal(key, ())


def own_noise(batch, *, key):
    return batch + jr.normal(key, batch.shape)


def mixed(batch, *, key):
    """Mix records in a random order by a random share, the same for all."""
    order, share = jr.split(key)
    share = jr.uniform(share)
    return share * batch + (1 - share) * jr.permutation(order, batch)


def of_source(name, bug, sound, reference=None):
    def check(read):
        loader = ep.data.Loader(Records(read), batch_size=4)
        ept.check_loader(loader, reference=reference)

    return Row(name, bug, sound, check, reference is not None)


_VALUES = jnp.array([3.0, -1.0, 4.0, 1.0, 5.0])
_BELOW = jnp.array([-3.0, -1.0, -2.0])


def _fifths(i, key):
    return i.astype(jnp.float32) / 4


def _quarters(i):
    return i / 4


def _lowest(struct):
    return jnp.full(struct.shape, -jnp.inf, struct.dtype)


def _naive(a, b):
    most = jnp.maximum(a, b)
    return most + jnp.log(jnp.exp(a - most) + jnp.exp(b - most))


def _log_sum(merge=jnp.logaddexp):
    return reducer(init=_lowest, update=jnp.logaddexp, merge=merge)


_max = reducer(init=_lowest, update=jnp.maximum, merge=jnp.maximum)
_count = reducer(
    init=lambda s: (jnp.zeros(s.shape, s.dtype), jnp.zeros((), jnp.int32)),
    update=lambda state, v: (state[0] + v, state[1] + 1),
    merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    finish=lambda state: state[0] / jnp.maximum(state[1], 1).astype(jnp.float32),
)


ROWS = [
    # Without a reference.
    of_axis(
        "an axis cut short by Python",
        lambda i, key: _fifths(i, key) if i < 3 else _fifths(i, key) + 0,
        _fifths,
    ),
    of_axis(
        "draws that are blind for the position",
        lambda i, key: jr.normal(key),
        lambda i, key: jr.normal(jr.fold_in(key, i)),
        draws=True,
    ),
    of_axis(
        "draws that are blind for the key",
        lambda i, key: jr.normal(jr.fold_in(jr.key(0), i)),
        lambda i, key: jr.normal(jr.fold_in(key, i)),
        draws=True,
    ),
    of_reducer(
        "a merge that forgets", reducer(merge=lambda a, b: a), reducer(), _VALUES
    ),
    of_reducer(
        "a mean of means",
        reducer(merge=lambda a, b: (a + b) / 2, update=lambda s, v: (s + v) / 2),
        _count,
        _VALUES,
    ),
    of_reducer(
        "a beginning that is not neutral",
        reducer(init=lambda s: jnp.ones(s.shape, s.dtype)),
        reducer(),
        _VALUES,
    ),
    of_reducer("NaN of two empty parts", _log_sum(_naive), _log_sum(), _VALUES),
    of_source("another record each time", lambda i, calls: calls, lambda i, calls: i),
    of_axis(
        "each value drawn twice",
        lambda i, key: jr.normal(jr.fold_in(key, i // 2)),
        lambda i, key: jr.normal(jr.fold_in(key, i)),
        draws=True,
    ),
    of_axis(
        "a float32 position",
        lambda i, key: (i.astype(jnp.float32) * 2).astype(jnp.int32),
        lambda i, key: i * 2,
        n=2**24 + 10,
    ),
    of_axis(
        "draws at a float32 position",
        lambda i, key: jr.normal(jr.fold_in(key, i.astype(jnp.float32).astype(int))),
        lambda i, key: jr.normal(jr.fold_in(key, i)),
        draws=True,
        n=2**24 + 10,
    ),
    of_pipe(
        "one noise for all records",
        lambda x: x + jr.normal(jr.key(0)),
        lambda x, *, key: x + jr.normal(key),
    ),
    of_pipe("one noise for a batch", shared_noise, own_noise, "batch_pipe"),
    of_pipe(
        "one factor for a batch",
        lambda x, *, key: x * (1 + jr.uniform(key)),
        lambda x, *, key: x * (1 + jr.uniform(key, x.shape)),
        "batch_pipe",
    ),
    of_pipe(
        "one key twice in a batch",
        lambda x, *, key: x + jr.normal(key, x.shape) * jr.uniform(key, x.shape),
        mixed,
        "batch_pipe",
    ),
    of_method("a method that maximises", Narrows(np.nanargmax), Narrows(np.nanargmin)),
    of_method("a method that takes NaN for the best", Narrows(), Narrows(np.nanargmin)),
    of_method(
        "the same points again",
        Narrows(lambda v: 0, lambda *_: np.array([0.2, 0.4, 0.6, 0.9])),
        Narrows(points=at_random),
    ),
    of_method("each point twice", Narrows(np.nanargmin, twice), Narrows(np.nanargmin)),
    of_method(
        "losses without an effect",
        Narrows(points=at_random),
        Narrows(np.nanargmin),
        "minimum",
    ),
    # By a reference.
    of_source(
        "a source that is one short", 6, 7, np.arange(7, dtype=np.float32).__getitem__
    ),
    of_axis(
        "a clamped table",
        lambda i, key: jnp.array([0, 0.25, 0.5, 0.75], "float32")[i],
        _fifths,
        _quarters,
    ),
    of_reducer(
        "a maximum that starts at 0",
        reducer(update=jnp.maximum, merge=jnp.maximum),
        _max,
        _BELOW,
        np.max,
    ),
    of_source(
        "a source off by one",
        lambda i, calls: (i + 1) % 6,
        lambda i, calls: i,
        lambda i: np.float32(i),
    ),
    # Of JAX's issue 1624: infinite input, which `finite` does not judge.
    of_function(
        "the log-sum of two that are -inf",
        lambda x, y: jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x - y))),
        jnp.logaddexp,
        jnp.array([-jnp.inf, 1.0]),
        jnp.array([-jnp.inf, 2.0]),
        reference=np.logaddexp,
    ),
]
