"""Making a model directly in its shards."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from .._check import check_key
from .._errors import describe_value, message
from .._tree import is_key_array
from .._types import Key, PyTree
from .place import shard_as
from .specs import resolve


def init_sharded(
    init: Callable[[Key], PyTree],
    key: Key,
    mesh: Mesh,
    specs: Any,
    rules: Any = None,
) -> PyTree:
    """Makes the model `init(key)` directly in its shards.

    No device ever holds a whole array that is split, as it would if the model were
    made first and placed by `shard`: each draws only its own part. (Some initializers
    need the whole array on every device while they compute: orthogonal ones do.)

    **Arguments:**

    - `init`: a function of one key that returns a model, or any pytree. It is traced.
    - `key`: a PRNG key.
    - `mesh`, `specs`, `rules`: as in `shard`.

    **Returns:** the model, placed. Inside `jit` or `vmap` it is a constraint, and whole
    arrays may be held; outside, `init` may itself be a `vmap` over split keys.

    **Raises:**

    - `ValueError` if specs and sizes do not fit, as `shard` does, or for keys of the
      kind `rbg`, whose draws depend on the sharding.
    - `TypeError` if `init` is no function or `key` no key.

    **Laws:** the values are those of `init(key)`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("model",))
        >>> make = lambda key: eqx.nn.Linear(16, 16, key=key)
        >>> linear = ep.init_sharded(make, jax.random.key(0), mesh, P("model"))
        >>> linear.weight.sharding.spec
        P('model',)
    """
    _check(init, key)
    if isinstance(key, Tracer):
        return shard_as("init_sharded", init(key), mesh, specs, rules)
    compiled, static = compile_init(init, key, mesh, specs, rules)
    return eqx.combine(compiled(key), static)


def compile_init(
    init: Callable[[Key], PyTree], key: Key, mesh: Mesh, specs: Any, rules: Any = None
) -> tuple[Any, PyTree]:
    """The compiled maker of the arrays, and the leaves that are no arrays."""

    def make(key: Key) -> PyTree:
        return jtu.tree_map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf,
            init(key),
        )

    struct = eqx.filter_eval_shape(make, key)
    placed, structure = resolve("init_sharded", struct, mesh, specs, rules)
    shardings = jtu.tree_unflatten(structure, [p.sharding for p in placed])
    is_struct = [isinstance(p.leaf, jax.ShapeDtypeStruct) for p in placed]
    static = eqx.filter(struct, jtu.tree_unflatten(structure, is_struct), inverse=True)
    made = jax.jit(
        lambda key: eqx.filter(make(key), eqx.is_array), out_shardings=shardings
    )
    return made.lower(key).compile(), static


def _check(init: Any, key: Any) -> None:
    if not callable(init):
        raise TypeError(
            message(
                "init_sharded",
                f"`init` is {describe_value(init)}.",
                "Give a function of a key: `lambda key: equinox.nn.Linear(3, 3, "
                "key=key)`.",
            )
        )
    check_key("init_sharded", key)
    if key is None:
        raise TypeError(
            message("init_sharded", "`key` is None.", "Give `jax.random.key(seed)`.")
        )
    kind = str(jr.key_impl(key)) if is_key_array(key) else ""
    if "rbg" in kind:
        raise ValueError(
            message(
                "init_sharded",
                f"`key` is of the kind `{kind}`, whose draws depend on how an array "
                "is split.",
                'Give `jax.random.key(seed, impl="threefry2x32")`.',
            )
        )
