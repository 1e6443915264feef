"""Stages one after the other."""

import equinox as eqx

from .._errors import quoted, type_error
from .._stage import Canvas, Scope, Wire, as_stage
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, keyed, read_names
from .feed import check_over, in_order


class Chain(Container):
    """Stages left to right; see `chain`."""

    fewest = 0

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    over: str | None = eqx.field(static=True, default=None)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return in_order("chain", keyed(self), self.over, x, state, scope)

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        ends = [wire]
        for segment, stage in keyed(self):
            ends = [canvas.stage(path, str(segment), stage, *ends)]
            if self.over is not None:  # each also gets what the chain got
                ends.append(wire)
        return ends[0]


def chain(*stages: StageLike, over: str | None = None, **named: StageLike) -> Chain:
    """Apply stages left to right.

    `chain()` is the identity. The stages are given by position, or by name as
    keywords, not both. Positions and names are the paths in errors and `outputs`, and
    decide the random draws: stage `i` draws from `fold_in(key, i)`, a named stage from
    `fold_in(key, crc32(name))`.

    With `over`, the chain and each of its stages take a mapping of several inputs. The
    output of each stage replaces the entry named `over` for the next stage; the other
    entries (a mask, a time embedding) do not change.

    **Arguments:**

    - `stages`: any number of stages.
    - `over`: the name of the entry that the stages replace in turn. (Keyword only.)
    - `named`: the stages by name, instead of `stages`. (Keyword only.)

    **Returns:** a stage. It has a length, can be iterated, indexed by position or name,
    and sliced (the slice is a chain); `in` takes a name, and `keys()`, `values()` and
    `items()` work as for a dict.

    **Raises:**

    - `TypeError` if something is not a stage, positions and names are mixed, or `over`
      is not a string.
    - `ValueError` if a name is invalid, or two names have the same CRC-32, so that both
      would draw the same numbers.

    **Laws:** `chain(f, chain(g, h))`, `chain(chain(f, g), h)` and `chain(f, g, h)`
    agree for deterministic stages; `chain(f)` is `f`. The same holds with `over`;
    `chain(over="x")` returns the entry `x`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(wave=jnp.sin, total=jnp.sum)
        >>> round(pipe(jnp.arange(3.0)).item(), 3)
        1.751
        >>> len(pipe), pipe["wave"](jnp.zeros(())).item()
        (2, 0.0)
        >>> scale = ep.feed(jnp.multiply, "x", "by")
        >>> ep.chain(scale, scale, over="x")({"x": 3.0, "by": 2.0}).item()
        12.0
    """
    check_over("chain", over)
    if stages and named:
        raise type_error(
            "chain",
            f"mixes {len(stages)} positional stage{'s' * (len(stages) != 1)} with "
            f"named stages ({quoted(named)}).",
            "Give all stages by position, or all by name.",
        )
    names = read_names("chain", "named", named) if named else None
    given = named or {f"stages[{i}]": stage for i, stage in enumerate(stages)}
    read = tuple(as_stage("chain", n, s) for n, s in given.items())
    return Chain(read, names, over)
