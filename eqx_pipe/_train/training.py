"""`Training`: the three functions of a training, and how they are called."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int

from .._check import check_callable, check_distinct, check_same
from .._errors import describe_value, type_error
from .._keys import fold, key_argument
from .._tree import as_arrays, as_data, leaves_with_names
from .._types import Key, PyTree


class Training(eqx.Module):
    """A training: the functions that begin, continue and evaluate it.

    - `init(point)` returns the first carry: any pytree, such as a model with the state
      of its optimiser. Its arrays are trained; functions and other values stay as
      `init` returned them. Python numbers become arrays.
    - `step(point, carry)` returns `(carry, metrics)`: the next carry, with the same
      structure, shapes and dtypes, and a pytree of numbers and arrays, or `None`.
    - `evaluate(point, carry)`, if given, returns further metrics. It runs every `every`
      steps.

    Each may have a parameter `key`. From the key of the point, `own =
    space.point_key(i, key=key)`, `init` gets `fold_in(own, 0)`, and step `k`, counted
    from 1, gets `fold_in(own, k)`. `evaluate` gets another key, which depends on the
    step, too.

    **Raises:** `TypeError` if one of them cannot be called.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    evaluate: Callable[..., PyTree] | None = None

    def __check_init__(self) -> None:
        for name in ("init", "step", "evaluate"):
            fn = getattr(self, name)
            if fn is not None:
                cure = f"Give a function: `{name}(point, ...)`."
                check_callable("Training", name, fn, cure)


_RETURNS = "`step` returned {}, not a pair of a carry and metrics."
_PAIR = "Return `(carry, metrics)`; without metrics, `(carry, None)`."
_OTHER = "`step` returned another carry than it got (before, after)"
_KEEP = "Return a carry with the same structure, shapes and dtypes as that of `init`."


def begun(training: Training, point: PyTree, own: Key | None) -> tuple[PyTree, PyTree]:
    """Return the arrays of the first carry, and the rest of it."""
    first = None if own is None else jr.fold_in(own, 0)
    carry = training.init(point, **key_argument(training.init, first))
    return _parted(carry)


def _parted(carry: PyTree) -> tuple[PyTree, PyTree]:
    """Return the arrays of a carry, and the rest.

    Numbers become arrays, except those in modules: a model may use one while it is
    traced, as a dropout uses its probability.
    """

    def arrays(node: Any) -> Any:
        if not isinstance(node, eqx.Module):
            return as_arrays(node)
        return jtu.tree_map(
            lambda x: as_arrays(x) if isinstance(x, np.ndarray) else x, node
        )

    carry = jtu.tree_map(arrays, carry, is_leaf=lambda x: isinstance(x, eqx.Module))
    return eqx.partition(carry, eqx.is_array)


def stepped(
    training: Training,
    point: PyTree,
    own: Key | None,
    carry: tuple[PyTree, PyTree],
    number: Int[Array, ""],
) -> tuple[PyTree, dict[str, Array]]:
    """Return the arrays of the carry after step `number`, and the metrics by path."""
    arrays, rest = carry
    step_key = None if own is None else jr.fold_in(own, number)
    step = training.step
    out = step(point, eqx.combine(arrays, rest), **key_argument(step, step_key))
    if not isinstance(out, tuple) or len(out) != 2:
        raise type_error("train", _RETURNS.format(describe_value(out)), _PAIR)
    after, _ = _parted(out[0])
    check_same("train", _OTHER, arrays, after, _KEEP)
    # Drop weak types, so that every iteration of the loop has the same types.
    after = jtu.tree_map(
        lambda new, old: (
            jax.lax.convert_element_type(new, old.dtype)
            if eqx.is_array(old) and not jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
            else new
        ),
        after,
        arrays,
    )
    return after, named(out[1], "step")


def evaluated(
    training: Training,
    point: PyTree,
    own: Key | None,
    carry: PyTree,
    number: Int[Array, ""],
) -> dict[str, Array]:
    """Return the metrics of `evaluate` after step `number`, by path."""
    evaluate = training.evaluate
    if evaluate is None:
        return {}
    key = None if own is None else fold(jr.fold_in(own, number), "evaluate")
    return named(evaluate(point, carry, **key_argument(evaluate, key)), "evaluate")


def named(metrics: PyTree, function: str) -> dict[str, Array]:
    """Return metrics by path, the only one as `value`."""
    pairs = [(name or "value", leaf) for name, leaf in leaves_with_names(metrics)]
    check_distinct("train", f"metrics of `{function}`", [name for name, _ in pairs])
    found: dict[str, Any] = {}
    for name, leaf in pairs:
        if not eqx.is_array_like(leaf):
            raise type_error(
                "train",
                f"`{function}` returned {describe_value(leaf)} as the metric `{name}`.",
                "Metrics are numbers, arrays and pytrees of them.",
            )
        found[name] = jnp.asarray(as_data(jnp.asarray(leaf)))
    return found
