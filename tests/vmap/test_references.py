"""References (`jax.new_ref`): each lane has its part, as under `jax.vmap`."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import assert_agree

import eqx_pipe as ep

XS = np.array([1.0, 2.0, 3.0], np.float32)


def made(axis=0):
    return jax.new_ref(jnp.moveaxis(jnp.arange(6.0).reshape(3, 2), 0, axis))


def reads(row, x):
    return jnp.sum(row[...] * x)


def writes(row, x):
    row[...] += x
    return jnp.sum(row[...])


def loops(row, x):
    """Write in a loop, to a reference of its own too."""
    total = jax.new_ref(jnp.float32(0))

    def step(i, c):
        row[0] += x
        total[...] += row[0] * i
        return c

    jax.lax.fori_loop(0, 3, step, 0)
    return total[...]


@given(
    fn=st.sampled_from([reads, writes, loops]),
    batch_size=st.sampled_from([1, 2, 3, "auto"]),
    axis=st.sampled_from([0, 1]),
    devices=st.sampled_from([None, 2]),
    reduce=st.sampled_from([None, "sum"]),
)
def test_each_lane_has_its_part(fn, batch_size, axis, devices, reduce):
    mesh = (
        None if devices is None else jax.make_mesh((2,), ("x",), devices=devices_of())
    )
    settings = {"batch_size": batch_size, "mesh": mesh, "reduce": reduce}
    ours, ref = ep.vmap(fn, in_axes=(axis, 0), **settings), made(axis)
    got = (jax.jit(ours) if mesh is None else ours)(ref, XS)
    rows, wanted = [jax.new_ref(x) for x in made()[...]], []
    for row, x in zip(rows, XS, strict=True):
        wanted.append(fn(row, x))
    wanted = jnp.stack(wanted)
    assert_agree(got, wanted.sum() if reduce else wanted, tolerance=1e-5)
    after = jnp.stack([row[...] for row in rows], axis)
    assert_agree(ref[...], after, tolerance=1e-5)


def devices_of():
    return jax.devices()[:2]


def own(x):
    """Add up in a reference of its own."""
    total = jax.new_ref(jnp.zeros(()))
    for i in range(3):
        total[...] += i * x**2
    return total[...]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_derivatives(batch_size):
    of = ft.partial(ep.vmap, batch_size=batch_size)
    np.testing.assert_allclose(jax.grad(lambda x: of(own)(x).sum())(XS), 6 * XS)
    ref = made()
    grad = jax.grad(lambda x: of(reads)(ref, x).sum())(XS)
    np.testing.assert_allclose(grad, ref[...].sum(axis=1))


@pytest.mark.parametrize("devices", [None, 2])
def test_a_reference_that_lanes_share_is_only_read(devices):
    mesh = (
        None if devices is None else jax.make_mesh((2,), ("x",), devices=devices_of())
    )
    ref = made()
    for in_axes, args in (((None, 0), (ref, XS)), (0, (XS,))):
        fn = reads if len(args) == 2 else ft.partial(reads, ref)
        got = ep.vmap(fn, in_axes, batch_size=2, mesh=mesh)(*args)
        np.testing.assert_allclose(got, 15 * XS)
        fn = writes if len(args) == 2 else ft.partial(writes, ref)
        with pytest.raises(ValueError, match="an argument with an axis in `in_axes`"):
            ep.vmap(fn, in_axes, batch_size=1, mesh=mesh)(*args)
    with pytest.raises(ValueError, match=r"Read it before: `ref\[...\]`"):
        ep.vmap(lambda row: jnp.sum(row[...]) + jnp.sum(ref[...]))(ref)
    points = ep.vmap_space(ft.partial(reads, ref), ep.Values(XS), mesh=mesh)
    np.testing.assert_allclose(points, 15 * XS)


def test_a_sweep_reads_references_as_they_are_and_writes_to_none():
    ref = made()
    fn = ft.partial(reads, ref)
    for scale in (1.0, 2.0):
        ref[...] = scale * made()[...]
        np.testing.assert_allclose(ep.sweep(fn, ep.Values(XS)).values, 15 * scale * XS)
    given = {"r": ref, "x": ep.Values(XS)}
    got = ep.sweep(lambda d: reads(d["r"], d["x"]), given, reduce=ep.reduce.Sum())
    np.testing.assert_allclose(got.values, 30 * XS.sum())
    np.testing.assert_allclose(ep.sweep(own, ep.Values(XS)).values, 3 * XS**2)
    with pytest.raises(ValueError, match="a reference that `fn` makes may change"):
        ep.sweep(ft.partial(writes, ref), ep.Values(XS))
