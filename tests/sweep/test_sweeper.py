"""A sweeper is a sweep of each space that it is called with, traced once for a form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.sweeps import close

import eqx_pipe as ep
import eqx_pipe.testing as ept


def table(n, start=0.0):
    return {"x": ep.Values(start + np.arange(n) / 7), "scale": jnp.float32(3.0)}


def wave(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


def test_tables_of_any_length():
    run = ep.sweeper(wave, table(3), batch_size=2)
    for n in (3, 1, 70):
        result = run(table(n, start=float(n)))
        assert len(result) == n and result.ok.shape == (n,)
        x = np.asarray(n + np.arange(n) / 7, np.float32)
        close(result.values, {"y": np.sin(x) * np.float32(3)})


def test_the_second_call_traces_and_compiles_nothing():
    calls = []

    def fn(p):
        calls.append(1)
        return wave(p)

    space, other = (
        {"x": ep.Linspace(lo, 4, 5), "k": ep.Values([1, lo]), "scale": jnp.float32(lo)}
        for lo in (2, 3)
    )
    run = ep.sweeper(fn, space)
    run(space)
    traced = len(calls)
    with ept.assert_compiles(0):
        result = run(other)
    assert len(calls) == traced
    close(result.values, ep.sweep(wave, other).values)


def test_what_is_closed_over_is_read_when_it_is_made():
    weights = {"w": jnp.float32(2.0)}
    run = ep.sweeper(lambda x: x * weights["w"], ep.Linspace(0, 1, 3))
    weights["w"] = jnp.float32(5.0)
    assert run(ep.Linspace(0, 1, 3)).values.tolist() == [0, 1, 2]


def in_a_method(a):
    class Total(eqx.Module):
        a: np.ndarray

        def __call__(self, x):
            return jnp.sum(self.a) + x

    return Total(a)


CLOSED_OVER = {
    "closure": lambda a: lambda x: jnp.sum(0 * x + a) + x,
    "default": lambda a: lambda x, b=a: jnp.sum(b) + x,
    "inner jit": lambda a: lambda x: jax.jit(lambda: jnp.sum(a) + x)(),
    "loop": lambda a: lambda x: jax.lax.fori_loop(0, 1, lambda _, y: y + jnp.sum(a), x),
    "branch": lambda a: ep.cond(lambda x: x < 9, lambda x: x + jnp.sum(a), jnp.sin),
    "module": in_a_method,
    "pipeline": lambda a: ep.chain(lambda x: x, lambda x: x + jnp.sum(a)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [("closure", np.float32), *((n, float) for n in CLOSED_OVER)]
)
def test_an_array_that_changes_in_place(name, dtype):
    array, space = np.array([1, 2, 3], dtype), ep.Values([0.5])
    fn = CLOSED_OVER[name](array)
    run = ep.sweeper(fn, space)
    assert run(space).values == 6.5
    array[:] = 2, 3, 4
    assert ep.sweep(fn, space).values == 9.5
    assert ep.vmap_space(fn, space) == 9.5
    assert run(space).values == 6.5  # the sweeper has read the array when it was made


def test_the_same_space_again():
    """A plan that is kept for a space is used only while it cannot have changed."""
    scale, key = np.ones(2**20, np.float32), jr.key(1)
    spaces = [
        ep.Space({"x": ep.Values([1.0, 2.0]), "scale": scale}),
        ep.Space(table(4)),
    ]
    run = ep.sweeper(lambda p, key: p["x"] * jnp.max(p["scale"]), spaces[0], key=key)
    for factor, order in ((1.0, (1, 0)), (3.0, (0, 1))):
        scale[:] = factor
        for k in order:
            wanted = np.array([1, 2]) * factor if k == 0 else np.arange(4) / 7 * 3
            for _ in range(2):
                np.testing.assert_allclose(run(spaces[k]).values, wanted, rtol=1e-6)
    draws = ep.sweeper(lambda p, key: jr.uniform(key) + p["x"], spaces[1], key=key)
    first = draws(spaces[1]).values
    assert (draws(spaces[1], key=jr.key(2)).values != first).all()
    assert (draws(spaces[1]).values == first).all()
    with jax.numpy_dtype_promotion("strict"), jax.disable_jit():
        np.testing.assert_allclose(draws(spaces[1]).values, first, rtol=1e-6)


def test_an_array_of_a_reducer_that_changes_in_place():
    array, space = np.array([1.0, 2.0, 3.0]), ep.Values([0.5])
    total = ep.reduce.Reducer(
        init=lambda struct: jnp.zeros(struct.shape, struct.dtype),
        update=lambda state, x: state + x + jnp.sum(0 * x + array),
        merge=lambda a, b: a + b,
        finish=lambda state: state,
    )
    run = ep.sweeper(jnp.sin, space, reduce=total)
    before = run(space).values
    array += 1
    assert ep.sweep(jnp.sin, space, reduce=total).values == before + 3
    assert run(space).values == before


def test_another_number_is_another_program():
    space = {"x": ep.Linspace(0, 2, 3), "n": 1}
    run = ep.sweeper(lambda p: p["x"] * p["n"] + 0.125, space)
    values = [run(space | {"n": n}).values[-1] for n in (1, 2, 3, 2)]
    assert values == [2.125, 4.125, 6.125, 4.125]


def test_another_structure_dtype_and_setting():
    run = ep.sweeper(lambda p: sum(p.values()), {"x": ep.Linspace(0, 1, 3)})
    both = {"x": ep.Linspace(0, 1, 3), "y": ep.Values([1.0, 2.0])}
    assert run(both).values.shape == (6,)
    assert run({"x": ep.Values([1, 2, 3])}).values.dtype == np.int32
    with jax.enable_x64(True):
        assert run({"x": ep.Linspace(0, 1, 3)}).values.dtype == np.float64
    assert run({"x": ep.Linspace(0, 1, 3)}).values.dtype == np.float32


def test_static_axes_reductions_and_points_that_fail():
    def fn(p):
        return p["f"](p["x"])

    def space(lo):
        return {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(lo, 1, 4)}

    run = ep.sweeper(fn, space(0.0))
    close(run(space(0.5)).values, ep.sweep(fn, space(0.5)).values)

    run = ep.sweeper(
        wave, table(40), reduce={"mean": ep.reduce.Mean(), "most": ep.reduce.Max()}
    )
    for start in (0.0, 2.0):
        expected = ep.sweep(
            wave,
            table(40, start),
            reduce={"mean": ep.reduce.Mean(), "most": ep.reduce.Max()},
        )
        close(run(table(40, start)).values, expected.values)
    assert run(table(9)).points == 9

    run = ep.sweeper(failing, table(5), on_error="mark")
    assert run(table(5)).ok.all()
    assert run(table(5, start=9.6)).ok.tolist() == [True] * 3 + [False] * 2
    with pytest.raises(ep.SweepError, match="at point 3"):
        ep.sweeper(failing, table(5))(table(5, start=9.6))


def failing(p):
    import equinox as eqx

    return eqx.error_if(p["x"], p["x"] > 10, "too large")


def test_keys():
    def draw(x, key):
        return jr.normal(key) + x

    axis = ep.Linspace(0, 1, 5)
    expected = ep.sweep(draw, axis, key=jr.key(7)).values
    close(ep.sweeper(draw, axis)(axis, key=jr.key(7)).values, expected)
    close(ep.sweeper(draw, axis, key=jr.key(7))(axis).values, expected)


def test_the_plain_loop_and_a_repr():
    run = ep.sweeper(wave, table(3))
    with jax.disable_jit():
        close(run(table(3)).values, run(table(3)).values)
        close(
            ep.sweeper(wave, table(3))(table(4)).values, ep.sweep(wave, table(4)).values
        )
    assert repr(run).startswith("Sweeper(wave, Space(")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda run: ep.sweeper(wave, 3), ValueError, r"`eqx_pipe.sweeper`.*Linspace"),
        (lambda run: ep.sweeper(3, table(3)), TypeError, "`eqx_pipe.sweeper`: `fn`"),
        (
            lambda run: ep.sweeper(wave, table(3), batch_size=0),
            ValueError,
            "batch_size",
        ),
        (lambda run: run(table(3), key=3), TypeError, "`key`"),
        (lambda run: run(3), ValueError, "`eqx_pipe.sweeper`.*no axis"),
        (
            lambda run: jax.jit(lambda s: run(table(3) | {"scale": s}).values)(1.0),
            TypeError,
            "vmap_space",
        ),
    ],
)
def test_what_is_wrong_is_said(call, error, says):
    with pytest.raises(error, match=says):
        call(ep.sweeper(wave, table(3)))
