"""A pipeline that hands out values on the way beside its output."""

from typing import cast

import equinox as eqx

from .._errors import describe_value, locate, type_error
from .._stage import Composite, Record, Scope
from .._stage.parent import stage_paths
from .._stage.pattern import check_matched, check_patterns, chooser
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike


class Tapped(Composite):
    """A pipeline that gives `(output, values)`; see `tapped`."""

    stage: AnyStage
    patterns: tuple[str, ...] = eqx.field(static=True)

    def children(self) -> dict[str, AnyStage]:
        return {"stage": self.stage}

    def settings(self) -> dict[str, PyTree]:
        return {"patterns": list(self.patterns)}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        path = scope.child("stage").path
        outer, chosen = scope.record, chooser(self.patterns)
        seen: list[str] = []

        def below(inner: str) -> str:
            return inner[len(path) + 1 :]

        def wants(inner: str) -> bool:
            seen.append(below(inner))
            return chosen(seen[-1]) or outer is not None and outer.wants(inner)

        record = Record(wants)
        try:
            # With the key as it is: to look at values does not change them.
            y, state = self.stage.run(x, state, Scope(scope.key, path, record))
        except Exception as error:
            locate(error, "stage")
            raise
        what = "stage (of those inside of a `cond` or `switch` no value is known)"
        check_matched("tapped", self.patterns, seen, what)
        for inner, value in record.values.items():
            if outer is not None:
                outer.add(inner, value)
        values = {below(p): v for p, v in record.values.items() if chosen(below(p))}
        if outer is not None:
            outer.add(path, y)
        return (y, values), state


def tapped(pipe: StageLike, *patterns: str) -> Tapped:
    """Gives values on the way beside the output of a pipeline, from one run.

    So an auxiliary loss is a function of `values`, in training too: gradients flow
    through them, the updated state is that of the same run, and what no pattern matches
    is not kept. To look at all values of one input there is `outputs`.

    A pattern is a path of names and positions joined by dots, in which `*` stands for
    one of them, or within a name for any characters, and `**` for any number of them:
    `"blocks.*.attn"` is the attention of every block of a `repeat` or `chain`, and
    `"**"` every stage. One that begins with `!` takes out what it matches.

    **Arguments:**

    - `pipe`: a pipeline.
    - `patterns`: which stages. Of those inside of a `cond` or `switch` no value is
        known.

    **Returns:** a stage that gives `(y, values)`, where `y` is what `pipe` gives from
    the same key, and `values` a dict from path, counted from `pipe`, to output. Called
    with a state it gives `((y, values), state)`.

    **Shapes:** inside of a `batched` or `scan` a value has an axis of examples, or of
    steps, in front; a stage of a `repeat` or `ensemble` has a path of its own.

    **Raises:**

    - `TypeError` if `pipe` is no pipeline, or a pattern no string; if there is none.
    - `ValueError` if a pattern matches no stage, and names the nearest; when called, if
        one matches only stages inside of a `cond` or `switch`.

    **Laws:** `tapped(pipe, "**")(x)` is `(pipe(x), outputs(pipe, x))`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(wave=jnp.sin, power=jnp.square, total=jnp.sum)
        >>> y, values = ep.tapped(pipe, "wave")(jnp.ones(2))
        >>> penalty = jnp.abs(values["wave"]).mean()
        >>> list(values), (y + penalty).shape
        (['wave'], ())
    """
    if not isinstance(pipe, Composite):
        raise type_error(
            "tapped",
            f"`pipe` is {describe_value(pipe)}, which has no stages inside.",
            "Give a pipeline of this library: `eqx_pipe.chain(...)`.",
        )
    if not patterns:
        raise type_error(
            "tapped",
            "no pattern.",
            'Say which values are wanted: `tapped(pipe, "blocks.*.attn")`; `"**"` is '
            "all.",
        )
    check_patterns("tapped", "patterns", patterns)
    check_matched("tapped", patterns, stage_paths(pipe))
    return Tapped(cast(AnyStage, pipe), patterns)
