"""Sharding never changes values: the laws of the kit on drawn meshes."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
from support.helpers import assert_agree, few, filled, numbers
from support.laws import check_sharded
from support.strategies import keys, meshes, nestings

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(0)
X = numbers(jax.ShapeDtypeStruct((16, 4), jnp.float32))
MLP = filled(lambda key: eqx.nn.MLP(4, 4, 8, 1, key=key), KEY)


@few
@hp.given(st.data())
def test_a_drawn_pipeline_is_the_same_on_every_mesh(data):
    struct = {"x": jax.ShapeDtypeStruct((8,), jnp.float32)}
    pipe = ep.chain(data.draw(nestings(struct, max_depth=4), label="pipe"))
    mesh = data.draw(meshes(explicit=False), label="mesh")
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(keys())
    check_sharded(pipe, x, key=key, mesh=mesh)


def loss(params, x):
    y = ep.sharding.constrain(jax.vmap(params)(x), "rows", None)
    return jnp.mean(y**2)


def step(params, x):
    return eqx.filter_value_and_grad(loss)(params, x)


def pieces(params, x):
    def total(x):
        return jnp.sum(ep.sharding.constrain(jax.vmap(params)(x), "rows", None))

    parts = x.reshape(-1, 8, *x.shape[1:])
    return ep.vmap(total, batch_size=1, reduce="sum")(parts)


def looped(params, x):
    def body(x, _):
        return ep.sharding.constrain(jax.vmap(params)(x), "rows", None), None

    return jax.lax.scan(body, x, length=3)[0]


def tree(params, x):
    y = ep.sharding.constrain({"x": x, "y": jax.vmap(params)(x)}, "rows", None)
    return {"sum": y["x"].sum(0) + y["y"].sum(0), "text": "kept"}


def branching(params, x):
    pipe = ep.batched(ep.cond(lambda y: y[0] > 0, params, jnp.sin))
    return ep.sharding.constrain(pipe(x), "rows", None)


def check_parallel(fn, mesh, rules):
    """Check that a function made parallel computes what it computes plainly."""
    parallel, init = ep.sharding.parallelize(
        fn,
        init_params=lambda: MLP,
        initial_batch=X,
        mesh=mesh,
        rules=rules,
    )
    assert_agree(parallel(init(), X), fn(MLP, X))


FUNCTIONS = {f.__name__: f for f in (step, pieces, looped, tree, branching)}


@few
@hp.given(st.sampled_from(list(FUNCTIONS)), meshes())
def test_functions_made_parallel_compute_the_same_on_every_mesh(name, mesh):
    rules = ep.sharding.AxisRules({"rows": "data"})
    check_parallel(FUNCTIONS[name], mesh, rules)


def test_a_pipelined_stack_keeps_the_laws_of_a_stage():
    def block(key):
        return ep.batched(eqx.nn.Linear(4, 4, key=key))

    stack = ep.repeat(block, 2, key=KEY)
    mesh = jax.make_mesh((2,), ("stages",), devices=jax.devices()[:2])
    pipe = ep.sharding.pipelined(stack, mesh, 2)
    check_sharded(pipe, X, mesh=mesh, reference=stack)
    ept.check_function(pipe, X, skip=("vmap",))
