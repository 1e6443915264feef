"""An axis of random draws."""

from collections.abc import Callable
from typing import Any, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Int

from .._errors import describe_value, type_error
from .._types import Key, PyTree
from .axis import (
    MissingAxisKey,
    Named,
    NamedAxis,
    check_dim,
    check_length,
    dim_text,
)


@runtime_checkable
class Distribution(Protocol):
    """What has draws, such as a distribution of NumPyro."""

    def sample(self, key: Key, sample_shape: tuple[int, ...], /) -> PyTree:
        """Draws of the given shape."""
        ...


Sampler: TypeAlias = Callable[[Key, tuple[int, ...]], PyTree] | Distribution
"""What values are drawn by: a function of a key and a shape, or a distribution."""


class Random(NamedAxis):
    r"""Independent random values.

    Value `i` is `sampler(fold_in(axis_key, i), ())`, where `axis_key` is made from the
    key of the space and the path of the axis. So more values, or more axes, never
    redraw the others, and wherever a value is computed it has the same key, and is
    the same to rounding.

    **Arguments:**

    - `sampler`: a function `(key, shape) -> Array` such as `jax.random.normal`, or an
      object with a method `sample(key, sample_shape)` such as a NumPyro distribution.
      It is called with the shape `()`. Arrays in it may change without compiling a
      sweep again.
    - `n`: how many values, at least 1.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space.
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Raises:** `TypeError` if `sampler` can neither be called nor sampled; `ValueError`
    if `n` is not between 1 and `2**31 - 1`; a `MissingKeyError` (a `ValueError`) from
    `Space` if the space has no key.

    **Laws:** `Random(sampler, m)` is the beginning of `Random(sampler, n)` for m < n.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> tree = {"noise": ep.Random(jax.random.normal, 3)}
        >>> space = ep.Space(tree, key=jax.random.key(0))
        >>> [round(point["noise"].item(), 2) for point in space]
        [0.17, -1.89, 1.18]
    """

    sampler: Sampler
    n: int = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __init__(
        self,
        sampler: Sampler,
        n: SupportsIndex,
        dim: str | None = None,
        *,
        label: str | None = None,
        unit: str | None = None,
    ):
        self.n = check_length("Random", n)
        self.dim = check_dim("Random", dim)
        self.named: Named = Named("Random", label, unit)
        if isinstance(sampler, type) or not (
            callable(sampler) or hasattr(sampler, "sample")
        ):
            raise type_error(
                "Random",
                f"`sampler` is {describe_value(sampler)}.",
                "Give a function of `(key, shape)` such as `jax.random.normal`, "
                "or an object with `.sample(key, sample_shape)`.",
            )
        self.sampler = sampler

    @property
    def needs_key(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.n

    def value(self, i: Int[Array, ""], key: Key | None) -> PyTree:
        if key is None:
            # By itself it is called as an axis that is the whole space.
            raise MissingAxisKey("x")
        # A distribution may be callable too, and mean something else by it.
        sample: Any = getattr(self.sampler, "sample", self.sampler)
        return sample(jr.fold_in(key, i), ())

    def __repr__(self) -> str:
        name = getattr(self.sampler, "__name__", type(self.sampler).__name__)
        return f"Random({name}, {self.n}{dim_text(self.dim)})"
