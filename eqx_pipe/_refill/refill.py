"""`refill`: a loop whose finished lanes get new points."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool

from .._errors import describe_value, structure_error, type_error, value_error
from .._tree import as_arrays, can_be_traced, differences
from .._types import ClosedJaxpr, PyTree

# Their rules make the loop what it is.
from . import batch as _batch  # noqa: F401
from . import derivative as _derivative  # noqa: F401
from .loop import loop, struct

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
    """A function of a point with a loop that does not hold up other points.

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
    - `cond`: called as `cond(point, carry)`, says whether there is another step: one
      boolean.
    - `body`: called as `body(point, carry)`, gives the next carry, of the same
      structure, shapes and dtypes.
    - `out`: called as `out(point, carry)` with the last carry, gives the output.

    **Returns:** a function `point -> output`. It may be the whole function of a sweep
    or a part of one. A point is any pytree: one that needs randomness takes
    `(point, key)`. It is differentiable in forward mode, as a `while_loop` is.

    **Raises:**

    - `TypeError` if one of the four cannot be called.
    - `StructureError` (a `ValueError`), when called, if `body` gives another structure,
      shape or dtype than `init`; `ValueError` if `cond` does not give one boolean.

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

    def refilled(point: Point) -> Output:
        return out(point, _last_carry(cond, body, point, as_arrays(init(point))))

    return refilled


def _last_carry(
    cond: Callable[..., object],
    body: Callable[..., PyTree],
    point: PyTree,
    first: PyTree,
) -> PyTree:
    arrays, others = eqx.partition(first, eqx.is_array)
    carry, structure = jtu.tree_flatten(arrays)
    traceable, fixed = eqx.partition(point, can_be_traced)
    values, point_structure = jtu.tree_flatten(traceable)

    def whole(args: tuple[Any, ...]) -> tuple[PyTree, PyTree]:
        point = jtu.tree_unflatten(point_structure, args[: len(values)])
        carry = jtu.tree_unflatten(structure, args[len(values) :])
        return eqx.combine(point, fixed), eqx.combine(carry, others)

    def test(*args: Any) -> list[Bool[Array, ""]]:
        return [_as_boolean(cond(*whole(args)))]

    def step(*args: Any) -> PyTree:
        return as_arrays(body(*whole(args)))

    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        # The plain Python loop, so that a debugger stops inside.
        last = lax.while_loop(
            lambda carry: test(*values, *carry)[0],
            lambda carry: jtu.tree_leaves(
                eqx.filter(step(*values, *carry), eqx.is_array)
            ),
            carry,
        )
    else:
        values = [jnp.asarray(x) for x in values]
        carry, traced = _strongly_typed(step, values, carry, first)
        last = loop(test, traced, values, carry)
    return eqx.combine(jtu.tree_unflatten(structure, last), others)


def _strongly_typed(
    step: Callable[..., PyTree], values: list[Any], carry: list[Any], first: PyTree
) -> tuple[list[Any], ClosedJaxpr]:
    """The first carry in the dtypes of the next, and how that is computed.

    `0` may turn out to be a float. `step` takes `values` and the carry.
    """
    arrays, others = eqx.partition(first, eqx.is_array)
    after, shapes = [], []

    def arrays_of_step(*args: Any) -> list[Any]:
        after[:] = eqx.partition(step(*args), eqx.is_array)
        return jtu.tree_leaves(after[0])

    make: Any = jax.make_jaxpr(arrays_of_step, return_shape=True)
    # A carry may become a float by way of another: a few rounds find all that do.
    for _ in range(3):
        traced, shapes = make(*map(struct, (*values, *carry)))
        if jtu.tree_structure(after) != jtu.tree_structure([arrays, others]):
            break
        pairs = list(zip(carry, shapes, strict=True))
        same = all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
        if same and not differences(others, after[1]):
            strong = [_promoted(x, y) for x, y in pairs]
            if all(x is y for x, y in zip(strong, carry, strict=True)):
                return carry, traced
            # The loop of JAX wants a carry that is as strongly typed as the next one.
            return strong, make(*map(struct, (*values, *strong)))[0]
        carry = [_promoted(x, y) for x, y in pairs]
    structs = jtu.tree_unflatten(jtu.tree_structure(after[0]), shapes)
    found = "; ".join(differences(first, eqx.combine(structs, after[1])))
    for place, name in (("first", "init"), ("second", "body")):
        found = found.replace(f"in the {place}", f"in that of `{name}`")
    raise structure_error(
        "refill",
        f"`init` and `body` give different carries: {found}.",
        "Let `body` return what `init` starts with: the same structure, shapes "
        "and dtypes (`jnp.float32(0)` instead of `0`, say).",
    )


def _promoted(x: Any, after: Any) -> Any:
    """A weakly typed array, as Python's numbers make them, in the next one's dtype."""
    if not getattr(x, "weak_type", False) or x.shape != after.shape:
        return x
    if jnp.issubdtype(after.dtype, jax.dtypes.prng_key):
        return x
    return lax.convert_element_type(x, jnp.result_type(x, after))


def _as_boolean(found: Any) -> Bool[Array, ""]:
    is_bool = isinstance(found, bool) or getattr(found, "dtype", None) == jnp.bool_
    if is_bool and jnp.shape(found) == ():
        return jnp.asarray(found)
    raise value_error(
        "refill",
        f"`cond` gave {describe_value(found)}.",
        "Return one boolean that says whether to go on, such as `carry < limit`; "
        "join several by `jnp.any` or `jnp.all`.",
    )
