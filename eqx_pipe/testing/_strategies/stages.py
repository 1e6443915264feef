"""Strategies for single stages, and your own stages made known to them."""

import functools as ft
import typing
from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from ..._errors import describe_value
from ..._stage import Stage, identity
from ..._types import Key, PyTree, StageLike
from .arrays import arrays
from .validate import Draw, check_bool, check_struct, composite, invalid

Maker: TypeAlias = Callable[[PyTree], st.SearchStrategy | None]
"""From a struct to a strategy of stages that keep it, or None."""

Make = typing.TypeVar("Make", bound=Maker)

_registered: dict[str, tuple[Maker, bool]] = {}
"""By name, what makes a user's own stages, and whether these draw."""


class Affine(Stage):
    """Scales and shifts each leaf elementwise; has a parameter for each number."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def squash(x: PyTree) -> PyTree:
    """The hyperbolic tangent of each leaf."""
    return jtu.tree_map(jnp.tanh, x)


def add_noise(x: PyTree, *, key: Key) -> PyTree:
    """Adds normal draws to each leaf."""
    leaves, structure = jtu.tree_flatten(x)
    keys = jr.split(key, len(leaves))
    drawn = [
        v + jr.normal(k, v.shape, jnp.result_type(v))
        for k, v in zip(keys, leaves, strict=True)
    ]
    return jtu.tree_unflatten(structure, drawn)


def is_inexact(struct: PyTree) -> bool:
    """Whether all leaves hold real or complex numbers."""
    return all(jnp.issubdtype(v.dtype, jnp.inexact) for v in jtu.tree_leaves(struct))


# Not zero, which would hide all that comes before.
_scales = st.integers(-4, 3).map(lambda i: (i + (i >= 0)) / 4)


@composite
def stages(draw: Draw, struct: PyTree, *, random: bool = True) -> StageLike:
    """A stage without stages inside, whose output is like its input.

    The identity, elementwise functions and affine maps, `equinox.nn` layers where the
    input is a vector, stages with noise, and your own: see `register_stage`.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `random`: whether stages that need a key are among them. (Keyword only.)

    **Returns:** a strategy. It shrinks to the identity.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, hypothesis, jax.numpy as jnp
        >>> x = jnp.arange(3.0)
        >>> @hypothesis.given(ept.stages(x, random=False))
        ... def test_shape_is_kept(stage):
        ...     assert ep.chain(stage)(x).shape == x.shape
        >>> test_shape_is_kept()
    """
    struct = check_struct("stages", struct)
    check_bool("stages", "random", random)
    found: list[st.SearchStrategy] = [st.just(identity)]
    if is_inexact(struct):
        found += [
            st.just(squash),
            st.builds(Affine, arrays(struct, elements=_scales), arrays(struct)),
        ]
        found += _layers(struct)
        if random:
            single = isinstance(struct, jax.ShapeDtypeStruct)
            found += [st.just(add_noise), *[st.just(eqx.nn.Dropout(0.5))] * single]
    # The choice first, and then one draw: `one_of` of all has a text without end.
    own = _own(struct, random)
    return draw(draw(st.sampled_from(found + own)))


def _layers(struct: PyTree) -> list[st.SearchStrategy]:
    """Layers of `equinox.nn` that take a vector."""
    if not isinstance(struct, jax.ShapeDtypeStruct) or len(struct.shape) != 1:
        return []
    (size,) = struct.shape

    def linear(seed: int) -> eqx.nn.Linear:
        return eqx.nn.Linear(size, size, key=jr.key(seed), dtype=struct.dtype)

    # Of one number it makes zero, whatever that is; its parameters are float32.
    norm = struct.dtype == jnp.float32 and size > 1
    return [st.integers(0, 3).map(linear)] + [st.just(eqx.nn.LayerNorm(size))] * norm


@typing.overload
def register_stage(make: Make, *, random: bool = False) -> Make: ...
@typing.overload
def register_stage(
    make: None = None, *, random: bool = False
) -> Callable[[Make], Make]: ...
def register_stage(
    make: Make | None = None, *, random: bool = False
) -> Make | Callable[[Make], Make]:
    """Makes your own stages known, so that `stages` and `pipelines` use them.

    **Arguments:**

    - `make`: a function `make(struct)` of the input's shapes and dtypes. It returns a
      strategy of stages that keep `struct` (what comes out is like what goes in), or
      None if there are none for it. Registering another of the same name replaces it.
    - `random`: whether the stages need a key. (Keyword only.)

    **Returns:** `make`, so that it can be a decorator.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `make` is no
    function, or, when drawn, gives no strategy.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> import hypothesis.strategies as st, jax.tree_util as jtu
        >>> class Scale(ep.Stage):
        ...     factor: float
        ...     def __call__(self, x, *, key=None):
        ...         return jtu.tree_map(lambda v: v * self.factor, x)
        >>> @ept.register_stage
        ... def scales(struct):
        ...     return st.builds(Scale, st.sampled_from([0.5, 2.0]))
        >>> ept.unregister_stage(scales)
    """
    check_bool("register_stage", "random", random)
    if make is None:
        return ft.partial(register_stage, random=random)
    if isinstance(make, type) or not callable(make):
        raise invalid(
            "register_stage",
            f"`make` is {describe_value(make)}.",
            "Give a function from a struct to a strategy: `register_stage(lambda "
            "struct: st.builds(MyStage, ...))`.",
        )
    _registered[_name(make)] = (make, random)
    return make


def unregister_stage(make: Maker) -> None:
    """Takes back a `register_stage`.

    **Arguments:**

    - `make`: the function that was registered.

    **Raises:** `hypothesis.errors.InvalidArgument` if it is not.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis.strategies as st, jax
        >>> make = ept.register_stage(lambda struct: st.just(jax.numpy.tanh))
        >>> ept.unregister_stage(make)
    """
    if _registered.pop(_name(make), None) is None:
        raise invalid(
            "unregister_stage",
            f"`make` is {describe_value(make)}, which is not registered.",
            "Give the function that was given to `register_stage`.",
        )


def _own(struct: PyTree, random: bool) -> list[st.SearchStrategy]:
    """Strategies of the registered stages that take `struct`."""
    made = {
        name: make(struct)
        for name, (make, draws) in _registered.items()
        if random or not draws
    }
    for name, strategy in made.items():
        if not isinstance(strategy, st.SearchStrategy | None):
            raise invalid(
                "register_stage",
                f"`{name}` returned {describe_value(strategy)} for `struct`.",
                "Return a strategy of stages, or None if there are none for it.",
            )
    return [strategy for strategy in made.values() if strategy is not None]


def _name(make: Maker) -> str:
    module = getattr(make, "__module__", "")
    return f"{module}.{getattr(make, '__qualname__', repr(make))}"
