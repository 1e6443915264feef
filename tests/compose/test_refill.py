"""`refill`: the loop of each point, whatever the batch and the order of points."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import LOOPS, WEIGHTS, points, reference, refilled
from support.sweeps import make_mesh

import eqx_pipe as ep
import eqx_pipe.testing as ept

pytestmark = pytest.mark.gpu


def init(point):
    return {"i": jnp.int32(0), "x": point["x"], "odd": jnp.bool_(False)}


def cond(point, carry):
    return carry["i"] < point["n"]


def body(point, carry):
    x = carry["x"] + 0.5 * jnp.cos(3 * carry["x"])
    return {"i": carry["i"] + 1, "x": x, "odd": ~carry["odd"]}


def out(point, carry):
    return carry["x"], carry["i"], carry["odd"], point["n"]


STEPS = (init, cond, body, out)


def agree(a, b):
    """Compare floats up to rounding, since the programs differ, the rest exactly."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jr.key_data(x), jr.key_data(y)
        assert x.dtype == y.dtype
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(x, y)


# At least 64 points run at a time, so more points are refilled.


@given(st.sampled_from([1, 64, 300]), st.integers(0, 99))
def test_every_point_has_the_result_of_its_own_loop(size, seed):
    given = points(size, seed)
    ours = jax.jit(jax.vmap(refilled(*STEPS)))(given)
    agree(ours, jax.jit(jax.vmap(reference(*STEPS)))(given))


def test_a_single_point_runs_the_loop():
    for n in (0, 5):
        point = {"n": jnp.int32(n), "x": jnp.float32(0.3)}
        agree(refilled(*STEPS)(point), reference(*STEPS)(point))
        agree(jax.jit(refilled(*STEPS))(point), reference(*STEPS)(point))
        with jax.disable_jit():
            agree(refilled(*STEPS)(point), reference(*STEPS)(point))


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ((15, 17), ({"n": 0, "x": None}, {"n": None, "x": 0})),
        ((3, 14, 5), ({"n": 0, "x": 0}, {"n": None, "x": 0}, {"n": 0, "x": None})),
        ((0, 5), ({"n": 0, "x": 0}, {"n": 0, "x": 0})),
    ],
)
def test_under_vmap_of_vmap(sizes, axes):
    """Compare with `axes` that begin with those of the outermost `vmap`."""
    shape = {
        name: [n for n, a in zip(sizes, axes, strict=True) if a[name] == 0]
        for name in ("n", "x")
    }
    given = {"n": points(shape["n"])["n"], "x": points(shape["x"], 1)["x"]}
    ours, plain = refilled(*STEPS), reference(*STEPS)
    for each in reversed(axes):
        ours, plain = jax.vmap(ours, (each,)), jax.vmap(plain, (each,))
    agree(jax.jit(ours)(given), jax.jit(plain)(given))


def test_other_batch_axes_and_closed_over_tracers():
    table = jnp.linspace(0, 1, 6)

    def fn(make):
        def outer(scale, x, n):
            def step(point, carry):
                return carry[0] + 1, carry[1] * scale + table[carry[0] % 6] * point

            loop = make(
                lambda point: (0, point),
                lambda point, carry: carry[0] < n,
                step,
                lambda point, carry: carry[1] + scale,
            )
            return jax.vmap(loop, in_axes=1, out_axes=1)(x)

        return jax.jit(jax.vmap(outer, (0, None, 0)))

    x = jr.normal(jr.key(0), (3, 50))
    args = jnp.float32([0.5, 0.9]), x, jnp.array([4, 9])
    agree(fn(refilled)(*args), fn(reference)(*args))


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_each_kind(name):
    given = points(100)
    ours, plain = (
        jax.jit(jax.vmap(LOOPS[name](make), axis_name="i"))
        for make in (refilled, reference)
    )
    agree(ours(given), plain(given))
    if name == "a matrix for all":  # which is not copied
        memory = ours.lower(given).compile().memory_analysis().temp_size_in_bytes
        assert memory < 4 * WEIGHTS.nbytes + 6 * 100 * 64 * 4


def test_the_same_in_a_sweep_on_any_devices():
    rng = np.random.default_rng(0)
    n = np.minimum(rng.geometric(0.05, 600) - 1, 200).astype(np.int32)
    space = ep.Space(
        {"n": ep.Values(n), "x": ep.Values(np.float32(rng.random(600)))}, "zip"
    )
    loop = refilled(*STEPS)

    def fn(point, key):
        first = {**point, "x": point["x"] + jr.uniform(key)}
        x, *rest = loop(first)
        return jnp.sin(x), *rest

    settings = {"key": jr.key(1), "batch_size": 70}
    results = [
        ep.sweep(fn, space, mesh=make_mesh(d), order_by=order, **settings)
        for d, order in ((1, None), (1, n), (8, n))
    ]
    for result in results[1:]:
        agree(result.values, results[0].values)
    with jax.disable_jit():
        plain = ep.sweep(fn, space[:5], key=jr.key(1)).values
    first = [leaf[:5] for leaf in results[0].values]
    np.testing.assert_allclose(first[0], plain[0], rtol=1e-5)
    np.testing.assert_array_equal(first[1], plain[1])
    again = ep.vmap_space(fn, space, key=jr.key(1))
    np.testing.assert_allclose(results[0].values[0], again[0], rtol=1e-5)


