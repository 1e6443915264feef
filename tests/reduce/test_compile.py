"""Built-in reducers compile once for each structure of outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = {"b": ep.Linspace(0.0, 1, 5), "a": ep.Values([1.0, 2.0])}


def reduced(reduce, fn=lambda p: p["a"] * p["b"]):
    return ep.sweep(fn, SPACE, reduce=reduce, batch_size=3).values


def test_built_in_reducers_compile_once():
    def both():
        edges = np.linspace(0, 2, 7)
        return {"least": ep.reduce.ArgMin(), "bins": ep.reduce.Histogram(edges)}

    first = reduced(both())
    with ept.assert_compiles(0):
        second = reduced(both(), lambda p: p["a"] * p["b"])
    assert eqx.tree_equal(first, second)


def test_reducers_that_differ_do_not_share_a_program():
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
        found = jax.tree.leaves(reduced(reducer, pair))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_programs_depend_on_dtypes_and_settings():
    for _ in range(2):
        assert reduced(ep.reduce.Max()).dtype == np.float32
        assert reduced(ep.reduce.Max(), lambda p: jnp.int32(3)).dtype == np.int32
        with jax.enable_x64(True):
            assert reduced(ep.reduce.Max(), lambda p: jnp.int32(3)).dtype == np.int32
            assert reduced(ep.reduce.Max(), lambda p: 2.0**-60).dtype == np.float64


def test_user_functions_are_traced_each_time():
    traces, factor = [], [1.0]

    def by(x):
        traces.append(1)
        return x * factor[0]

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
    traces.clear()
    second = reduced([ep.reduce.Sum(by=by), own, Doubled()])
    assert traces
    np.testing.assert_allclose(second[:2], [3 * x for x in first[:2]], rtol=1e-6)
    assert second[2] == first[2]
