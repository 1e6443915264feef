"""Broken sharded and parallel functions: each is caught."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
import eqx_pipe.testing as ept


def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def sharded_sum_wrongly(x):
    return jnp.sum(x, keepdims=True)


def sharded_position(x):
    return x + jax.lax.axis_index("d").astype(x.dtype)


SHARDED = {
    "a sum of one part": (
        sharded_sum_wrongly,
        P(),
        lambda x: jnp.sum(x, keepdims=True),
    ),
    "a position": (sharded_position, P("d"), lambda x: x),
}


@pytest.mark.parametrize("name", SHARDED)
def test_a_broken_sharded_function_is_caught(name):
    fn, out, whole = SHARDED[name]
    stage = ep.sharding.shard_map(fn, mesh(), P("d"), out, check_vma=False)
    with pytest.raises(AssertionError, match="check_sharding.*law `sharding`"):
        ept.check_sharding(stage, jnp.arange(16.0), unsharded=whole)


def other_when_traced(params, batch):
    traced = isinstance(batch, jax.core.Tracer)
    return ep.sharding.constrain(batch, "data") * params + jnp.float32(traced)


_calls = iter(range(10**9))


def counts_its_calls(params, batch):
    return ep.sharding.constrain(batch, "data") * params + jnp.float32(next(_calls))


def branches_in_python(params, batch):
    rows = ep.sharding.constrain(batch, "data")
    return rows * params if rows.sum() > 3 else rows


PARALLEL = {f.__name__: f for f in (other_when_traced, counts_its_calls)}
PARALLEL |= {"branches_in_python": branches_in_python}


@pytest.mark.parametrize("name", PARALLEL)
def test_a_broken_parallel_function_is_caught(name):
    rules = ep.sharding.AxisRules({"data": "data"})
    with pytest.raises(AssertionError, match="check_parallelize"):
        ept.check_parallelize(PARALLEL[name], jnp.float32(2), jnp.ones(8), rules=rules)
