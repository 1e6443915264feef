"""Designs: few points that fill a space of many dimensions evenly."""

from typing import SupportsIndex

from .._errors import optional
from .._keys import check_key, seed_of
from .._types import Key
from .axis import check_dim, check_length
from .space import Space, SpaceLike, as_space


def sobol(
    space: SpaceLike,
    num: SupportsIndex,
    *,
    key: Key | None = None,
    dim: str | None = None,
) -> Space:
    """Return the first `num` points of a scrambled Sobol sequence in a space.

    A longer sequence begins with the points of a shorter one. Points are spread most
    evenly if `num` is a power of 2.

    **Arguments:**

    - `space`: a space, or a pytree with axes. Values are chosen as by
      `Space.from_unit`: any number of a `Uniform`, evenly in the logarithm for a
      `LogUniform`, and one of the values of a `Values` or `Static` axis.
    - `num`: the number of points, at least 1 and at most `2**30`.
    - `key`: a PRNG key for the scrambling; without one it is always the same. (Keyword
      only.)
    - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
      combined with other axes in a space. (Keyword only.)

    **Returns:** a `Space` with one dim, by default `point`. For whole numbers, round
    the values of a range: `Mapped(jnp.round, Uniform(2, 8))`.

    **Raises:** `ValueError` if `num` is out of range, if there is no axis, or if two
    axes vary together; `TypeError` if `num` is not an integer or `key` not a PRNG key.

    !!! example

        >>> import eqx_pipe as ep
        >>> box = {"rate": ep.LogUniform(1e-4, 1e-1), "depth": ep.Values([2, 4, 8])}
        >>> ep.sobol(box, 16).dims
        {'point': 16}
        >>> tree = ep.sobol(box, 16, dim="design").tree
        >>> ep.Space({**tree, "seed": ep.Seeds(2)}).dims
        {'design': 16, 'seed': 2}

    ??? cite "Source"

        Sobol (1967), scrambled after Matousek (1998), as in `scipy.stats.qmc.Sobol`.
    """
    space, n = as_space("sobol", space), _checked("sobol", num, key, dim)
    # Draw a power of 2 and drop the rest, since SciPy warns about other numbers.
    qmc = optional("sobol", "scipy.stats.qmc")  # takes half a second, so only here
    sampler = qmc.Sobol(len(space.names), seed=seed_of(key))
    return space.from_unit(sampler.random_base2((n - 1).bit_length())[:n], dim=dim)


def latin_hypercube(
    space: SpaceLike,
    num: SupportsIndex,
    *,
    key: Key | None = None,
    dim: str | None = None,
) -> Space:
    """Return a Latin hypercube of `num` points in a space.

    If each axis is cut into `num` equal parts, every part contains exactly one point.

    **Arguments:**

    - `space`: as for `sobol`.
    - `num`: the number of points, at least 1.
    - `key`: a PRNG key for the draws; without one they are always the same. (Keyword
      only.)
    - `dim`: as for `sobol`. (Keyword only.)

    **Returns:** a `Space` with one dim, by default `point`.

    **Raises:** as `sobol`.

    !!! example

        >>> import eqx_pipe as ep
        >>> box = {"a": ep.Uniform(0, 4), "b": ep.Uniform(-1, 1)}
        >>> sorted(int(point["a"]) for point in ep.latin_hypercube(box, 4))
        [0, 1, 2, 3]

    ??? cite "Source"

        McKay, Beckman, Conover (1979), as in `scipy.stats.qmc.LatinHypercube`.
    """
    space = as_space("latin_hypercube", space)
    n = _checked("latin_hypercube", num, key, dim)
    qmc = optional("latin_hypercube", "scipy.stats.qmc")
    sampler = qmc.LatinHypercube(len(space.names), seed=seed_of(key))
    return space.from_unit(sampler.random(n), dim=dim)


def _checked(
    function: str, num: SupportsIndex, key: Key | None, dim: str | None
) -> int:
    check_dim(function, dim)
    check_key(function, key)
    return check_length(function, num)
