"""`ensemble`: models of equal structure as one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import PartitionSpec as P
from support.helpers import assert_agree, numbers

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def make(key):
    return ep.chain(eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0.5))


def test_member_i_is_made_of_and_draws_from_the_ith_key():
    pipe = ep.ensemble(make, 4, key=KEY, merge="stack")
    run = eqx.filter_jit(lambda stage, key: stage(X, key=key))
    keys = [jr.fold_in(KEY, i) for i in range(4)]
    members = [make(key) for key in keys]
    wanted = np.stack([run(m, key) for m, key in zip(members, keys, strict=True)])
    assert_agree(np.asarray(run(pipe, KEY)), wanted)
    assert_agree(run(pipe[2], KEY), run(members[2], KEY))
    assert jax.eval_shape(lambda: pipe[1:](X, key=KEY)).shape == (3, 2)
    assert_agree(np.asarray(run(ep.ensemble(members, merge="stack"), KEY)), wanted)
    for merge, over in {"mean": np.mean, "max": np.max, "prod": np.prod}.items():
        merged = ep.ensemble(members, merge=merge)
        assert_agree(np.asarray(run(merged, KEY)), over(wanted, axis=0))
    quiet = eqx.nn.inference_mode(pipe)
    found = ep.outputs(ep.chain(e=quiet))(X)[1]
    assert list(found)[:3] == ["e.0.0", "e.0.1", "e.0"]
    assert_agree(found["e.3.0"], members[3][0](X))


def test_each_member_is_trained_on_a_batch_of_its_own():
    pipe = ep.ensemble(lambda key: eqx.nn.Linear(3, 1, key=key), 2, key=KEY)
    struct = jax.ShapeDtypeStruct
    xs, ys = numbers((struct((2, 5, 3), jnp.float32), struct((2, 5, 1), jnp.float32)))

    def loss(model, xs, ys):
        return jnp.mean((jax.vmap(model)(xs) - ys) ** 2)

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(pipe):
        return jnp.sum(eqx.filter_vmap(loss)(pipe.stages, xs, ys))

    found, alone = slope(pipe), eqx.filter_jit(eqx.filter_grad(loss))
    for i in range(2):
        assert_agree(found[i].weight, alone(pipe[i], xs[i], ys[i]).weight)


def test_members_live_on_the_devices_of_a_mesh():
    mesh = jax.make_mesh((4,), ("models",), devices=jax.devices()[:4])
    pipe = ep.ensemble(lambda key: eqx.nn.Linear(3, 2, key=key), 8, key=KEY)
    spread = ep.sharding.shard(pipe, mesh, P("models"))
    weight = spread.stages.weight
    assert {s.data.shape for s in weight.addressable_shards} == {(2, 2, 3)}
    run = eqx.filter_jit(lambda pipe: pipe(X))
    np.testing.assert_allclose(run(spread), run(pipe), rtol=1e-5)
