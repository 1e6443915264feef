"""`refill`: a loop whose finished lanes get new points."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool

from .._errors import describe_value, structure_error, type_error
from .._tree import as_arrays, differences
from .._types import PyTree
from .loop import refilled

Point = TypeVar("Point")
Output = TypeVar("Output")


def refill(
    # Not a type variable for the carry: to begin with `0` and go on with an array is
    # right, and a type checker would object.
    init: Callable[[Point], PyTree],
    cond: Callable[[Point, PyTree], Bool[Array, ""] | bool],
    body: Callable[[Point, PyTree], PyTree],
    out: Callable[[Point, PyTree], Output],
) -> Callable[[Point], Output]:
    """Return a function of a point with a loop that does not hold up other points.

    Alone it is a `while_loop`:

    ```
    carry = init(point)
    while cond(point, carry):
        carry = body(point, carry)
    return out(point, carry)
    ```

    Under `jax.vmap` that loop would go on in every lane until the slowest point of the
    batch is finished. Here a lane whose point is finished takes the next point of the
    batch, so points may take as many steps as they need, in any order. It pays for
    batches of thousands, which `sweep` gives it with `batch_size="auto"`.

    **Arguments:**

    - `init`: called as `init(point)`, gives the first carry: any pytree.
    - `cond`: called as `cond(point, carry)`, returns whether there is another step: one
      boolean.
    - `body`: called as `body(point, carry)`, gives the next carry, of the same
      structure, shapes and dtypes.
    - `out`: called as `out(point, carry)` with the last carry, gives the output.

    **Returns:** a function `point -> output`. It may be the whole function of a sweep
    or a part of one. A point is any pytree: one that needs randomness takes
    `(point, key)`. It is differentiable in forward mode, as a `while_loop` is.

    **Raises:**

    - `TypeError` if one of the four cannot be called.
    - `TypeError`, when called, if `body` returns another structure, shape or dtype than
      `init`, or if `cond` does not return one boolean: JAX's error, with the fix.
    - `StructureError` (a `ValueError`), when called, if `body` changes a part of the
      carry that is not an array.

    `init` and `out` run for the whole batch at once, and the carries of the whole batch
    are held. A body that uses the batch's axis by name (`jax.lax.psum`) cannot be
    refilled and runs as a `while_loop`.

    **Laws:** equal to the loop above, lane by lane and to rounding, under any `vmap`s.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> steps = ep.refill(
        ...     init=lambda n: (n, 0),
        ...     cond=lambda _, carry: carry[0] > 1,
        ...     body=lambda _, carry: (
        ...         jnp.where(carry[0] % 2, 3 * carry[0] + 1, carry[0] // 2),
        ...         carry[1] + 1,
        ...     ),
        ...     out=lambda _, carry: carry[1],
        ... )
        >>> ep.sweep(steps, ep.Values([1, 7, 27, 97])).values.tolist()
        [0, 16, 111, 118]
    """
    for name, given in (("init", init), ("cond", cond), ("body", body), ("out", out)):
        if not callable(given):
            raise type_error(
                "refill",
                f"`{name}` is {describe_value(given)}, which cannot be called.",
                "Give four functions: `refill(init, cond, body, out)`.",
            )

    def run(point: Point) -> Output:
        return out(point, _last_carry(cond, body, point, as_arrays(init(point))))

    return run


def _last_carry(
    cond: Callable[..., object],
    body: Callable[..., PyTree],
    point: PyTree,
    first: PyTree,
) -> PyTree:
    carry, others = eqx.partition(first, eqx.is_array)

    def test(carry: PyTree) -> object:
        return cond(point, eqx.combine(carry, others))

    def step(carry: PyTree) -> PyTree:
        after = as_arrays(body(point, eqx.combine(carry, others)))
        arrays, fixed = eqx.partition(after, eqx.is_array)
        _check_fixed(others, fixed)
        return arrays

    leaves, structure = jtu.tree_flatten(carry)

    def loop(*leaves: Any) -> list[Any]:
        carry = jtu.tree_unflatten(structure, leaves)
        return jtu.tree_leaves(lax.while_loop(test, step, carry))

    try:
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            last = loop(*leaves)  # the plain Python loop: a debugger stops inside
        else:
            last = refilled(loop, *leaves)
    except TypeError as error:
        if any(name in str(error) for name in ("while_loop", "_fun")):
            error.add_note(_CURE)
        raise
    return eqx.combine(jtu.tree_unflatten(structure, last), others)


_CURE = (
    "This is the loop of `eqx_pipe.refill`: its condition is `cond`, which returns one "
    "boolean, true to go on; its body is `body`, which returns the structure, shapes "
    "and dtypes of `init` (for example `jnp.float32(0)` instead of `0`)."
)


def _check_fixed(first: PyTree, after: PyTree) -> None:
    """Raise unless `body` returns the parts of the carry that are no arrays."""
    if jtu.tree_structure(first) != jtu.tree_structure(after):
        return  # JAX's error describes containers better
    found = "; ".join(differences(first, after))
    if found:
        raise structure_error(
            "refill",
            f"`body` changes a part of the carry that is not an array: {found}.",
            "Let `body` return it as `init` gives it, or make it an array.",
        )
