"""Reducers of ours are traced once for each form of outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep
import eqx_pipe.testing as ept
from eqx_pipe._cache import LRUCache
from eqx_pipe._sweep.compute import reduce_programs as reduced_trace


def space():
    return ep.Space({"b": ep.Linspace(0.0, 1, 5), "a": ep.Values([1.0, 2.0])})


def traced_reducers(monkeypatch):
    """Return the list to which the names of traced reducers will be added."""
    names, trace = [], reduced_trace._trace

    def noted(reducers, *rest):
        names.extend(type(reducer).__name__ for reducer in reducers.reducers)
        return trace(reducers, *rest)

    monkeypatch.setattr(reduced_trace, "_trace", noted)
    # Other tests may have traced them already.
    monkeypatch.setattr(reduced_trace, "_kept", LRUCache(128))
    return names


def reduced(reduce, fn=lambda p: p["a"] * p["b"], **options):
    return ep.sweep(fn, space(), reduce=reduce, batch_size=3, **options).values


def test_our_reducers_are_traced_once(monkeypatch):
    names = traced_reducers(monkeypatch)

    def both():
        edges = np.linspace(0, 2, 7)
        return {"least": ep.reduce.ArgMin(), "bins": ep.reduce.Histogram(edges)}

    first = reduced(both())
    assert len(names) == 2
    names.clear()
    with ept.assert_compiles(0):
        second = reduced(both(), lambda p: p["a"] * p["b"])
    assert names == []
    assert eqx.tree_equal(first, second)


def test_reducers_that_differ_do_not_share_a_trace(monkeypatch):
    names = traced_reducers(monkeypatch)
    pair = lambda p: {"x": p["a"], "y": -p["b"]}  # noqa: E731
    x, y = np.tile([1.0, 2.0], 5), np.repeat(np.linspace(0, -1, 5), 2)
    for reducer, expected in (
        (ep.reduce.Var(by="x"), [np.var(x)]),
        (ep.reduce.Var(by="y"), [np.var(y)]),
        (ep.reduce.Var(by="y", ddof=1), [np.var(y, ddof=1)]),
        (ep.reduce.TopK(1, by="x"), [[1], [2.0]]),
        (ep.reduce.TopK(2, by="x"), [[1, 3], [2.0, 2.0]]),
        (ep.reduce.TopK(2, by="x", mode="min"), [[0, 2], [1.0, 1.0]]),
    ):
        names.clear()
        found = jax.tree.leaves(reduced(reducer, pair))
        assert len(names) == 1
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_form_of_the_output_and_the_settings_count(monkeypatch):
    names = traced_reducers(monkeypatch)
    assert reduced(ep.reduce.Max()).dtype == np.float32
    names.clear()
    assert reduced(ep.reduce.Max(), lambda p: jnp.int32(3)).dtype == np.int32
    assert len(names) == 1
    with jax.enable_x64(True):
        assert reduced(ep.reduce.Max(), lambda p: jnp.int32(3)).dtype == np.int32
        assert len(names) == 2
    names.clear()
    assert reduced(ep.reduce.Max()).dtype == np.float32
    assert names == []


def test_functions_of_the_user_are_traced_each_time(monkeypatch):
    names, factor = traced_reducers(monkeypatch), [1.0]
    by = lambda x: x * factor[0]  # noqa: E731
    own = ep.reduce.Reducer(
        init=lambda s: jnp.zeros(s.shape, s.dtype),
        update=lambda state, value: state + value * factor[0],
        merge=lambda a, b: a + b,
        finish=lambda state: state,
    )

    class Doubled(ep.reduce.Sum):
        def finish(self, state):
            return 2 * ep.reduce.Sum.finish(self, state)

    first = reduced([ep.reduce.Sum(by=by), own, Doubled()])
    factor[0] = 3.0
    names.clear()
    second = reduced([ep.reduce.Sum(by=by), own, Doubled()])
    assert names == ["Sum", "Reducer", "Doubled"]
    np.testing.assert_allclose(second[:2], [3 * x for x in first[:2]], rtol=1e-6)
    assert second[2] == first[2]
