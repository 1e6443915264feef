"""`precision`: computing in another dtype than that of the parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)
BF16 = jnp.bfloat16


def lower(tree, dtype=BF16):
    return jax.tree.map(
        lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree
    )


def block(key):
    return ep.chain(norm=eqx.nn.LayerNorm(3), lin=eqx.nn.Linear(3, 3, key=key))


def seen(x):
    """Return the dtypes of outputs by path."""
    return {path: y.dtype.name for path, y in x.items()}


def test_in_the_dtype_of_everything_it_is_the_stage():
    pipe = block(KEY)
    same = ep.precision(pipe, "float32", keep="norm")

    def run(pipe):
        return jax.make_jaxpr(pipe)(X)

    assert str(run(lambda x: same(x))) == str(run(lambda x: pipe(x)))


def test_what_is_kept_computes_in_its_own_dtype():
    inner = []

    class Norm(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            inner.append((x.dtype.name, self.scale.dtype.name))
            return self.scale * x

    class Block(eqx.Module):
        norm: Norm
        lin: eqx.nn.Linear

        def __call__(self, x):
            y = self.norm(x)
            inner.append((y.dtype.name, self.lin.weight.dtype.name))
            return self.lin(y)

    def make(key):
        return ep.chain(own=Block(Norm(jnp.ones(3)), eqx.nn.Linear(3, 3, key=key)))

    pipe = ep.chain(blocks=ep.repeat(make, 2, key=KEY), sin=jnp.sin)
    fast = ep.precision(pipe, keep=("**.norm", "sin"), output=None)
    y = jax.eval_shape(fast, X)
    assert inner == [("float32", "float32"), ("bfloat16", "bfloat16")]
    assert y.dtype == BF16
    with pytest.raises(
        ValueError, match=r"match `blocks\.1` but not `blocks\.0`.*all st"
    ):
        ep.precision(pipe, keep="blocks.1")


def test_a_state_keeps_its_dtype():
    def make():
        norm = eqx.nn.BatchNorm(3, "batch", mode="ema")
        return ep.precision(ep.chain(eqx.nn.Linear(3, 3, key=KEY), norm))

    pipe, state = eqx.nn.make_with_state(make)()
    batch = jnp.stack([X, 2 * X])
    y, after = eqx.filter_eval_shape(ep.batched(pipe, axis_name="batch"), batch, state)
    assert y.dtype == jnp.float32 and y.shape == (2, 3)
    assert all(x.dtype != BF16 for x in jax.tree.leaves(after))


def test_paths_and_other_leaves_stay():
    pipe = ep.precision(ep.chain(a=jnp.sin, b=eqx.nn.Identity()))
    x = {"x": X, "n": jnp.arange(3), "key": KEY, "text": "t", "number": 2.0}
    y = ep.precision(eqx.nn.Identity())(x)
    assert seen(ep.outputs(pipe)(X)[1]) == {
        "stage.a": "bfloat16",
        "stage.b": "bfloat16",
        "stage": "bfloat16",
    }
    assert y["x"].dtype == jnp.float32 and y["n"].dtype == jnp.int32
    assert y["text"] == "t" and y["number"] == 2.0 and (y["key"] == KEY)
    assert ep.summary(pipe).settings == {"compute": "bfloat16"}
    assert "precision(compute=bfloat16)" in str(ep.summary(ep.chain(pipe)))