def test_other_arrays_compile_nothing():
    def swept(array, hidden):
        step = jax.jit(lambda x: x * hidden[0])
        fn = refilled(
            lambda x: x,
            lambda x, c: c < array.sum(),
            lambda x, c: c + step(x),
            lambda x, c: c + array[0],
        )
        return ep.sweep(fn, ep.Linspace(1, 2, 9)).values

    # Small arrays are literals until they have changed once.
    arrays = [jnp.float32([1, 2]), jnp.float32([2, 3]), jnp.float32([3, 4])]
    jax.block_until_ready(arrays)
    for array in arrays[:2]:
        swept(array, array)
    with ept.assert_compiles(0):
        values = swept(arrays[2], arrays[2])
    x = np.linspace(1, 2, 9)
    expected = x + np.ceil((7 - x) / (3 * x)) * 3 * x + 3
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_step_runs_after_the_end_of_a_point():
    """The body never gets the carry at which its loop has ended."""

    def step(n, i):
        return eqx.error_if(i + 1, i >= n, "past its end")

    def make(step):
        return refilled(lambda n: 0, lambda n, i: i < n, step, lambda n, i: i)

    n = np.int32([3, 0, 9, 1, 30, 2, 5, 0, 4, 4] * 10)
    assert ep.sweep(make(step), ep.Values(n), batch_size=100).values.tolist() == [*n]

    def raises(n, i):
        return eqx.error_if(i + 1, i == 8, "nine")

    result = ep.sweep(make(raises), ep.Values(n), batch_size=100, on_error="mark")
    assert result.ok.tolist() == (n < 9).tolist()


def test_points_and_carries_of_any_kind():
    layer = eqx.nn.Linear(2, 2, key=jr.key(0))

    def make(refill):
        return refill(
            lambda p: {"layer": p["layer"], "x": jnp.ones(2), "i": 0, "none": None},
            lambda p, c: c["i"] < p["n"],
            lambda p, c: {**c, "x": c["layer"](c["x"]), "i": c["i"] + 1},
            lambda p, c: c["x"].sum() * p["factor"] + float(p["name"] == "a"),
        )

    space = {"n": ep.Values([3, 0, 7]), "layer": layer, "name": "a", "factor": 2}
    ours, plain = (ep.sweep(make(f), space).values for f in (refilled, reference))
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


def solver_of_diffrax(p):
    diffrax = pytest.importorskip("diffrax")
    decay = lambda t, y, rate: -rate * y  # noqa: E731
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(decay),
        diffrax.Tsit5(),
        0.0,
        1.0,
        0.1,
        p["x"],
        20 * p["n"].astype(jnp.float32),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, 1, 3)),
    )
    return solution.ys, solution.stats["num_accepted_steps"]


def solver_of_optimistix(p):
    optx = pytest.importorskip("optimistix")
    solver = optx.Newton(1e-4, 1e-4)
    root = lambda y, x: y**3 + y - x  # noqa: E731
    return optx.root_find(
        root, solver, jnp.float32(5), p["n"].astype(jnp.float32) + p["x"]
    ).value


@pytest.mark.slow
@pytest.mark.parametrize("fn", [solver_of_diffrax, solver_of_optimistix])
def test_loops_of_other_libraries(fn):
    given = points(100)
    ours, plain = (jax.jit(jax.vmap(f))(given) for f in (ep.refill(fn), fn))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    assert "size=100" in str(jax.make_jaxpr(jax.vmap(ep.refill(fn)))(given))


def test_the_signature_and_the_output_of_the_function():
    class Model(eqx.Module):
        scale: jax.Array

        def __call__(self, x, *, key, name="a"):
            n = jr.randint(key, (), 0, 20)
            total = jax.lax.fori_loop(0, n, lambda _, c: c + self.scale, x)
            return {"total": jax.jit(lambda: total)(), "n": n, "name": name, "no": None}

    fn = Model(jnp.float32(2))
    keys, xs = jr.split(jr.key(0), 9), ep.Linspace(0, 8, 9)
    out = ep.refill(fn)(jnp.float32(1), key=keys[1], name="b")
    assert out["name"] == "b" and out["no"] is None
    ours = ep.sweep(lambda x, key: ep.refill(fn)(x, key=key)["total"], xs, key=keys[0])
    again = ep.sweep(lambda x, key: fn(x, key=key)["total"], xs, key=keys[0])
    np.testing.assert_allclose(ours.values, again.values)
    keyed = ep.refill(lambda x, key: fn(x, key=key)["n"])
    assert ep.sweep(keyed, xs, key=keys[0]).values.max() < 20
    twice = ep.refill(ep.refill(solver))
    assert twice(jnp.float32(1)) == solver(jnp.float32(1))
    assert (twice.__name__, ep.refill(ft.partial(solver)).__name__) == ("solver",) * 2
    assert vars(ep.refill(fn)) == {"__wrapped__": fn}  # and not the fields of `fn`
    assert ep.refill(fn).__name__ == "Model"


def solver(x):
    return jax.lax.while_loop(lambda c: c < 9, lambda c: c + x, x)


@pytest.mark.parametrize(
    "fn",
    [
        jnp.sin,
        lambda x: jax.lax.scan(lambda c, _: (solver(c), None), x, None, 3)[0],
        lambda x: jax.vmap(solver)(x + jnp.ones(2)).sum(),
        lambda x: jax.lax.cond(x > 1, solver, jnp.sin, x),
    ],
)
def test_a_function_without_such_a_loop_raises(fn):
    with pytest.raises(ValueError, match="`fn` has no `while_loop` outside"):
        ep.refill(fn)(jnp.float32(1))
