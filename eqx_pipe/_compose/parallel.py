"""Several stages on the same input."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._check import check_draws_apart
from .._errors import message
from .._stage import Scope, as_stage, enter
from .._tree import join_path
from .._types import PyTree, StageLike
from .container import Container
from .merge import check_axis, check_merge, merge_outputs, one_place
from .named import Names, read_stages


class Parallel(Container):
    """Stages side by side; see `parallel`."""

    stages: tuple[Any, ...]
    names: Names = eqx.field(static=True)
    merge: Any  # the stage, where a callable was given
    builtin: str | None = eqx.field(static=True)
    axis: int = eqx.field(static=True)

    def children(self) -> Mapping[str, Any]:
        branches = dict(zip(map(str, self.segments), self.stages, strict=True))
        return branches if self.builtin else {**branches, "merge": self.merge}

    def settings(self) -> dict[str, Any]:
        if self.builtin in ("concat", "stack"):
            return {"merge": self.builtin, "axis": self.axis}
        return {"merge": self.builtin} if self.builtin else {}

    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        outputs = []
        for segment, stage in zip(self.segments, self.stages, strict=True):
            y, state = enter(scope, segment, stage, x, state=state)
            outputs.append(y)
        if self.builtin is None:
            return enter(scope, "merge", self.merge, tuple(outputs), state=state)
        names = [str(segment) for segment in self.segments]
        paths = [join_path(scope.path, name) for name in names]
        with one_place("parallel"):
            y = merge_outputs(
                "parallel", self.builtin, self.axis, names, paths, outputs
            )
        return y, state


def parallel(
    *stages: StageLike | Mapping[str, StageLike],
    merge: str | StageLike = "concat",
    axis: int = -1,
) -> Parallel:
    """Applies all stages to the same input and merges their outputs.

    A built-in merge acts leaf by leaf:

    - `"concat"` joins along `axis`, `"stack"` along a new `axis`;
    - `"sum"`, `"mean"`, `"max"`, `"min"`, `"prod"` are accumulated one by one (`a + b +
      c`, never stacked), in the dtype that `jnp.sum`, ... would give;
    - `"tuple"` gives the tuple of outputs, `"dict"` a dict by the stages' names.

    Stages are given by position, or in one mapping from names to stages, which then are
    their paths; every merge takes either, but for `"dict"`, which needs the names. The
    default is `"concat"` for both. A state is handed through the stages in the order
    written, so no update is lost.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `merge`: the name of a built-in merge, or a callable on the tuple of outputs: a
        function or a module, which may have parameters. Its path is `merge`. (Keyword
        only.)
    - `axis`: the axis of `"concat"` and `"stack"`; a negative one counts from the end.
        (Keyword only.)

    **Returns:** a stage, a container as a `chain` is.

    **Raises:**

    - `ValueError` if there is no stage, `merge` is unknown, a name is not usable, or
      `merge="dict"` has no names; when called, if `axis` is out of range.
    - `TypeError` if something is not a stage, or a mapping is given with more stages;
      when called, if the merge cannot act on a leaf (text, keys).
    - `StructureError` (a `ValueError`), when called, if outputs disagree in structure,
      shape or dtype; names both stages and the leaf.

    **Laws:** the projection of `merge="tuple"` to part `i` is stage `i`; `"sum"`,
    `"prod"`, `"max"`, `"min"` and `"mean"` do not depend on the order of the stages.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.parallel(jnp.sin, jnp.cos, merge="stack")(jnp.zeros(2)).tolist()
        [[0.0, 1.0], [0.0, 1.0]]
        >>> pipe = ep.parallel({"low": jnp.min, "high": jnp.max}, merge="dict")
        >>> {k: v.item() for k, v in pipe(jnp.arange(3)).items()}, len(pipe)
        ({'low': 0, 'high': 2}, 2)
    """
    check_axis("parallel", axis)
    check_merge("parallel", merge)
    names, children = read_stages("parallel", "stages", stages)
    builtin = merge if isinstance(merge, str) else None
    if builtin == "dict" and names is None:
        raise ValueError(
            message(
                "parallel",
                f'`merge="dict"`, and the {len(children)} stages have no names.',
                "Give them in one mapping from names to stages, or use "
                '`merge="tuple"`.',
            )
        )
    if builtin is None and "merge" in (names or ()):
        raise ValueError(
            message(
                "parallel",
                "a stage has the name `merge`, which is that of the callable `merge`.",
                "Rename the stage.",
            )
        )
    if builtin is None:
        check_draws_apart("parallel", (*(names or ()), "merge"))
    return Parallel(
        children,
        names,
        None if builtin else as_stage("parallel", "merge", merge),
        builtin,
        axis.__index__(),
    )
