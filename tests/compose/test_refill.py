"""`refill`: the loop of each point, whatever the batch and the order of points."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import points, reference

import eqx_pipe as ep
import eqx_pipe.testing as ept
from eqx_pipe._refill import lanes


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


def make_mesh(n):
    return jax.make_mesh((n,), ("x",), devices=jax.devices()[:n])


@pytest.fixture
def few_lanes(monkeypatch):
    monkeypatch.setattr(lanes, "_LEAST_LANES", 4)
    monkeypatch.setattr(lanes, "_POINTS_PER_LANE", 4)


@given(st.sampled_from([1, 17, 200]), st.integers(0, 99), st.sampled_from([1, 7]))
def test_every_point_has_the_result_of_its_own_loop(size, seed, fewest):
    given = points(size, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_LEAST_LANES", fewest)
        refilled = jax.jit(jax.vmap(ep.refill(*STEPS)))(given)
    agree(refilled, jax.jit(jax.vmap(reference(*STEPS)))(given))


def test_the_body_is_traced_once_if_its_types_are_those_of_init():
    traces = []

    def body(point, carry):
        traces.append(1)
        return carry[0] + 1, carry[1] * point

    def run(zero):
        traces.clear()
        one = jnp.float32(1)
        loop = ep.refill(
            lambda p: (zero, one), lambda p, c: c[0] < 3, body, lambda p, c: c
        )
        first, second = loop(jnp.float32(2))
        assert (int(first), float(second)) == (3, 8.0)
        return len(traces)

    assert run(jnp.int32(0)) == 1
    assert run(0) == 1


def test_alone_it_is_the_loop():
    for n in (0, 5):
        point = {"n": jnp.int32(n), "x": jnp.float32(0.3)}
        agree(ep.refill(*STEPS)(point), reference(*STEPS)(point))
        agree(jax.jit(ep.refill(*STEPS))(point), reference(*STEPS)(point))
        with jax.disable_jit():
            agree(ep.refill(*STEPS)(point), reference(*STEPS)(point))


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ((5, 7), ({"n": 0, "x": None}, {"n": None, "x": 0})),
        ((3, 4, 5), ({"n": 0, "x": 0}, {"n": None, "x": 0}, {"n": 0, "x": None})),
        ((0, 5), ({"n": 0, "x": 0}, {"n": 0, "x": 0})),
    ],
)
def test_under_vmap_of_vmap(few_lanes, sizes, axes):
    """Compare with `axes` that begin with those of the outermost `vmap`."""
    shape = {
        name: [n for n, a in zip(sizes, axes, strict=True) if a[name] == 0]
        for name in ("n", "x")
    }
    given = {"n": points(shape["n"])["n"], "x": points(shape["x"], 1)["x"]}
    ours, plain = ep.refill(*STEPS), reference(*STEPS)
    for each in reversed(axes):
        ours, plain = jax.vmap(ours, (each,)), jax.vmap(plain, (each,))
    agree(jax.jit(ours)(given), jax.jit(plain)(given))


def test_other_batch_axes_and_closed_over_tracers(few_lanes):
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

    args = jnp.float32([0.5, 0.9]), jr.normal(jr.key(0), (3, 5)), jnp.array([4, 9])
    agree(fn(ep.refill)(*args), fn(reference)(*args))


WEIGHTS = np.float32(np.random.default_rng(0).normal(size=(64, 64)) / 8)


def matrix_steps(make):
    return make(
        lambda p: (0, jnp.full(64, p["x"])),
        lambda p, c: c[0] < p["n"],
        lambda p, c: (c[0] + 1, jnp.tanh(WEIGHTS @ c[1])),
        lambda p, c: c[1].sum(),
    )


def counting(step):
    """Return a loop of `n` steps, in which `step` may do more than count."""
    return lambda make: make(lambda p: 0, lambda p, i: i < p["n"], step, lambda p, i: i)


def inner_while(p, i):  # which lanes without work must not prolong
    return i + 1 + 0 * jax.lax.while_loop(lambda k: k != i, lambda k: k + 1, i - i)


def draws(make):
    # JAX 0.12 has a primitive of its own for `searchsorted`, which `choice` uses.
    table = jnp.linspace(0, 1, 5)

    def step(point, carry):
        key, drawn = jr.split(carry[1])
        value = jr.choice(drawn, table, p=table / table.sum())
        return carry[0] + 1, key, carry[2] + jnp.searchsorted(table, value)

    return make(
        lambda p: (0, jr.fold_in(jr.key(0), p["n"]), 0),
        lambda p, c: c[0] < p["n"],
        step,
        lambda p, c: c,
    )


LOOPS = {
    "a matrix for all": matrix_steps,
    "a while loop": counting(inner_while),
    "a loop that is refilled": counting(
        lambda p, i: i + 1 + 0 * counting(inner_while)(ep.refill)({"n": i})
    ),
    "draws": draws,
    "collectives": counting(
        lambda p, i: i + jax.lax.psum(1, "i") * jax.lax.pmax(i + 1, "i")
    ),
    "numbers": lambda make: make(
        lambda p: 0, lambda p, c: c < 3, lambda p, c: c + p["x"] + 0.1, lambda p, c: c
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_each_kind(name, few_lanes):
    given = points(50)
    ours, plain = (
        jax.jit(jax.vmap(LOOPS[name](make), axis_name="i"))
        for make in (ep.refill, reference)
    )
    agree(ours(given), plain(given))
    if name == "a matrix for all":  # which is not copied
        memory = ours.lower(given).compile().memory_analysis().temp_size_in_bytes
        assert memory < 4 * WEIGHTS.nbytes + 6 * 50 * 64 * 4


def test_points_that_end_together_are_one_loop():
    fn = ep.refill(
        lambda x: (0, x),
        lambda x, c: c[0] < 5,
        lambda x, c: (c[0] + 1, c[1] + x),
        lambda x, c: c,
    )
    values = jnp.arange(4.0)
    count, total = jax.vmap(fn, out_axes=(None, 0))(values)
    assert count == 5 and np.array_equal(total, 6 * values)
    jaxpr = str(jax.make_jaxpr(jax.vmap(fn))(values))
    assert "sizes=()" in jaxpr
    total = jax.vmap(lambda x: fn(x)[1], axis_name="i")(values)
    assert np.array_equal(total, 6 * values)


def test_the_same_in_a_sweep_on_any_devices(few_lanes):
    rng = np.random.default_rng(0)
    n = np.minimum(rng.geometric(0.05, 91) - 1, 200).astype(np.int32)
    space = ep.Space(
        {"n": ep.Values(n), "x": ep.Values(np.float32(rng.random(91)))}, "zip"
    )
    loop = ep.refill(*STEPS)

    def fn(point, key):
        first = {**point, "x": point["x"] + jr.uniform(key)}
        x, *rest = loop(first)
        return jnp.sin(x), *rest

    settings = {"key": jr.key(1), "batch_size": 6}
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


def test_other_arrays_compile_nothing(few_lanes):
    def swept(array, hidden):
        step = jax.jit(lambda x: x * hidden[0])
        fn = ep.refill(
            lambda x: x,
            lambda x, c: c < array.sum(),
            lambda x, c: c + step(x),
            lambda x, c: c + array[0],
        )
        return ep.sweep(fn, ep.Linspace(1, 2, 9)).values

    arrays = [jnp.float32([1, 2]), jnp.float32([3, 4])]
    jax.block_until_ready(arrays)
    swept(arrays[0], arrays[0])
    with ept.assert_compiles(0):
        values = swept(arrays[1], arrays[1])
    x = np.linspace(1, 2, 9)
    expected = x + np.ceil((7 - x) / (3 * x)) * 3 * x + 3
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_one_point_only_when_it_gets_there(few_lanes):
    """Check that no body gets the carry at which its loop has ended."""

    def step(n, i):
        return eqx.error_if(i + 1, i >= n, "past its end")

    def make(step):
        return ep.refill(lambda n: 0, lambda n, i: i < n, step, lambda n, i: i)

    n = np.int32([3, 0, 9, 1, 30, 2, 5, 0, 4, 4])
    assert ep.sweep(make(step), ep.Values(n), batch_size=10).values.tolist() == list(n)

    def raises(n, i):
        return eqx.error_if(i + 1, i == 8, "nine")

    result = ep.sweep(make(raises), ep.Values(n), batch_size=10, on_error="mark")
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
    ours, plain = (ep.sweep(make(f), space).values for f in (ep.refill, reference))
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (lambda c: {"i": c["i"], "name": "a"}, "x"),
        (lambda c: {**c, "x": c["i"]}, "float32.*int32"),
        (lambda c: {**c, "x": jnp.ones(2)}, r"float32\[2\]"),
    ],
)
def test_a_body_of_another_form_is_an_error(after, says):
    fn = ep.refill(
        lambda x: {"i": jnp.int32(0), "x": x, "name": "a"},
        lambda x, c: c["i"] < 3,
        lambda x, c: after(c),
        lambda x, c: c,
    )
    with pytest.raises(TypeError, match=f"(?s){says}") as error:
        fn(jnp.float32(1))
    assert (
        "`body`, which returns the structure, shapes and dtypes of `init`"
        in " ".join(error.value.__notes__)
    )


def test_a_fixed_part_of_the_carry_that_changes_is_an_error():
    fn = ep.refill(
        lambda x: {"x": x, "name": "a"},
        lambda x, c: c["x"] < 3,
        lambda x, c: {**c, "name": "b"},
        lambda x, c: c,
    )
    with pytest.raises(ep.StructureError, match="at `.name`: 'a'"):
        fn(jnp.float32(1))
