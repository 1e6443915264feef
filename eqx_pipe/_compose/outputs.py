"""A pipeline that gives the outputs of its stages beside its own."""

import equinox as eqx

from .._errors import describe_value, locate, type_error
from .._stage import (
    Composite,
    Record,
    Scope,
    call,
    check_matched,
    check_patterns,
    chooser,
    is_composite,
    stage_paths,
)
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike

_KNOWN = "stage (of those inside of a `cond` or `switch` no output is known)"


class Outputs(Composite):
    """A pipeline that gives `(output, outputs of stages)`; see `outputs`."""

    stage: AnyStage
    patterns: tuple[str, ...] = eqx.field(static=True)

    def children(self) -> dict[str, AnyStage]:
        return {"stage": self.stage}

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
            # With the key as it is: to look at outputs does not change them.
            y, state = call(self.stage, (x,), state, Scope(scope.key, path, record))
        except Exception as error:
            locate(error, "stage")
            raise
        if self.patterns != ("**",):
            check_matched("outputs", self.patterns, seen, _KNOWN)
        for inner, value in record.values.items():
            if outer is not None:
                outer.add(inner, value)
        values = {below(p): v for p, v in record.values.items() if chosen(below(p))}
        if outer is not None:
            outer.add(path, y)
        return (y, values), state


def outputs(pipe: StageLike, *patterns: str) -> Outputs:
    """Return a pipeline that gives the outputs of its stages beside its own.

    Both come from one run. So an auxiliary loss is a function of them, in training too:
    gradients flow through, the updated state is that of the same run, and nothing is
    kept that no pattern matches. `outputs(pipe)(x)[1]` has all outputs for one input.

    A pattern is a path of names and positions joined by dots, in which `*` matches one
    of them, or within a name any characters, and `**` any number of them:
    `"blocks.*.attn"` is the attention of every block of a `repeat` or `chain`. A
    pattern that begins with `!` excludes its matches.

    **Arguments:**

    - `pipe`: a pipeline.
    - `patterns`: which stages; by default all, `"**"`.

    **Returns:** a stage that gives `(y, values)`, where `y` is the output of `pipe`
    with the same key, and `values` a dict from path, counted from `pipe`, to output, in
    the order of the run (under `jit` JAX sorts it). Pipelines inside count as stages
    too. Called with a state it gives `((y, values), state)`.

    **Shapes:** inside of a `batched` or `scan` an output has an axis of examples, or of
    steps, in front; a stage of a `repeat` or `ensemble` has a path of its own. Of the
    stages inside of a `cond` or `switch` nothing is known. A `gated` has the outputs of
    its gates, and for each stage what it gives to the merge, also if it is closed.

    **Raises:**

    - `TypeError` if `pipe` is not a pipeline, or a pattern is not a string.
    - `ValueError` if a pattern matches no stage, and names the nearest; when called, if
        one matches only stages inside of a `cond` or `switch`.

    **Laws:** the output is that of `pipe`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(two=ep.parallel({"a": jnp.sin, "b": jnp.cos}), sum=jnp.sum)
        >>> y, values = ep.outputs(pipe)(jnp.zeros(1))
        >>> {path: value.tolist() for path, value in values.items()}
        {'two.a': [0.0], 'two.b': [1.0], 'two': [0.0, 1.0], 'sum': 1.0}
        >>> y, values = ep.outputs(pipe, "two.*")(jnp.ones(2))
        >>> penalty = jnp.abs(values["two.a"]).mean()
        >>> list(values), (y + penalty).shape
        (['two.a', 'two.b'], ())
    """
    if not is_composite(pipe):
        raise type_error(
            "outputs",
            f"`pipe` is {describe_value(pipe)}, which has no stages inside.",
            "Give a pipeline of this library: `eqx_pipe.chain(...)`.",
        )
    if patterns:
        check_patterns("outputs", "patterns", patterns)
        check_matched("outputs", patterns, stage_paths(pipe))
    return Outputs(pipe, patterns or ("**",))
