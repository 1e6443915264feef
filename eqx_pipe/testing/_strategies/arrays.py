"""Strategies for shapes, arrays, keys and batches."""

import math
from typing import TypeAlias

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from ..._errors import describe_value
from ..._types import Key, PyTree
from .edges import EIGHTHS as EIGHTHS
from .validate import Draw, check_int, check_strategy, check_struct, composite, invalid

Numbers: TypeAlias = st.SearchStrategy
"""A strategy for single numbers."""

COMPLEX = st.builds(complex, EIGHTHS, EIGHTHS)
VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
_MOST_DRAWN = 32
# Few, as each compiles anew; examples shrink to the first.
_POOL = (
    jax.ShapeDtypeStruct((1,), jnp.float32),
    VECTOR,
    jax.ShapeDtypeStruct((), jnp.float32),
    jax.ShapeDtypeStruct((2, 3), jnp.float32),
    jax.ShapeDtypeStruct((3,), jnp.bfloat16),
    {"image": jax.ShapeDtypeStruct((2, 3), jnp.float32), "meta": (VECTOR,)},
)


def structs() -> st.SearchStrategy[PyTree]:
    """A pytree of shapes and dtypes, from a small pool.

    Each new shape makes JAX compile again, so the pool has six: vectors, a scalar, a
    matrix, one of `bfloat16`, and a record with a dict and a tuple in it.

    **Returns:** a strategy of pytrees of `jax.ShapeDtypeStruct`; it shrinks to a vector
    of one number.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> struct = ept.structs()
        >>> @hypothesis.given(struct.flatmap(ept.arrays))
        ... def test_arrays(tree): ...
    """
    return st.sampled_from(_POOL)


@composite
def arrays(
    draw: Draw, struct: PyTree | None = None, *, elements: Numbers | None = None
) -> PyTree:
    """A pytree of JAX arrays.

    **Arguments:**

    - `struct`: a pytree of shapes and dtypes (`jax.ShapeDtypeStruct`, or arrays that
      have them). By default one array of a shape from a small pool.
    - `elements`: a strategy for single numbers. By default small numbers that every
      dtype holds exactly: eighths from -4 to 4 and the like, often 0, -0, 1, -1 and
      halves; `edge_numbers` gives the ends of the dtype, too. (Keyword only.)

    **Returns:** a strategy. It shrinks to zeros.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, or `elements` is no strategy; when drawn, if a number
    does not fit.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> struct = {"x": jax.ShapeDtypeStruct((2, 3), "float32")}
        >>> @hypothesis.given(ept.arrays(struct))
        ... def test_negation(tree):
        ...     assert (-(-tree["x"]) == tree["x"]).all()
        >>> test_negation()
    """
    if struct is None:
        struct = draw(st.sampled_from(_POOL[:4]))
    return _tree("arrays", draw, struct, elements)


def _tree(
    function: str, draw: Draw, struct: PyTree, elements: Numbers | None
) -> PyTree:
    struct = check_struct(function, struct)
    check_strategy(function, "elements", elements)
    leaves, structure = jtu.tree_flatten(struct)
    drawn = [draw(_array(function, leaf, elements)) for leaf in leaves]
    return jtu.tree_unflatten(structure, drawn)


def _array(
    function: str, struct: jax.ShapeDtypeStruct | Array, elements: Numbers | None
) -> st.SearchStrategy[Array]:
    shape, dtype = tuple(struct.shape), struct.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        seeds = hnp.arrays(np.uint32, shape, elements=st.integers(0, 7))
        return seeds.map(lambda s: jax.vmap(jr.key)(s.ravel()).reshape(shape))
    drawn = numpy_array(function, shape, dtype, elements)
    return drawn.map(lambda v: jnp.asarray(v, dtype))


