"""Functions that print, write or call back: once at each point, as they are written."""

import concurrent.futures

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from support import executors
from support.helpers import few

import eqx_pipe as ep


def some_devices(n):
    return jax.make_mesh((n,), ("x",), devices=jax.devices()[:n])


def calling(kind):
    """Return a function that records its number, and the list of recorded numbers."""
    seen = executors.SEEN
    seen.clear()

    def note(x):  # a worker has a copy of a list that it closes over
        executors.SEEN.append(float(x))

    def debug(x):
        jax.debug.callback(note, x)
        return x

    def io(x):
        return x + io_callback(lambda x: note(x) or np.float32(0), x, x)

    return {"debug": debug, "io": io}[kind], seen


def called(seen):
    jax.effects_barrier()
    return sorted(seen)


def in_parts(fn, space, store, **asked):
    for rank in (0, 1):
        ep.sweep(fn, space, store=store, shard=(rank, 2), **asked)


def by_threads(fn, space, store, mesh):
    del store, mesh  # workers use all devices
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ep.sweep(fn, space, executor=pool)


WAYS = {
    "plain": lambda fn, x, store, **k: ep.sweep(fn, x, **k),
    "slice": lambda fn, x, store, **k: ep.sweep(fn, ep.Space(x)[:], **k),
    "order_by": lambda fn, x, store, **k: ep.sweep(fn, x, order_by=lambda x: -x, **k),
    "mark": lambda fn, x, store, **k: ep.sweep(fn, x, on_error="mark", **k),
    "reduce": lambda fn, x, store, **k: ep.sweep(fn, x, reduce=ep.reduce.Mean(), **k),
    "store": lambda fn, x, store, **k: ep.sweep(fn, x, store=store, **k),
    "reduce to a store": lambda fn, x, store, **k: ep.sweep(
        fn, x, store=store, reduce=ep.reduce.Mean(), **k
    ),
    "part": in_parts,
    "executor": by_threads,
}


@few
@hypothesis.given(
    size=st.integers(1, 20),
    devices=st.sampled_from([1, 2, 3, 8]),
    kind=st.sampled_from(["debug", "io"]),
    way=st.sampled_from(list(WAYS)),
)
@hypothesis.example(size=3, devices=2, kind="debug", way="plain")
@hypothesis.example(size=5, devices=2, kind="io", way="reduce")
@hypothesis.example(size=13, devices=3, kind="io", way="part")
@hypothesis.example(size=1, devices=1, kind="debug", way="executor")
def test_every_point_is_called_for_once(tmp_path_factory, size, devices, kind, way):
    fn, seen = calling(kind)
    store = tmp_path_factory.mktemp("effects") / "s.zarr"
    x = ep.Values(np.arange(size, dtype=np.float32))
    WAYS[way](fn, x, store=store, mesh=some_devices(devices))
    assert called(seen) == list(range(size))


@pytest.mark.parametrize("reduce", [None, ep.reduce.Mean()])
def test_static_values_too(reduce):
    fn, seen = calling("io")
    space = {"x": ep.Values(np.arange(5.0, dtype=np.float32)), "k": ep.Static([0, 1])}
    ep.sweep(lambda p: fn(p["x"]) + p["k"], space, reduce=reduce, mesh=some_devices(2))
    assert called(seen) == sorted(2 * list(range(5)))


def test_the_plain_loop_calls_once_too():
    fn, seen = calling("io")
    with jax.disable_jit():
        ep.sweep(fn, ep.Values(np.arange(3.0, dtype=np.float32)))
    assert called(seen) == [0, 1, 2]


def test_what_is_printed(capsys):
    def fn(x):
        jax.debug.print("x = {x}", x=x)
        return x

    ep.sweep(fn, ep.Values([1, 2, 3]), mesh=some_devices(2))
    jax.effects_barrier()
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == ["x = 1", "x = 2", "x = 3"]


def test_a_branch_not_taken_is_silent():
    fn, seen = calling("io")
    space = ep.Values(np.arange(6.0, dtype=np.float32))
    result = ep.sweep(
        lambda x: jax.lax.cond(x > 3, fn, lambda x: -x, x), space, mesh=some_devices(2)
    )
    assert called(seen) == [4, 5]
    assert result.values.tolist() == [0, -1, -2, -3, 4, 5]


def test_a_loop_that_has_ended_is_silent():
    fn, seen = calling("debug")

    def count(x):
        return jax.lax.while_loop(lambda y: y < 4, lambda y: fn(y) + 1, x)

    ep.sweep(count, ep.Values([3.0, 1.0, 9.0]), mesh=some_devices(1))
    assert called(seen) == [1, 2, 3, 3]


def test_a_callback_of_nothing_runs_at_every_point():
    numbers = iter(range(100))

    def fn(x):
        given = jax.ShapeDtypeStruct((), jnp.int32)
        return x + io_callback(lambda: np.int32(next(numbers)), given)

    result = ep.sweep(fn, ep.Values([0, 0, 0, 0, 0]), mesh=some_devices(1))
    assert sorted(result.values.tolist()) == [0, 1, 2, 3, 4]


def test_callbacks_may_be_in_order():
    seen = []

    def fn(x):
        io_callback(lambda x: seen.append(int(x)), None, x, ordered=True)
        return x

    ep.sweep(fn, ep.Values([3, 1, 2]), mesh=some_devices(1))
    jax.effects_barrier()
    assert seen == [3, 1, 2]


def test_error_if_is_no_effect():
    def fn(x):
        return eqx.error_if(x, x < 0, "negative")

    assert ep.sweep(fn, ep.Linspace(0, 1, 64), mesh=some_devices(1)).batch_size > 1


def test_a_batch_size_that_does_not_divide_repeats_the_last_point():
    fn, seen = calling("io")
    space = ep.Values(np.arange(5.0, dtype=np.float32))
    ep.sweep(fn, space, batch_size=4, mesh=some_devices(1))
    assert called(seen) == [0, 1, 2, 3, 4, 4, 4, 4]
