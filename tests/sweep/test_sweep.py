"""A sweep is its definition, whatever the batch size, the devices and the chunks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import filled
from support.sweeps import (
    close,
    closed_form,
    loop,
    make_mesh,
    noise,
    scan,
)
from support.visited import stored_sweep, visited
from support.ways import SPACES

import eqx_pipe as ep


def test_devices_do_not_talk_to_each_other(programs):
    def with_another_number(fn):  # a program that no other test has compiled
        if fn is noise:
            return lambda p, key: (0.7311, fn(p, key))
        return lambda p: (0.7311, fn(p))

    for fn in (closed_form, loop, scan, noise):
        ep.sweep(with_another_number(fn), SPACES["a product"](), key=jr.key(0))
        text = programs[-1][1].as_text()
        for word in ("all-reduce", "all-gather", "all-to-all", "permute", "scatter("):
            assert word not in text
        assert "while" in text
    assert len(programs) == 4


def test_points_that_were_not_asked_for_are_not_computed():
    seen = []

    def fn(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x

    ep.sweep(fn, ep.Values([1.0, 2.0, 3.0, 4.0, 5.0]), batch_size=2, mesh=make_mesh(2))
    jax.effects_barrier()
    assert set(seen) == {1, 2, 3, 4, 5}
    # Three batches of two: the tail repeats a real point.
    assert len(seen) == 6


def test_under_the_users_mesh_it_is_the_same():
    key = jr.key(0)
    expected = ep.sweep(noise, SPACES["a product"](), key=key).values
    mesh = make_mesh(8)
    with jax.set_mesh(mesh):
        weight = jnp.ones(3)

        def fn(point, key):
            y, k, z = noise(point, key)
            return y * jnp.sum(jax.jit(jnp.cos)(0 * weight)) / 3, k, z

        inside = jr.key(0)
        close(
            ep.sweep(fn, SPACES["a product"](), key=inside, mesh=mesh).values, expected
        )
        close(ep.sweep(fn, SPACES["a product"](), key=inside).values, expected)
        close(ep.sweep(noise, SPACES["a product"](), key=inside).values, expected)


def test_debug_nans_finds_only_real_ones():
    with jax.debug_nans(True):
        result = ep.sweep(lambda x: 1 / x, ep.Linspace(1, 2, 5), batch_size=4)
        assert result.values[0] == 1
        ep.sweep(jnp.log, ep.Linspace(1, 2, 9))
        # The same program: JAX looks at its first outputs only, the sweep at all.
        for k in (5, 0):
            values = np.ones(9, np.float32)
            values[k] = -1
            with pytest.raises(FloatingPointError, match=rf"point {k} .*space.point"):
                ep.sweep(jnp.log, ep.Values(values))
            with pytest.raises(FloatingPointError, match=f"point {k} "):
                ep.sweep(jnp.log, ep.Values(values), reduce=ep.reduce.Mean())
    with jax.debug_infs(True):
        with pytest.raises(FloatingPointError, match="point 0 is inf"):
            ep.sweep(jnp.log, ep.Linspace(0, 2, 9))


def test_a_module_is_a_function_and_a_space():
    model = filled(lambda key: eqx.nn.MLP(2, 2, 4, 1, key=key), jr.key(0))
    inputs = jnp.linspace(-1, 1, 10).reshape(5, 2)

    def at(bias):
        return eqx.tree_at(lambda m: m.layers[1].bias, model, bias)

    close(
        ep.sweep(model, ep.Values(inputs)).values, np.asarray(jax.vmap(model)(inputs))
    )
    got = ep.sweep(lambda m: m(jnp.ones(2)), at(ep.Values(inputs))).values
    close(got, np.asarray(jax.vmap(lambda b: at(b)(jnp.ones(2)))(inputs)))
    dropout = eqx.nn.Dropout(0.5)
    drawn = ep.sweep(dropout, ep.Values(jnp.ones((4, 8))), key=jr.key(0)).values
    keys = jax.vmap(lambda i: jr.fold_in(jr.key(0), i))(jnp.arange(4))
    expected = jax.jit(jax.vmap(lambda key: dropout(jnp.ones(8), key=key)))(keys)
    close(drawn, np.asarray(expected))


def test_a_debugger_stops_in_fn_with_a_real_point():
    seen = []

    def fn(point):
        seen.append(float(point["b"]) + int(point["a"]))
        return point["b"]

    with jax.disable_jit():
        ep.sweep(fn, {"b": ep.Linspace(0, 1, 3), "a": ep.Values([1, 2])})
    assert seen == [1, 2, 1.5, 2.5, 2, 3]


def test_a_key_is_passed_only_where_it_is_asked_for():
    space, key = ep.Linspace(0, 1, 3), jr.key(0)
    close(ep.sweep(lambda x: x, space, key=key).values, np.float32([0, 0.5, 1]))
    close(
        ep.sweep(lambda x, key=None: x if key is None else -x, space).values,
        np.float32([0, 0.5, 1]),
    )
    raw = ep.sweep(lambda x, key: jr.bits(key), space, key=jr.PRNGKey(0)).values
    assert np.array_equal(
        raw, ep.sweep(lambda x, key: jr.bits(key), space, key=key).values
    )


def test_a_point_may_be_called_key():
    """As it is in the functions of `jax.random`."""
    keys = ep.Values(jr.split(jr.key(0), 3))
    expected = np.stack([jr.normal(k) for k in jr.split(jr.key(0), 3)])
    for key in (None, jr.key(1)):
        close(ep.sweep(jr.normal, keys, key=key).values, expected)
        close(ep.sweep(lambda key: jr.normal(key), keys, key=key).values, expected)


def test_texts_beside_the_axes_pass_through():
    names = np.array(["no", "yes"])
    space = {"x": ep.Linspace(1, 3, 3), "names": names}
    values = ep.sweep(lambda p: p["x"] * len(p["names"][1]), space).values
    assert values.tolist() == [3, 6, 9]


def test_an_error_in_fn_comes_out_as_it_is():
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        ep.sweep(fn, ep.Linspace(0, 1, 3))
    assert "eqx_pipe.sweep" in "".join(caught.value.__notes__)
    with jax.disable_jit(), pytest.raises(KeyError) as caught:
        ep.sweep(fn, ep.Linspace(0, 1, 3))
    assert "point 0" in "".join(caught.value.__notes__)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_while_it_runs_says_where():
    def fn(x):
        return eqx.error_if(x, x > 0.5, "too large")

    with pytest.raises(ep.SweepError, match="point 2.*too large") as caught:
        ep.sweep(fn, ep.Linspace(0, 1, 3), mesh=make_mesh(1))
    assert caught.value.indices == (2,)
    ep.sweep(fn, ep.Linspace(0, 0.5, 3), mesh=make_mesh(1))


def test_a_sweep_with_a_store_visits_few_files():
    pytest.importorskip("zarr")
    files = visited(stored_sweep)
    assert files[:2] == ["_sweep/sweep.py", "_sweep/request.py"]
    assert len(files) <= 36, files  # each has one subject
