"""Compiled programs of `vmap`: memory, loops and collectives."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep


def rollout(w, x):
    step = lambda h, _: (jnp.tanh(w @ h), None)  # noqa: E731
    return jax.lax.scan(step, x, length=32)[0].sum()


W, LANES = jnp.eye(8), (64, 512)


def compiled(fn, n, sharding=None):
    xs = jax.ShapeDtypeStruct((n, 8), jnp.float32, sharding=sharding)
    return jax.jit(fn).lower(W, xs).compile()


def temporaries(fn):
    return [compiled(fn, n).memory_analysis().temp_size_in_bytes for n in LANES]


@pytest.mark.parametrize("reduce", [None, "sum", "mean"])
def test_temporaries_of_a_gradient_are_those_of_a_batch(reduce):
    def gradient(**settings):
        fn = ep.vmap(rollout, in_axes=(None, 0), reduce=reduce, **settings)
        return jax.grad(lambda w, xs: fn(w, xs).mean())

    few, many = temporaries(gradient(batch_size=8))
    per_lane = 0 if reduce else 4  # the outputs and their cotangents
    assert many <= 1.05 * few + 3 * per_lane * (LANES[1] - LANES[0])
    few, many = temporaries(gradient(batch_size=8, remat=False))
    assert many > 4 * few


def test_an_unbatched_output_is_not_stored_for_each_batch():
    fn = ep.vmap(lambda w, x: (w * 2, x), (None, 0), (None, 0), batch_size=1)
    few, many = temporaries(lambda w, xs: fn(w, xs)[0].sum())
    assert many < few + W.nbytes


def test_the_function_stands_once_in_the_program():
    fn = ep.vmap(rollout, in_axes=(None, 0), batch_size=8)
    # Not the lines: a text may end with the places in the source, as JAX cached them.
    programs = [compiled(fn, n).as_text() for n in (64, 512)]
    assert len({text.count(" = ") for text in programs}) == 1
    jaxpr = str(jax.make_jaxpr(fn)(W, jnp.ones((21, 8))))  # a ragged tail
    assert jaxpr.count("tanh") == 1


def test_one_batch_is_a_plain_vmap():
    square = lambda x: x * jnp.sin(x)  # noqa: E731
    for batch_size in (5, 8, "auto"):
        jaxpr = str(jax.make_jaxpr(ep.vmap(square, batch_size=batch_size))(jnp.ones(5)))
        assert "scan" not in jaxpr and "checkpoint" not in jaxpr


def test_automatic_batches_do_not_nest():
    inner = ep.vmap(lambda a, b: jnp.sin(a * b), in_axes=(None, 0))
    row = lambda a: inner(a, jnp.arange(5000.0))  # noqa: E731
    loops = lambda fn, x: str(jax.make_jaxpr(fn)(x)).count("scan[")  # noqa: E731
    assert loops(row, 1.0) == 1
    assert loops(ep.vmap(row, batch_size=4), jnp.ones(4)) == 0
    assert loops(ep.vmap(row, batch_size=2), jnp.ones(4)) == 1


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("n", [16, 24])
def test_no_collectives_where_lanes_are_sharded(kind, n):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    fn = ep.vmap(rollout, in_axes=(None, 0), mesh=mesh, batch_size=2)
    text = compiled(fn, n, NamedSharding(mesh, P("x"))).as_text()
    assert not re.findall("all-gather|all-reduce|collective-permute|all-to-all", text)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("n", [3, 19])
def test_uneven_lanes_are_not_gathered_by_a_program_that_uses_them(kind, n):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    every = ep.vmap(rollout, in_axes=(None, 0), mesh=mesh, batch_size=2)
    mean = jax.jit(lambda w, x: jnp.max(every(w, x)))
    text = mean.lower(jnp.eye(3), jnp.ones((n, 3))).compile().as_text()
    found = re.findall(r"= (\S+) (all-gather|all-reduce|collective-permute)\(", text)
    assert all(how == "all-reduce" and shape == "f32[]" for shape, how in found)


def test_forward_costs_nothing_more_with_remat():
    size = lambda remat: compiled(  # noqa: E731
        ep.vmap(rollout, in_axes=(None, 0), batch_size=8, remat=remat), 64
    ).cost_analysis()["flops"]
    assert size(True) == size(False)


def test_it_runs_on_every_device():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    out = jax.jit(ep.vmap(jnp.sin, mesh=mesh))(np.ones(16, np.float32))
    assert len(out.sharding.device_set) == 8
    assert eqx.tree_equal(out, jnp.sin(jnp.ones(16)), rtol=1e-6)
