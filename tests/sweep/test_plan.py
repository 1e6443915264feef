"""A sweep that is planned: what it says is what the sweep then does."""

import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from hypothesis import given
from support.stores import one_device
from support.strategies import spaces

import eqx_pipe as ep
import eqx_pipe.testing as ept

GRID = {"a": ep.Values([1.0, 2.0, 3.0]), "x": ep.Linspace(0, 1, 40)}


def fn(p):
    return {"y": p["x"] * p["a"] * jnp.ones(5), "n": p["x"] > 0}


def state_of(path):
    return {each: each.stat().st_mtime_ns for each in Path(path).rglob("*")}


@given(spaces())
def test_points_and_bytes_of_any_space(space):
    plan = ep.plan(lambda p: (jnp.zeros(3), jnp.int8(1), jr.key(0)), space)
    assert plan.points == plan.left == plan.missing == space.size
    assert plan.value_bytes == space.size * (12 + 1 + 8)
    assert plan.dims == dict(space.dims) and plan.done == plan.failed == 0
    assert plan.store is None
    assert f"{space.size:,} to compute" in repr(plan)


def test_nothing_is_compiled(tmp_path):
    pytest.importorskip("zarr")
    space = {"s": ep.Static([2, 3]), **GRID}

    def power(p):
        return fn(p | {"x": p["x"] ** p["s"]})

    def plans():
        yield ep.plan(power, space)
        yield ep.plan(power, space, store=tmp_path / "runs.zarr")
        yield ep.plan(fn, GRID, reduce=ep.reduce.Mean())
        yield ep.plan(fn, GRID, reduce=ep.reduce.Mean(over="x"))

    list(plans())  # which looks up keys and versions, for what it is worth
    with ept.assert_compiles(0):
        before, kept, reduced, cells = plans()
    assert os.listdir(tmp_path) == []
    result = ep.sweep(power, space)
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(result.values)]
    assert before.value_bytes == kept.value_bytes == sum(sizes)
    assert before.batch_size == result.batch_size
    assert (reduced.points, reduced.left) == (120, 120)
    assert (cells.points, cells.left, cells.dims) == (120, 120, {"a": 3, "x": 40})


@pytest.mark.parametrize(
    ("fn", "space", "size"),
    [
        (fn, GRID, 4),
        (lambda p: p["x"] * jnp.ones((2, 0)), GRID, 40),
        (
            lambda p, key: (jr.normal(key, (40,)), jr.fold_in(key, 1)),
            {"name": ep.Static(["a" * 30, "b"]), "x": ep.Linspace(0, 1, 60)},
            16,
        ),
    ],
)
def test_the_bytes_of_a_store(tmp_path, fn, space, size):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "deep" / "runs.zarr"
    asked = {"batch_size": size, "mesh": one_device(), "store": path, "key": jr.key(1)}
    plan = ep.plan(fn, space, **asked)
    result = ep.sweep(fn, space, **asked)
    group = zarr.open_group(path)
    names = [n for n in group.array_keys() if "value" in n or n in ("y", "n", "0", "1")]
    assert plan.value_bytes == sum(group[n].nbytes for n in names)
    after = ep.plan(fn, space, **asked)
    assert (after.left, after.done, after.chunks_left) == (0, len(result), 0)
    assert "0 of" in repr(after) and plan.chunks_left == plan.chunks == after.chunks


def test_what_a_store_has_is_not_left_and_nothing_is_touched(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "runs.zarr"

    def fails(p):
        return fn(p | {"x": eqx.error_if(p["x"], p["x"] == 0, "no")})

    asked = {"batch_size": 2, "mesh": one_device(), "store": path}
    asked["on_error"] = "mark"
    half = ep.sweep(fails, GRID, shard=(0, 2), **asked)
    before = state_of(path)
    done, failed = int((half.status == 1).sum()), len(half.errors)
    plans = [ep.plan(fails, GRID, shard=part, **asked) for part in ((0, 2), (1, 2))]
    whole = ep.plan(fails, GRID, **asked)
    assert all((p.done, p.failed) == (done, failed) for p in [*plans, whole])
    assert [p.left for p in [*plans, whole]] == [0, 120 - done - failed] + [
        whole.missing
    ]
    again = ep.plan(fn, GRID, resume="failed", **asked)
    assert again.left == whole.missing + failed and failed > 0
    assert state_of(path) == before
    with pytest.raises(ValueError, match="was created by a different sweep"):
        ep.plan(fn, {**GRID, "x": ep.Linspace(0, 2, 40)}, **asked)
    assert ep.sweep(fails, GRID, **asked).status.all()


@pytest.mark.parametrize(
    "larger",
    [{"a": ep.Values([1.0, 2.0, 3.0, 4.0])}, {"x": ep.Linspace(0, 1, 15)}],
)
def test_what_a_store_would_get_that_grows(tmp_path, larger):
    pytest.importorskip("zarr")
    seen = []

    def counted(p):
        def see(x):
            seen.append(x.size)
            return x

        x = p["x"] * p["a"]
        return jax.pure_callback(see, x, x, vmap_method="expand_dims")

    asked = {"batch_size": 1, "mesh": one_device(), "store": tmp_path / "runs.zarr"}
    small = GRID | {"x": ep.Linspace(0, 1, 8)}
    ep.sweep(counted, small, shard=(0, 2), **asked)
    before, large = state_of(tmp_path), small | larger
    asked["resume"] = "force"  # the callback has written into what it holds
    plan = ep.plan(counted, large, **asked)
    parts = [ep.plan(counted, large, shard=(k, 2), **asked).left for k in (0, 1)]
    assert plan.new == plan.points - 24
    assert plan.done == 12 and plan.left == plan.missing == sum(parts)
    assert f"24 points become {plan.points}" in repr(plan)
    assert state_of(tmp_path) == before
    seen.clear()
    ep.sweep(counted, large, **asked)
    assert sum(seen) == plan.left == plan.points - 12


def test_empty_spaces_and_executors():
    plan = ep.plan(fn, ep.Space(GRID)[:0])
    assert plan.points == plan.left == plan.chunks == 0
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        plan = ep.plan(fn, GRID, executor=pool, batch_size=2)
    assert plan.chunks > 1 and plan.left == 120
