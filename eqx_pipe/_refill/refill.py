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
    # The carry has no type variable: a loop may start with `0` and continue with an
    # array, which a type checker would reject.
    init: Callable[[Point], PyTree],
    cond: Callable[[Point, PyTree], Bool[Array, ""] | bool],
    body: Callable[[Point, PyTree], PyTree],
    out: Callable[[Point, PyTree], Output],
) -> Callable[[Point], Output]:
    """Return a function of a point with a loop in which lanes do not wait for others.

    For a single point it is a `while_loop`:

    ```
    carry = init(point)
    while cond(point, carry):
        carry = body(point, carry)
    return out(point, carry)
    ```

    Under `jax.vmap`, a `while_loop` runs in every lane until the slowest point of the
    batch is finished. Here a lane whose point is finished takes the next point of the
    batch, so points may take different numbers of steps, in any order. This pays off
    for batches of thousands, which `sweep` uses with `batch_size="auto"`.

    **Arguments:**

    - `init`: called as `init(point)`, returns the first carry: any pytree.
    - `cond`: called as `cond(point, carry)`, returns whether to take another step: a
      scalar boolean.
    - `body`: called as `body(point, carry)`, returns the next carry, of the same
      structure, shapes and dtypes.
    - `out`: called as `out(point, carry)` with the last carry, returns the output.

    **Returns:** a function `point -> output`, which may be the whole function of a
    sweep or a part of it. A point is any pytree; for random draws, pass `(point, key)`.
    It is differentiable in forward mode, as a `while_loop`, whose lanes wait.

    **Raises:**

    - `TypeError` if one of the four functions cannot be called.
    - `TypeError`, when called, if `body` returns another structure, shape or dtype than
      `init`, or if `cond` does not return a scalar boolean: JAX's error, with the fix.
    - `ValueError` in reverse mode (`jax.grad`, `jax.vjp`), from JAX.
    - `StructureError` (a `ValueError`), when called, if `body` changes a part of the
      carry that is not an array.

    `init` and `out` run for the whole batch at once, and the carries of the whole batch
    are in memory. The functions cannot use the batch's axis by name (`jax.lax.psum`),
    since not all points of the batch take a step together.

    **Laws:** each lane equals the loop above, to rounding, under any `vmap`s.

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
    """Raise unless `body` keeps the parts of the carry that are not arrays."""
    if jtu.tree_structure(first) != jtu.tree_structure(after):
        return  # JAX's error describes containers better
    found = "; ".join(differences(first, after))
    if found:
        raise structure_error(
            "refill",
            f"`body` changes a part of the carry that is not an array: {found}.",
            "Let `body` return it as `init` gives it, or make it an array.",
        )
