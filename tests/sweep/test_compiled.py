"""Programs as their compilers describe them, and batches that fit into memory."""

import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import ShapeDtypeStruct as Struct
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
from eqx_pipe._vmap.batch_size import largest_that_fits

GRID = {"a": ep.Linspace(0, 1, 30), "b": ep.Linspace(1, 2, 20)}


def formula(p):
    return jnp.sin(p["a"]) * p["b"]


def test_a_program_counts_what_is_in_it():
    table, index = Struct((64, 4), jnp.float32), Struct((16,), jnp.int32)
    found = ep.program(lambda x, i: x[i], table, index)
    assert found.argument_bytes == 64 * 4 * 4 + 16 * 4
    assert found.output_bytes == 16 * 4 * 4
    assert (found.gathers, found.callbacks, found.wide) == (1, 0, False)

    def called(x):
        return jax.pure_callback(np.sin, x, x, vmap_method="expand_dims")

    assert ep.program(called, jnp.ones(3)).callbacks == 1
    loop = ep.program(
        lambda x: jax.lax.fori_loop(0, 77, lambda _, x: jnp.sin(x), x), jnp.ones(3)
    )
    assert [steps for steps, _ in loop.loops] == [77]
    assert "a step of a loop of 77 steps" in repr(loop)
    with jax.enable_x64(True):
        assert ep.program(jnp.sin, np.ones(3)).wide


def test_a_program_keeps_the_shardings_of_its_arguments():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = Struct((64,), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    found = ep.program(jnp.sum, x, mesh=mesh)
    assert found.argument_bytes == 4 * 8
    assert found.collectives == {"all-reduce": 1}
    assert "1 all-reduce" in repr(found)
    # Arrays without a sharding are copied.
    copied = ep.program(jnp.sum, jnp.ones(64), mesh=mesh)
    assert copied.argument_bytes == 4 * 64 and not copied.collectives


def test_modules_and_other_values_are_arguments():
    layer = eqx.nn.Linear(3, 2, key=jr.key(0))
    found = ep.program(lambda layer, x, name: layer(x), layer, jnp.ones(3), "name")
    assert found.output_bytes == 8


@pytest.mark.parametrize("options", [{}, {"reduce": ep.reduce.Mean()}])
def test_a_plan_has_the_program_of_the_sweep(options):
    plain = ep.plan(formula, GRID, **options)
    plan = ep.plan(formula, GRID, compiled=True, **options)
    assert plain.program is None and plan.batch_size == plain.batch_size
    assert plan.program is not None
    assert plan.program.gathers == plan.program.callbacks == 0
    assert plan.program.collectives == {}
    assert "kernels" in repr(plan) and "kernels" not in repr(plain)


def test_a_plan_of_a_training():
    x = jnp.linspace(0, 1, 32)

    def init(p):
        return jnp.zeros(4)

    def step(p, w):
        grad = jax.grad(lambda w: jnp.mean((jnp.polyval(w, x) - x) ** 2))(w)
        return w - p["rate"] * grad, {"size": jnp.abs(w).sum()}

    training, rates = ep.Training(init, step), {"rate": ep.Geomspace(0.1, 1, 16)}
    plan = ep.plan_train(training, rates)
    assert plan.collectives == {} and plan.callbacks == 0
    with pytest.raises(ValueError, match="the space is empty"):
        ep.plan_train(training, ep.Space(rates)[:0])


def test_names_of_devices():
    for name in ("h200", "v5e:", "h100:0", "v5e:4"):
        with pytest.raises(ValueError, match="Give 'h100', 'h100:8'"):
            ep.topology(name)
    if importlib.util.find_spec("libtpu") is None:
        with pytest.raises(ImportError, match=r"eqx_pipe\[tpu_compiler\]"):
            ep.topology("v5e")


@given(
    lane=st.integers(1, 10**7),
    fixed=st.integers(0, 10**8),
    free=st.sampled_from([10**8, 10**10]),
    most=st.sampled_from([1, 100, 10**4, 10**6]),
    guess=st.sampled_from([0.1, 1.0, 30.0]),
    probes=st.sampled_from([1, 2]),
    refuses=st.booleans(),
)
def test_the_largest_size_fits_and_a_larger_one_does_not(
    lane, fixed, free, most, guess, probes, refuses
):
    asked = []

    def total(size):
        return fixed + lane * size

    def bytes_of(size):
        asked.append(size)
        return None if refuses and total(size) > free else (total(size), fixed)

    alive = max(1, int(lane * guess))
    size = largest_that_fits(bytes_of, most, free, alive, probes)
    room = 0.97 * free
    assert len(asked) <= probes + 3 and all(1 <= n <= most for n in asked)
    assert size <= most and (size == 0 or total(size) <= room)
    if total(most) <= room and lane * most > fixed:
        assert size == most
    if guess == 1.0 and 2 * fixed < room and size < most and size > 10_000:
        assert total(1.1 * size) > room


@pytest.mark.parametrize("length", [1, 6, 7, 13, 20])
@pytest.mark.parametrize("reverse", [False, True])
def test_units_of_a_loop_change_no_bit(monkeypatch, length, reverse):
    def fn(p):
        def step(c, t):
            c = 3.7 * c * (1 - c) * p["a"] + 0.01 * t
            return c, c.sum()

        xs = jnp.arange(float(length))
        c, ys = jax.lax.scan(step, p["b"] * jnp.ones(3) / 3, xs, reverse=reverse)
        return {"last": c, "all": ys}

    whole = jax.tree.leaves(ep.sweep(fn, GRID, batch_size=64).values)
    monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", 0)
    found = []
    for unit in (1, 7):
        monkeypatch.setattr(
            "eqx_pipe._jaxprs.split._unit_of",
            lambda loop, most, uneven, unit=unit: min(unit, loop.params["length"]),
        )
        values = ep.sweep(lambda p: fn(p), GRID, batch_size=64).values
        found.append([*jax.tree.leaves(values)])
    for one, other, value in zip(*found, whole, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, value, rtol=1e-2)
