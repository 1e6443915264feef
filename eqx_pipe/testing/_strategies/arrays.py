"""Strategies for shapes, arrays, keys and batches."""

from collections.abc import Callable
from typing import TypeAlias

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from hypothesis.errors import InvalidArgument
from jax.typing import DTypeLike
from jaxtyping import Array

from ..._errors import describe_value
from ..._types import Key, PyTree
from .validate import Draw, check_int, check_strategy, check_struct, composite, invalid

Numbers: TypeAlias = st.SearchStrategy
"""A strategy for single numbers."""

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
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
      dtype holds exactly: eighths from -4 to 4 and the like. (Keyword only.)

    **Returns:** a strategy. It shrinks to zeros.

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
    check_struct("arrays", struct)
    check_strategy("arrays", "elements", elements)
    leaves, structure = jtu.tree_flatten(struct)
    return jtu.tree_unflatten(structure, [draw(_array(v, elements)) for v in leaves])


def _array(
    struct: jax.ShapeDtypeStruct | Array, elements: Numbers | None
) -> st.SearchStrategy[Array]:
    shape, dtype = tuple(struct.shape), struct.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        count = int(np.prod(shape))
        seeds = st.lists(st.integers(0, 7), min_size=count, max_size=count)
        return seeds.map(
            lambda s: (
                jax.vmap(jr.key)(jnp.array(s, jnp.uint32)).reshape(shape)
                if count
                else jr.split(jr.key(0), 1)[:0].reshape(shape)
            )
        )
    # NumPy's own strategy shrinks well, and knows few dtypes: draw in a near one.
    near, usual = _near(dtype)
    given = usual if elements is None else elements.map(_checked(dtype))
    fill = st.just(near.type(0)) if elements is None else None
    drawn = hnp.arrays(near, shape, elements=given, fill=fill)
    return drawn.map(lambda v: jnp.asarray(v).astype(dtype))


def _near(dtype: DTypeLike) -> tuple[np.dtype, Numbers]:
    eighths = st.integers(-32, 32).map(lambda i: i / 8)
    if jnp.issubdtype(dtype, jnp.floating):
        wide = np.dtype(dtype) == np.float64
        return np.dtype(np.float64 if wide else np.float32), eighths
    if jnp.issubdtype(dtype, jnp.complexfloating):
        wide = np.dtype(dtype) == np.complex128
        parts = st.builds(complex, eighths, eighths)
        return np.dtype(np.complex128 if wide else np.complex64), parts
    if dtype == jnp.bool_:
        return np.dtype(bool), st.booleans()
    info = jnp.iinfo(dtype)
    low, high = max(-4, int(info.min)), min(4, int(info.max))
    wide = int(info.bits) == 64
    if int(info.min) == 0:
        return np.dtype(np.uint64 if wide else np.uint32), st.integers(low, high)
    return np.dtype(np.int64 if wide else np.int32), st.integers(low, high)


def _checked(dtype: DTypeLike) -> Callable[[object], np.generic]:
    """A check that what the user's own elements give fits the dtype."""

    def check(value: object) -> np.generic:
        if not _fits(value, dtype):
            raise invalid(
                "arrays",
                f"`elements` gave {describe_value(value)}, which does not fit "
                f"{np.dtype(dtype).name}.",
                "Give a strategy whose numbers lie in the range of the dtype.",
            )
        return _near(dtype)[0].type(value)

    return check


def _fits(value: object, dtype: DTypeLike) -> bool:
    if isinstance(value, bool | np.bool_):
        return True
    if dtype == jnp.bool_:
        return False
    if isinstance(value, int | np.integer):
        info = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else None
        return info is None or int(info.min) <= int(value) <= int(info.max)
    real = isinstance(value, float | np.floating)
    wanted = jnp.inexact if real else jnp.complexfloating
    known = real or isinstance(value, complex | np.complexfloating)
    return known and bool(jnp.issubdtype(dtype, wanted))


@composite
def keys(draw: Draw) -> Key:
    """A PRNG key, `jax.random.key(seed)`; shrinks to seed 0.

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
    draw: Draw, struct: PyTree, *, max_size: int = 4, elements: Numbers | None = None
) -> PyTree:
    """A batch: a pytree of arrays with a leading axis, of the same size in each.

    **Arguments:**

    - `struct`: the shapes and dtypes of one example, as in `arrays`.
    - `max_size`: the largest number of examples; sizes are 1, 2, 4, ..., so that few
      shapes compile. (Keyword only.)
    - `elements`: as in `arrays`. (Keyword only.)

    **Returns:** a strategy. It shrinks to one example of zeros.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> vector = jax.ShapeDtypeStruct((3,), "float32")
        >>> @hypothesis.given(ept.batches(vector))
        ... def test_rows(batch):
        ...     assert batch.shape in {(1, 3), (2, 3), (4, 3)}
        >>> test_rows()
    """
    check_struct("batches", struct)
    check_int("batches", "max_size", max_size, 1)
    sizes = [2**i for i in range(max_size.bit_length())]
    size = draw(st.sampled_from(sizes))
    longer = jtu.tree_map(
        lambda v: jax.ShapeDtypeStruct((size, *v.shape), v.dtype), struct
    )
    try:
        return draw(arrays(longer, elements=elements))
    except InvalidArgument as error:
        text = str(error).replace("testing.arrays", "testing.batches")
        raise InvalidArgument(text) from None
