"""One parameter, or one stage, in several places of a pipeline."""

from collections.abc import Callable, Collection, Mapping
from typing import cast

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array

from .._errors import bullets, describe_value, structure_error, type_error, value_error
from .._jaxprs.flow import Flow
from .._jaxprs.jaxpr import trace
from .._stage import (
    Composite,
    Items,
    Listed,
    Own,
    Scope,
    Stage,
    as_stage,
    call,
    is_stateful,
)
from .._stage.parent import reads_of
from .._tree import differences
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike


class Elsewhere(Stage):
    """Stands where a part was given away, like `SharedNode` in `equinox.nn.Shared`.

    It is a stage, as what it stands for may be, and has a leaf, by which
    `equinox.tree_at` finds it.
    """

    leaf: object

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        raise RuntimeError(
            "this part of a pipeline is tied to another: call the stage that "
            "`eqx_pipe.tied` gave, or its `.pipe`."
        )


_ELSEWHERE = Elsewhere("tied")


class Tied(Composite):
    """A pipeline, some parts of which are others of its parts; see `tied`."""

    kept: AnyStage  # the pipeline without what was given away
    where: Callable[[PyTree], PyTree]
    get: Callable[[PyTree], PyTree]

    @property
    def pipe(self) -> AnyStage:
        """The pipeline with the tied parts in all their places."""
        return eqx.tree_at(self.where, self.kept, self.get(self.kept))

    def children(self) -> Mapping[str, AnyStage]:
        """Those of the pipeline, for which this stage stands."""
        if not (callable(self.where) and callable(self.get)):  # a tree of masks, say
            return self.held_children()
        pipe = self.pipe
        return pipe.children() if isinstance(pipe, Composite) else {}

    def held_children(self) -> Mapping[str, AnyStage]:
        return self.kept.children() if isinstance(self.kept, Composite) else {}

    def held_child(self, segment: str) -> AnyStage:
        return self.held_children()[segment]

    def admit(self, segment: str, stage: StageLike) -> AnyStage:
        return self._listed().admit(segment, stage)

    def with_child(self, segment: str, stage: AnyStage) -> "Tied":
        return self._edited(self._listed().with_child(segment, stage))

    def with_inserted(
        self, new: Items, beside: str | None, after: bool, own: Own
    ) -> "Tied":
        return self._edited(self._listed().with_inserted(new, beside, after, own))

    def without(self, segments: Collection[str], own: Own) -> "Tied":
        return self._edited(self._listed().without(segments, own))

    def with_name(self, segment: str, name: str) -> "Tied":
        return self._edited(self._listed().with_name(segment, name))

    def holds(self) -> tuple[str, ...]:
        return self._listed().holds()

    def _listed(self) -> Listed:
        if not isinstance(self.kept, Listed):
            self.listed()  # which raises
        return cast(Listed, self.kept)

    def _edited(self, kept: Listed) -> "Tied":
        """The same parts tied in an edited pipeline; raises unless they are there."""
        try:
            away, used = self.where(kept), _used(self.get, kept)
        # Whatever it raises, the parts are not where they were.
        except Exception:
            away, used = None, set()
        parts = jtu.tree_leaves(away, is_leaf=_is_elsewhere)
        here = {id(leaf) for leaf in jtu.tree_leaves(kept)}
        lost = (_used(self.get, self.kept) & here) - used
        if lost or not parts or not all(map(_is_elsewhere, parts)):
            raise value_error(
                "tied",
                "after this edit `where` or `get` would not name the parts that they "
                "named before.",
                "Edit the pipeline, `.pipe`, and tie its parts again.",
            )
        return Tied(cast(AnyStage, kept), self.where, self.get)

    def reads(self) -> frozenset[str]:
        return reads_of(self.kept)

    def is_stateful(self) -> bool:
        return is_stateful(self.pipe)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return call(self.pipe, (x,), state, scope)


