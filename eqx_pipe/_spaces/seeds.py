"""An axis of replicates: the same point again, with other draws."""

from typing import Literal, SupportsIndex

import equinox as eqx
from jaxtyping import Array, Int

from .._check import check_choice
from .._types import Key
from .axis import Named, NamedAxis, check_dim, check_length, dim_text

Draws = Literal["common", "independent"]
"""Whether a replicate draws the same at each point of the grid, or its own."""


class Seeds(NamedAxis):
    r"""Replicates: each point of the other axes `n` times, with other draws each time.

    The value is the number of the replicate; draws come from the `key` of the sweep, as
    ever. With common draws the key of a point is that of its replicate, whatever the
    other axes: so points are compared under the same noise (common random numbers),
    and differences between them are seen with far fewer replicates.

    **Arguments:**

    - `n`: how many replicates, at least 1.
    - `draws`: `"common"`, the same draws at each point of the other axes, or
      `"independent"`, other draws at each. With several axes of replicates in a space,
      draws are common if they are for one of them. (Keyword only.)
    - `dim`: the dimension's name; axes with the same `dim` vary together. By default
      the axis's path in the space. (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values. They change nothing else. (Keyword only.)

    **Raises:** `ValueError` if `n` is not between 1 and `2**31 - 1`, and for other
    `draws`.

    **Laws:** with common draws `space.point_key(i, key=key)` is `key` folded with the
    positions on the dims of replicates alone; with own draws, and without replicates,
    with those on all dims. More replicates change no draw.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> space = {"mean": ep.Values([0.0, 5.0]), "seed": ep.Seeds(3)}
        >>> def draw(p, key):
        ...     return p["mean"] + jax.random.normal(key)
        >>> low, high = ep.sweep(draw, space, key=jax.random.key(0)).grid()
        >>> (high - low).round(3).tolist()
        [5.0, 5.0, 5.0]
    """

    n: int = eqx.field(static=True)
    draws: Draws = eqx.field(static=True)
    dim: str | None = eqx.field(static=True)

    def __init__(
        self,
        n: SupportsIndex,
        *,
        draws: Draws = "common",
        dim: str | None = None,
        label: str | None = None,
        unit: str | None = None,
    ):
        check_choice("Seeds", "draws", draws, ("common", "independent"))
        self.n = check_length("Seeds", n)
        self.draws = draws
        self.dim = check_dim("Seeds", dim)
        self.named: Named = Named("Seeds", label, unit)

    @property
    def replicates(self) -> Draws:
        return self.draws

    def __len__(self) -> int:
        return self.n

    def value(self, i: Int[Array, ""], key: Key | None) -> Int[Array, ""]:
        return i

    def __repr__(self) -> str:
        own = "" if self.draws == "common" else ", draws='independent'"
        return f"Seeds({self.n}{own}{dim_text(self.dim)})"
