"""Strategies for arrays and keys, and the checks of their arguments."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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

from ..._errors import describe_value, message
from ..._tree import leaves_with_names
from ..._types import Key, PyTree

Draw: TypeAlias = Callable[..., Any]
"""The function by which a composite strategy draws."""


def invalid(function: str, wrong: str, cure: str) -> InvalidArgument:
    """Return the error for an argument that a strategy does not support."""
    return InvalidArgument(message(f"testing.{function}", wrong, cure))


def check_strategy(
    function: str, argument: str, value: object, optional: bool = True
) -> None:
    """Raise unless `value` is a strategy, or `None` if `optional`."""
    if isinstance(value, st.SearchStrategy) or (value is None and optional):
        return
    raise invalid(
        function,
        f"`{argument}` is {describe_value(value)}, not a strategy.",
        f"For one fixed value give `{argument}=hypothesis.strategies.just(value)`.",
    )


def check_elements(function: str, elements: object) -> None:
    """Raise unless `elements` is a strategy, `None`, or options for numbers."""
    if not isinstance(elements, Mapping):
        return check_strategy(function, "elements", elements)
    try:
        hnp.from_dtype(np.dtype(np.float32), **elements)
    except TypeError as error:  # `InvalidArgument` is one, too
        cure = "Give options of `hypothesis.extra.numpy.from_dtype`: `allow_nan=True`."
        raise invalid(function, f"`elements` is {elements}: {error}.", cure) from error


def check_strategies(function: str, argument: str, values: object) -> None:
    """Raise unless `values` is a list or tuple of strategies."""
    is_list = isinstance(values, tuple | list)
    if not is_list or not all(isinstance(v, st.SearchStrategy) for v in values):
        raise invalid(
            function,
            f"`{argument}` is {describe_value(values)}.",
            "Give a list of strategies, such as `[hypothesis.strategies.just(...)]`.",
        )


def check_struct(function: str, struct: PyTree) -> PyTree:
    """Return shapes and dtypes, given as structs or by example arrays."""
    named = leaves_with_names(struct)
    for name, leaf in named or [("", struct)]:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            place = f"`struct` has at `.{name}`" if name else "`struct` is"
            raise invalid(
                function,
                f"{place} {describe_value(leaf)}.",
                "Give a pytree of `jax.ShapeDtypeStruct(shape, dtype)`, or of arrays "
                "of these shapes and dtypes.",
            )
    return jtu.tree_map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), struct)


Numbers: TypeAlias = st.SearchStrategy
"""A strategy for single numbers."""

Elements: TypeAlias = Numbers | Mapping[str, Any] | None
"""A strategy for single numbers, or options of `hypothesis.extra.numpy.from_dtype`."""

_PLAIN = [i / 8 for i in sorted(range(-32, 33), key=lambda i: (abs(i), i < 0))]
# In one list, since Hypothesis would not shrink from one strategy to another.
EIGHTHS = st.sampled_from(_PLAIN + 9 * [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5])
"""Small numbers that every dtype represents; the most revealing ones are frequent."""
COMPLEX = st.builds(complex, EIGHTHS, EIGHTHS)
_MOST_DRAWN = 32


@st.composite
def arrays(draw: Draw, struct: PyTree, *, elements: Elements = None) -> PyTree:
    """Draw a pytree of JAX arrays.

    **Arguments:**

    - `struct`: a pytree of `jax.ShapeDtypeStruct`, or of arrays, for their shapes and
        dtypes.
    - `elements`: a strategy for single numbers, or a dict of options of
        `hypothesis.extra.numpy.from_dtype`: `{}` draws all numbers of the dtype, with
        NaN, infinities, subnormal and huge numbers; `{"allow_nan": False}` or
        `{"min_value": -1e3, "max_value": 1e3}` restrict them. By default small numbers
        that every dtype represents exactly, such as eighths from -4 to 4, often 0, -0,
        1, -1 and halves. (Keyword only.)

    **Returns:** a strategy. Examples shrink to zeros.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if
    `struct` has a leaf without shape and dtype, `elements` is not a strategy, or a
    number does not fit the dtype.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> struct = {"x": jax.ShapeDtypeStruct((2, 3), "float32")}
        >>> @hypothesis.given(ept.arrays(struct))
        ... def test_negation(tree):
        ...     assert (-(-tree["x"]) == tree["x"]).all()
        >>> test_negation()
    """
    struct = check_struct("arrays", struct)
    check_elements("arrays", elements)
    leaves, structure = jtu.tree_flatten(struct)
    drawn = [draw(_array(leaf, elements)) for leaf in leaves]
    return jtu.tree_unflatten(structure, drawn)


def _array(
    struct: jax.ShapeDtypeStruct | Array, elements: Elements
) -> st.SearchStrategy[Array]:
    shape, dtype = tuple(struct.shape), struct.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        seeds = hnp.arrays(np.uint32, shape, elements=st.integers(0, 7))
        return seeds.map(lambda s: jax.vmap(jr.key)(s.ravel()).reshape(shape))
    drawn = numpy_array(shape, dtype, elements)
    return drawn.map(lambda v: jnp.asarray(v, dtype))


def numpy_array(
    shape: tuple[int, ...], dtype: DTypeLike, elements: Elements
) -> st.SearchStrategy[np.ndarray]:
    """Return a strategy of NumPy arrays, which may have 64 bits in any case."""
    # Hypothesis's NumPy strategy rejects numbers that do not fit, and supports few
    # floating-point dtypes. Those round anyway, so the widest is drawn.
    wide = dtype
    for kind, widest in ((jnp.floating, float), (jnp.complexfloating, complex)):
        wide = widest if jnp.issubdtype(dtype, kind) else wide
    # Small arrays are drawn number by number: mostly equal numbers reveal too little.
    fill = st.nothing() if math.prod(shape) <= _MOST_DRAWN else None
    drawn = hnp.arrays(wide, shape, elements=numbers_of(dtype, elements), fill=fill)
    return drawn.map(lambda v: v.astype(dtype))


def numbers_of(dtype: DTypeLike, elements: Elements) -> Numbers:
    """Return a strategy of numbers of a dtype."""
    if elements is None:
        return _usual(dtype)
    if not isinstance(elements, Mapping):
        return elements
    # Hypothesis does not know bfloat16 and float8; wider numbers are rounded.
    is_small = jnp.issubdtype(dtype, jnp.floating) and np.dtype(dtype).kind != "f"
    return hnp.from_dtype(np.dtype(np.float32 if is_small else dtype), **elements)


def _usual(dtype: DTypeLike) -> Numbers:
    """Return a strategy of small numbers that a dtype represents exactly."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else EIGHTHS
    if dtype == jnp.bool_:
        return st.booleans()
    info = jnp.iinfo(dtype)
    return st.integers(max(-4, int(info.min)), min(4, int(info.max)))


@st.composite
def keys(draw: Draw) -> Key:
    """Draw a PRNG key, `jax.random.key(seed)`; shrinks to seed 0.

    **Returns:** a strategy of keys of shape `()`.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> @hypothesis.given(ept.keys())
        ... def test_draws(key):
        ...     assert jax.random.uniform(key) < 1
        >>> test_draws()
    """
    return jr.key(draw(st.integers(0, 2**32 - 1)))