def tied(
    pipe: StageLike,
    where: Callable[[PyTree], PyTree],
    get: Callable[[PyTree], PyTree],
) -> Tied:
    """Ties parts of a pipeline to other parts of it: there is one of them.

    A pipeline is a tree, so the same layer in two places of it is two layers, equal at
    first and then trained apart. What is tied is kept once, in the place that `get`
    names. Its gradient is the sum over all places; files, counts of parameters and
    optimisers know of one.

    **Arguments:**

    - `pipe`: the pipeline.
    - `where`: a function from the pipeline to the part, or a tuple of parts, that is
        given away, as for `equinox.tree_at`: a parameter, or a whole stage.
    - `get`: a function from the pipeline to what stands there instead, computed at each
        call; a part, or what is made of one (`jnp.transpose(...)`).

    **Returns:** a stage with the paths and draws of `pipe`. Its `.pipe` is the
    pipeline with all parts in place; to set one of them, set it in `.kept`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage, or `where` or `get` no function.
    - `StructureError` (a `ValueError`) if the two differ in structure, shape or dtype.
    - `ValueError` if one of them fails, or `get` names what `where` gives away.

    **Laws:** it is `pipe` in which the parts are equal, and stays so when trained.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> a, b = jr.split(jr.key(0))
        >>> pipe = ep.tied(
        ...     ep.chain(embed=eqx.nn.Embedding(9, 4, key=a),
        ...              head=eqx.nn.Linear(4, 9, use_bias=False, key=b)),
        ...     where=lambda pipe: pipe["head"].weight,
        ...     get=lambda pipe: pipe["embed"].weight)
        >>> pipe(jnp.array(3)).shape, ep.describe(pipe)["parameters"]["count"]
        ((9,), 36)

    ??? cite "Source"

        Press and Wolf, *Using the Output Embedding to Improve Language Models*, 2017,
        arXiv 1608.05859. For plain modules there is `equinox.nn.Shared`.
    """
    stage = as_stage("tied", "pipe", pipe)
    for argument, given in (("where", where), ("get", get)):
        if not callable(given):
            raise type_error(
                "tied",
                f"`{argument}` is {describe_value(given)}.",
                'Give a function of the pipeline: `lambda pipe: pipe["head"].weight`.',
            )
    found = [
        _asked("where", where, stage),
        _asked("get", get, stage),
    ]
    lines = differences(*found)
    if lines:
        raise structure_error(
            "tied",
            "what `where` names and what `get` gives differ; first what `where` names, "
            f"then what `get` gives:{bullets(lines)}",
            "Tie parts that agree in structure, shapes and dtypes; `get` may change "
            "them, as by `jnp.transpose`.",
        )
    kept = eqx.tree_at(where, stage, replace_fn=lambda part: _ELSEWHERE)
    if not _is_whole(_asked("get", get, kept, "without what `where` gives away")):
        raise value_error(
            "tied",
            "`get` names what `where` gives away.",
            "Have `where` name the places that are given away, and `get` the one that "
            "stays.",
        )
    return Tied(kept, where, get)


def _asked(
    argument: str, fn: Callable[[PyTree], PyTree], pipe: AnyStage, how: str = ""
) -> PyTree:
    """What one of the functions names in the pipeline; raises if it fails."""
    try:
        return fn(pipe)
    except Exception as error:
        raise value_error(
            "tied",
            f"`{argument}` fails on the pipeline {how}".rstrip() + f" ({error!r}).",
            "Return a part of the pipeline that stays, found by names, positions and "
            'fields: `lambda pipe: pipe["head"].weight`.',
        ) from error


def _is_whole(part: PyTree) -> bool:
    return not any(map(_is_elsewhere, jtu.tree_leaves(part, is_leaf=_is_elsewhere)))


def _is_elsewhere(node: object) -> bool:
    return isinstance(node, Elsewhere)


def _used(get: Callable[[PyTree], PyTree], pipe: PyTree) -> set[int]:
    """The arrays of a pipeline, by identity, of which a function makes its answer."""
    leaves, structure = jtu.tree_flatten(pipe)
    arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]

    def ask(given: list[Array]) -> list[PyTree]:
        rest = iter(given)
        full = [next(rest) if eqx.is_array(leaf) else leaf for leaf in leaves]
        return jtu.tree_leaves(eqx.filter(get(structure.unflatten(full)), eqx.is_array))

    # `get` may compute what it gives (`jnp.transpose`): only its program tells from
    # what.
    jaxpr = trace(ask, arrays)
    every = range(len(arrays))
    return {
        id(leaf)
        for i, leaf in enumerate(arrays)
        if any(Flow().run(jaxpr, [j == i for j in every]))
    }
