"""Random axes: draws of values, and replicates."""

import functools as ft
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Int

from .._check import check_choice
from .._errors import describe_value, type_error
from .._types import Key, PyTree
from .axis import Axis, check_length, needs_space_key

Sampler: TypeAlias = Callable[[Key, tuple[int, ...]], PyTree] | Any
"""A function of a key and a shape, or an object with a method `sample` of both."""


class Random(Axis):
    r"""Independent random values.

    Value `i` is `sampler(fold_in(axis_key, i), ())`, where `axis_key` is made from the
    key of the space and the path of the axis. So more values or more axes never change
    the other draws, and a value has the same key, and is equal to rounding, wherever it
    is computed.

    **Arguments:**

    - `sampler`: a function `(key, shape) -> Array` such as `jax.random.normal`, or an
      object with a method `sample(key, sample_shape)` such as a NumPyro distribution.
      It is called with the shape `()`. A sweep is not recompiled if arrays in it
      change.
    - `num`: the number of values, at least 1.
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `TypeError` if `sampler` is neither kind of object; `ValueError`
    if `num` is not between 1 and `2**31 - 1`; a `MissingKeyError` (a `ValueError`) from
    `Space` if the space has no key.

    **Laws:** a longer axis begins with the values of a shorter one.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> tree = {"noise": ep.Random(jax.random.normal, 3)}
        >>> space = ep.Space(tree, key=jax.random.key(0))
        >>> [round(point["noise"].item(), 2) for point in space]
        [0.17, -1.89, 1.18]
    """

    needs_key: ClassVar[bool] = True

    sampler: Sampler
    num: int = eqx.field(static=True, converter=ft.partial(check_length, "Random"))
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self) -> None:
        sampler = self.sampler
        if isinstance(sampler, type) or not (
            callable(sampler) or hasattr(sampler, "sample")
        ):
            raise type_error(
                "Random",
                f"`sampler` is {describe_value(sampler)}.",
                "Give a function of `(key, shape)` such as `jax.random.normal`, "
                "or an object with `.sample(key, sample_shape)`.",
            )

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> PyTree:
        if key is None:
            # The name of an axis that is the whole space.
            raise needs_space_key("x")
        # A distribution may also be callable, with another meaning.
        sample: Any = getattr(self.sampler, "sample", self.sampler)
        return sample(jr.fold_in(key, i), ())

    def __repr__(self) -> str:
        name = getattr(self.sampler, "__name__", type(self.sampler).__name__)
        return f"Random({name}, {self.num}{self._dim_text})"


Draws = Literal["common", "independent"]
"""The draws of a replicate: the same at each point of the grid, or independent."""


class Seeds(Axis):
    r"""Replicates: repeats each point of the other axes `num` times, with new draws.

    The value is the number of the replicate, from 0 to `num - 1`; draws come from the
    `key` of the sweep. With common draws, the key of a point depends on its replicate
    alone, so points are compared under the same noise (common random numbers), and
    differences between them show with far fewer replicates.

    **Arguments:**

    - `num`: the number of replicates, at least 1.
    - `draws`: `"common"` (the default), the same draws at each point of the other
      axes, or `"independent"`, different draws at each. If a space has several axes of
      replicates, draws are common if they are common for one of them. (Keyword only.)
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: texts for plots and for xarray's attributes `long_name` and
      `units`. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if `num` is not between 1 and `2**31 - 1`, or for any other
    value of `draws`; `TypeError` if `num` is not an integer.

    **Laws:** with common draws `space.point_key(i, key=key)` is `key` folded with the
    positions on the dims of replicates alone; with independent draws, and without
    replicates, with those on all dims. More replicates change no draw.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> space = {"mean": ep.Values([0.0, 5.0]), "seed": ep.Seeds(3)}
        >>> def draw(p, key):
        ...     return p["mean"] + jax.random.normal(key)
        >>> low, high = ep.sweep(draw, space, key=jax.random.key(0)).grid()
        >>> (high - low).round(3).tolist()
        [5.0, 5.0, 5.0]
    """

    num: int = eqx.field(static=True, converter=ft.partial(check_length, "Seeds"))
    draws: Draws = eqx.field(default="common", static=True, kw_only=True)
    dim: str | None = eqx.field(default=None, static=True, kw_only=True)

    def __check_init__(self) -> None:
        check_choice("Seeds", "draws", self.draws, ("common", "independent"))

    @property
    def replicates(self) -> Draws:
        return self.draws

    def __len__(self) -> int:
        return self.num

    def value(self, i: Int[Array, ""], key: Key | None) -> Int[Array, ""]:
        return i

    def __repr__(self) -> str:
        draws = "" if self.draws == "common" else ", draws='independent'"
        return f"Seeds({self.num}{draws}{self._dim_text})"
