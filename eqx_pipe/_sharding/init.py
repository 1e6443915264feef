"""Making a model directly in its shards."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import Mesh
from jax.stages import Compiled

from .._errors import describe_value, type_error, value_error
from .._keys import check_key
from .._types import Key, PyTree
from .leaves import Tree, draws_by_sharding, numpy_as_jax
from .place import shard_as
from .rules import RulesLike
from .specs import SpecsLike, resolve


def init_sharded(
    init: Callable[[Key], Tree],
    key: Key,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
) -> Tree:
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

    **Laws:** the values are those of `init(key)`, up to rounding.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("model",))
        >>> make = lambda key: eqx.nn.Linear(16, 16, key=key)
        >>> linear = ep.sharding.init_sharded(make, jax.random.key(0), mesh, P("model"))
        >>> linear.weight.sharding.spec
        P('model',)
    """
    _check(init, key)
    if isinstance(key, Tracer):
        return shard_as("sharding.init_sharded", init(key), mesh, specs, rules)
    return compile_init(init, key, mesh, specs, rules)()


class Maker(NamedTuple):
    """A compiled function that makes the arrays of a pytree, and its other leaves."""

    compiled: Compiled
    inputs: PyTree
    others: PyTree

    def __call__(self) -> PyTree:
        return eqx.combine(self.compiled(self.inputs), self.others)


def compile_init(
    init: Callable[[Key], PyTree],
    key: Key,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
) -> Maker:
    """What makes the model `init(key)` in its shards."""
    struct = eqx.filter_eval_shape(lambda key: numpy_as_jax(init(key)), key)
    resolved, structure = resolve("sharding.init_sharded", struct, mesh, specs, rules)
    shardings = jtu.tree_unflatten(structure, [leaf.sharding for leaf in resolved])
    return compile_maker(init, (key,), {}, shardings)


def compile_maker(
    init: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    shardings: PyTree,
) -> Maker:
    """What makes `init(*args, **kwargs)`, each array in its sharding."""
    inputs, fixed = eqx.partition((args, kwargs), eqx.is_array)
    others: list[PyTree] = []

    def make(inputs: PyTree) -> PyTree:
        args, kwargs = eqx.combine(inputs, fixed)
        made = numpy_as_jax(init(*args, **kwargs))
        arrays, rest = eqx.partition(made, eqx.is_array)
        others.append(rest)
        return arrays

    # Compiled at once, since `others` are known only when it has been traced.
    compiled = jax.jit(make, out_shardings=shardings).lower(inputs).compile()
    return Maker(compiled, inputs, others[0])


def _check(init: object, key: Key | None) -> None:
    if not callable(init):
        raise type_error(
            "sharding.init_sharded",
            f"`init` is {describe_value(init)}.",
            "Give a function of a key: `lambda key: equinox.nn.Linear(3, 3, key=key)`.",
        )
    check_key("sharding.init_sharded", key)
    if key is None:
        raise type_error(
            "sharding.init_sharded", "`key` is None.", "Give `jax.random.key(seed)`."
        )
    if draws_by_sharding(key):
        raise value_error(
            "sharding.init_sharded",
            f"`key` is of the kind `{jr.key_impl(key)}`, whose draws depend on how "
            "an array is split.",
            'Give `jax.random.key(seed, impl="threefry2x32")`.',
        )