def numpy_array(
    function: str, shape: tuple[int, ...], dtype: DTypeLike, elements: Numbers | None
) -> st.SearchStrategy[np.ndarray]:
    """An array of NumPy; also of 64 bits where JAX has none."""
    # NumPy's own strategy shrinks well, and knows few dtypes: draw in the widest.
    kinds = (wide for kind, wide in _WIDEST.items() if jnp.issubdtype(dtype, kind))
    wide = np.dtype(next(kinds))

    def checked(value: object) -> np.generic:
        if _fits(value, dtype):
            return wide.type(value)
        raise invalid(
            function,
            f"`elements` gave {describe_value(value)}, which does not fit "
            f"{np.dtype(dtype).name}.",
            "Give a strategy whose numbers lie in the range of the dtype.",
        )

    given = _usual(dtype) if elements is None else elements.map(checked)
    # Small arrays are drawn number by number: of zeros alone too little is learnt.
    few = math.prod(shape) <= _MOST_DRAWN
    fill = st.nothing() if few else st.just(wide.type(0)) if elements is None else None
    drawn = hnp.arrays(wide, shape, elements=given, fill=fill)
    return drawn.map(lambda v: v.astype(dtype))


_WIDEST = {
    jnp.bool_: bool,
    jnp.unsignedinteger: np.uint64,
    jnp.integer: np.int64,
    jnp.floating: np.float64,
    jnp.complexfloating: np.complex128,
}


def _usual(dtype: DTypeLike) -> Numbers:
    """Small numbers that a dtype holds exactly."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else EIGHTHS
    if dtype == jnp.bool_:
        return st.booleans()
    info = jnp.iinfo(dtype)
    return st.integers(max(-4, int(info.min)), min(4, int(info.max)))


def _fits(value: object, dtype: DTypeLike) -> bool:
    """Whether a number of the user's own elements has its like in a dtype."""
    if isinstance(value, bool | np.bool_):
        return True
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        whole = isinstance(value, int | np.integer)
        return whole and int(info.min) <= int(value) <= int(info.max)
    real = isinstance(value, int | float | np.integer | np.floating)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return real or isinstance(value, complex | np.complexfloating)
    return real and dtype != jnp.bool_


@composite
def keys(draw: Draw) -> Key:
    """A PRNG key, `jax.random.key(seed)`; shrinks to seed 0.

    **Returns:** a strategy of keys of shape `()`.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> @hypothesis.given(ept.keys())
        ... def test_draws(key):
        ...     assert jax.random.uniform(key) < 1
        >>> test_draws()
    """
    return jr.key(draw(st.integers(0, 2**32 - 1)))


@composite
def batches(
    draw: Draw,
    struct: PyTree,
    *,
    max_size: int = 4,
    min_size: int = 1,
    elements: Numbers | None = None,
) -> PyTree:
    """A batch: a pytree of arrays with a leading axis, of the same size in each.

    **Arguments:**

    - `struct`: the shapes and dtypes of one example, as in `arrays`.
    - `max_size`: the largest number of examples; sizes are 1, 2, 4, ..., so that few
      shapes compile. (Keyword only.)
    - `elements`: as in `arrays`. (Keyword only.)

    **Returns:** a strategy. It shrinks to one example of zeros, or to `min_size`.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, or `max_size` is below 1.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> vector = jax.ShapeDtypeStruct((3,), "float32")
        >>> @hypothesis.given(ept.batches(vector))
        ... def test_rows(batch):
        ...     assert batch.shape in {(1, 3), (3, 3), (4, 3)}
        >>> test_rows()
    """
    struct = check_struct("batches", struct)
    check_int("batches", "max_size", max_size, 1)
    check_int("batches", "min_size", min_size, 0)
    if min_size > max_size:
        raise invalid(
            "batches",
            f"`min_size` is {min_size}, and `max_size` {max_size}.",
            "Give a smaller `min_size`.",
        )
    sizes = {n for n in (1, 3, min_size, max_size) if min_size <= n <= max_size}
    size = draw(st.sampled_from(sorted(sizes, key=lambda n: (n == 0, n))))
    longer = jtu.tree_map(
        lambda v: jax.ShapeDtypeStruct((size, *v.shape), v.dtype), struct
    )
    return _tree("batches", draw, longer, elements)
