"""Axes that draw their values, and functions applied to values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep


class Gamma(eqx.Module):
    """In the shape of a NumPyro distribution: sampled, and callable as well."""

    a: jax.Array

    def sample(self, key, sample_shape=()):
        return jr.gamma(key, self.a, sample_shape + self.a.shape)

    def __call__(self, *_):
        raise AssertionError("not to be called")


def pair(key, shape):
    return jr.uniform(key, (*shape, 2))


SAMPLERS = [jr.normal, pair, Gamma(jnp.ones(3)), lambda key, shape: jr.split(key)[0]]


def bits(x):
    return np.asarray(
        jr.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    ).tobytes()


def random_space(sampler, n, **others):
    return ep.Space({"r": ep.Random(sampler, n), **others}, key=jr.key(3))


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))
def test_other_values_and_axes_never_redraw_a_value(which, n, more):
    sampler = SAMPLERS[which]
    space = random_space(sampler, n)
    expected = [bits(point["r"]) for point in space]
    sample = getattr(sampler, "sample", sampler)
    key = space.axis_key("r")
    assert expected == [bits(sample(jr.fold_in(key, i), ())) for i in range(n)]
    longer = random_space(sampler, n + more)
    assert [bits(point["r"]) for point in longer][:n] == expected
    wider = random_space(sampler, n, a=ep.Random(jr.normal, 2))
    assert [bits(point["r"]) for point in wider[::2]] == expected


def test_each_axis_draws_its_own_values():
    tree = {name: ep.Random(jr.normal, 3, dim="g") for name in "ab"}
    frame = ep.Space(tree, key=jr.key(0)).to_pandas()
    assert len({*frame["a"], *frame["b"]}) == 6
    other = ep.Space(tree, key=jr.key(1)).to_pandas()
    assert not set(frame["a"]) & set(other["a"])


def test_a_long_random_axis_takes_no_memory():
    space = random_space(jr.normal, 2**31 - 1)
    short = random_space(jr.normal, 1)
    assert space[0]["r"] == short[0]["r"] and np.isfinite(space[-1]["r"])


def test_no_key_is_an_error_that_says_where():
    for tree in ({"a": ep.Random(jr.normal, 2)}, [ep.Mapped(abs, ep.Random(pair, 2))]):
        with pytest.raises(ep.MissingKeyError, match=r"`(a|0)`.*Space\(tree, key="):
            ep.Space(tree)
        with pytest.raises(ep.MissingKeyError, match="function alone"):
            ep.sweep(lambda p: 0.0, tree, key=jr.key(0))
    with pytest.raises(ep.MissingKeyError):
        ep.Random(jr.normal, 2).value(jnp.int32(0), None)


@given(st.integers(0, 2), st.sampled_from(["product", "zip"]))
def test_mapped_applies_a_function_to_each_value(which, mode):
    inner = [
        ep.Linspace(0, 1, 3),
        ep.Values(np.eye(3), dim="g"),
        ep.Random(jr.normal, 3),
    ][which]
    fn = lambda x: {"sin": jnp.sin(x), "one": 1}  # noqa: E731
    space = ep.Space({"m": inner, "o": ep.Values([1, 2, 3])}, mode, jr.key(0))
    mapped = eqx.tree_at(lambda s: s.tree["m"], space, ep.Mapped(fn, inner))
    assert mapped.dims == space.dims
    for a, b in zip(mapped, space, strict=True):
        assert np.array_equal(a["m"]["sin"], jnp.sin(b["m"])) and a["m"]["one"] == 1
    values = ep.sweep(lambda p: p["m"]["sin"], mapped).values
    expected = np.stack([np.sin(p["m"]) for p in space])
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert {"m.sin", "m.one"} <= set(ep.sweep(lambda p: 0, mapped).to_xarray().coords)


def test_mapped_twice_is_mapped_by_the_composite():
    axis = ep.Linspace(0, 1, 5)
    twice = ep.Space(ep.Mapped(jnp.exp, ep.Mapped(jnp.sin, axis)))
    once = ep.Space(ep.Mapped(lambda x: jnp.exp(jnp.sin(x)), axis))
    assert [p.item() for p in twice] == [p.item() for p in once]


class Keyed(ep.Axis):
    """An axis that draws from a key of its own."""

    key: jax.Array
    dim: None = None

    def __len__(self):
        return 2

    def value(self, i, key):
        return jr.normal(jr.fold_in(self.key, i))


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_whose_draws_change_under_vmap_are_refused(kind):
    key = jr.key(0, impl=kind)
    says = f"of the kind `{kind}`.*`vmap`.*threefry2x32"
    with pytest.raises(ValueError, match=f"Space`: `key` is {says}"):
        ep.Space(ep.Random(jr.normal, 2), key=key)
    for keys in (jr.split(key, 4), list(jr.split(key, 4))):
        with pytest.raises(ValueError, match=f"Values`: `values` are keys {says}"):
            ep.Values(keys)
    with pytest.raises(ValueError, match=f"Space`: the axis `a` holds keys {says}"):
        ep.Space({"a": Keyed(key)})
    for fn in (lambda s: jr.key(s, impl=kind), lambda s: {"k": jr.key(s, impl=kind)}):
        space = ep.Space({"a": ep.Mapped(fn, ep.Values([1, 2]))})
        with pytest.raises(ValueError, match=f"the axis `a` gives keys {says}"):
            space[0]
