"""Stages whose output is added to their input."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import describe_value, type_error, value_error
from .._stage import Items, Own, Scope, as_stage, enter
from .._stage.parent import reads_of
from .._tree import as_arrays, join_path, leaf_text, leaves_with_names, of_leaf
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_reserved, named_items, read_stages
from .merge import check_agree, check_arrays, on_one_device_set
from .named import check_over, in_order, named_over

_RESERVED = ("drop", "skip")


class Residual(Container):
    """Stages round which their input is led; see `residual`."""

    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    skip: AnyStage | None
    drop: eqx.nn.Dropout | None
    over: str | None = eqx.field(static=True, default=None)

    def settings(self) -> dict[str, Any]:
        return {} if self.over is None else {"over": self.over}

    def children(self) -> Mapping[str, AnyStage]:
        both: dict[str, Any] = {"drop": self.drop, "skip": self.skip}
        given = {name: stage for name, stage in both.items() if stage is not None}
        return {**super().children(), **given}

    def reads(self) -> frozenset[str]:
        stages = self.stages[:1] if self.over is None else self.stages
        return named_over(self.over) | reads_of(*stages, self.skip)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        over = self.over
        y, state = in_order("residual", self.items(), over, x, state, scope)
        skipped = x if over is None else x[over]
        if self.skip is not None:
            skipped, state = enter(scope, "skip", self.skip, x, state=state)
        last = join_path(scope.path, self.keys()[-1])
        straight = join_path(scope.path, "skip")
        paths, both = (straight, last), (as_arrays(skipped), as_arrays(y))
        for path, tree in zip(paths, both, strict=True):
            check_arrays(
                "residual",
                path,
                tree,
                "which cannot be added",
                "Apply `residual` to the other parts only, by `eqx_pipe.at`.",
            )
        check_agree("residual", paths, both, cure=", or by `skip=` a projection.")
        skipped, y = both
        if self.drop is not None:
            # One number for all: none of what the stages give, or all of it, enlarged.
            factor, state = enter(scope, "drop", self.drop, jnp.ones(()), state=state)
            y = _scaled(y, factor, last)
        with on_one_device_set("residual"):
            return jtu.tree_map(jnp.add, skipped, y), state

    def with_items(self, items: Items, own: Own) -> "Residual":
        new = residual(*named_items(items), skip=self.skip, over=self.over)
        # The layer itself, since `inference_mode` may have changed it.
        return dataclasses.replace(new, drop=self.drop)


def _scaled(tree: PyTree, factor: Any, path: str) -> PyTree:
    for name, leaf in leaves_with_names(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise type_error(
                "residual",
                f"{of_leaf(name)}the output of `{path}` is {leaf_text(leaf)}, which "
                "`drop_rate` cannot scale.",
                "Let the stages give floating-point numbers, or drop none of it.",
            )
    return jtu.tree_map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)


def residual(
    *stages: StageLike | Mapping[str, StageLike],
    skip: StageLike | None = None,
    drop_rate: float = 0.0,
    over: str | None = None,
) -> Residual:
    r"""Adds what some stages make of the input to the input: $x + f(x)$.

    The stages are applied left to right, as in a `chain`; so a norm before is just the
    first of them, `residual(norm, attention)`, and one behind stands behind the whole,
    `chain(residual(attention), norm)`. Stages draw as in a `chain`.

    With a `drop_rate` $p$ (stochastic depth) all that the stages give is left out with
    this probability, and otherwise divided by $1 - p$, so that the mean stays. The draw
    is one for the whole input: inside of `batched` each example has its own. With
    `equinox.nn.inference_mode` nothing is left out, and nothing drawn.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `skip`: a stage on the way past the others, on the same input; for instance a
        projection to the shape of their output. By default the input itself. Draws by
        its name. (Keyword only.)
    - `drop_rate`: the probability with which the stages are left out, from 0 up to
        but not including 1. (Keyword only.)
    - `over`: the name of the entry that is led round the stages, if they take a mapping
        of several inputs, as in `chain`. (Keyword only.)

    **Returns:** a stage, a container as a `chain` is.

    **Shapes:** the stages and `skip` give the same structure, shapes and dtypes;
    nothing is broadcast.

    **Raises:**

    - `ValueError` if there is no stage, a name is not usable, or `drop_rate` is out of
      range.
    - `TypeError` if something is not a stage, or a number; when called, if something
      cannot be added (text, keys), or integers are to be left out.
    - `StructureError` (a `ValueError`), when called, if input and output differ; names
      the leaf.

    **Laws:** `residual(f)` is `parallel(identity, f, merge="sum")` for deterministic
    stages; `residual(f, g)` is `residual(chain(f, g))`, also with the same `over`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> ep.residual(jnp.square)(jnp.arange(3.0)).tolist()
        [0.0, 2.0, 6.0]
        >>> wider = eqx.nn.Linear(3, 5, key=jr.key(0))
        >>> ep.residual(eqx.nn.LayerNorm(3), wider, skip=wider)(jnp.ones(3)).shape
        (5,)

    ??? cite "Source"

        He et al., *Deep Residual Learning for Image Recognition*, 2015, arXiv
        1512.03385. Huang et al., *Deep Networks with Stochastic Depth*, 2016, arXiv
        1603.09382, scale in inference; we scale in training, as dropout does.
    """
    check_over("residual", over)
    names, children = read_stages("residual", "stages", stages)
    check_reserved("residual", names, _RESERVED)
    if isinstance(drop_rate, bool) or not isinstance(drop_rate, float | int):
        raise type_error(
            "residual",
            f"`drop_rate` is {describe_value(drop_rate)}.",
            "Give a number from 0 up to, but not including, 1.",
        )
    if not 0 <= drop_rate < 1:
        raise value_error(
            "residual",
            f"`drop_rate` is {drop_rate}.",
            "Give a probability from 0 up to, but not including, 1.",
        )
    straight = None if skip is None else as_stage("residual", "skip", skip)
    drop = eqx.nn.Dropout(drop_rate) if drop_rate else None
    return Residual(children, names, straight, drop, over)
