"""A stage that takes its inputs from a mapping, by name."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._check import check_name
from .._stage import Composite, Scope, as_stage, enter
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .named import look_up


class Feed(Composite):
    """A stage fed from a mapping; see `feed`."""

    stage: AnyStage
    inputs: tuple[str, ...] = eqx.field(static=True)
    # Pairs of an input's name in the stage and its name in the mapping.
    keywords: tuple[tuple[str, str], ...] = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def with_child(self, segment: str, stage: StageLike) -> "Feed":
        return feed(stage, *self.inputs, **dict(self.keywords))

    def settings(self) -> dict[str, Any]:
        return {"inputs": [*self.inputs, *(f"{k}={n}" for k, n in self.keywords)]}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        given = look_up("feed", [*self.inputs, *dict(self.keywords).values()], x, scope)
        args = [given[name] for name in self.inputs]
        named = {keyword: given[name] for keyword, name in self.keywords}
        return enter(scope, "stage", self.stage, *args, state=state, named=named)


def feed(stage: StageLike, *inputs: str, **keywords: str) -> Feed:
    """Call a stage with some entries of a mapping.

    A layer or function of several inputs gets them by position and by keyword. A
    pipeline takes one input: the entry listed by position, or one mapping of all
    entries listed by keyword.

    **Arguments:**

    - `stage`: the stage. Its path is `stage`.
    - `inputs`: the names of entries that are passed by position. A name may be
        repeated.
    - `keywords`: the names of entries that are passed by keyword: `mask="padding"`
        passes the entry `padding` as `mask`. (Keyword only.)

    **Returns:** a stage that takes a mapping, and returns the output of `stage`. It
    ignores entries that are not listed.

    **Raises:**

    - `TypeError` if the stage cannot be called with such inputs.
    - `StructureError` (a `ValueError`), when called, if the mapping lacks one of the
      entries.

    **Laws:** `feed(f, "x")` is `at("x", f)` followed by the entry `x`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> attention = eqx.nn.MultiheadAttention(2, 4, key=jr.key(0))
        >>> attend = ep.feed(attention, "x", "x", "x", mask="mask")
        >>> attend({"x": jnp.ones((3, 4)), "mask": jnp.tri(3, dtype=bool)}).shape
        (3, 4)
    """
    for argument, names in (("inputs", inputs), ("keywords", keywords.values())):
        for name in names:
            check_name("feed", argument, name)
    by = [f"`{name}`" for name in inputs]
    by += [f"`{keyword}={name}`" for keyword, name in keywords.items()]
    module = as_stage(
        "feed",
        "stage",
        stage,
        "Name the inputs in the order in which the stage takes them, or by its names: "
        '`feed(layer, "x", mask="mask")`; those of a pipeline by its names alone: '
        '`feed(pipe, x="x", mask="mask")`.',
        num_inputs=len(inputs),
        named=tuple(keywords),
        given=", ".join(by) or "no input",
    )
    return Feed(module, inputs, tuple(keywords.items()))
