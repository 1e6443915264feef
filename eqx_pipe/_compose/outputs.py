"""A pipeline that also returns the outputs of its stages."""

import equinox as eqx

from .._errors import describe_value, type_error
from .._stage import (
    Composite,
    Record,
    Scope,
    call,
    check_matched,
    check_patterns,
    chooser,
    is_composite,
    locate,
    stage_paths,
)
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike

_KNOWN = "stage (of those inside of a `cond` or `switch` no output is known)"


class Outputs(Composite):
    """A pipeline that returns `(output, outputs of stages)`; see `outputs`."""

    stage: AnyStage
    patterns: tuple[str, ...] = eqx.field(static=True)

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
            # With the same key: recording outputs must not change them.
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
    """Return a pipeline that also returns the outputs of its stages.

    Both come from one run, so an auxiliary loss can use them in training: gradients
    flow through, and the updated state comes from the same run. Only outputs that match
    a pattern are kept. `outputs(pipe)(x)[1]` has all outputs for one input.

    A pattern is a path of names and positions joined by dots. In it, `*` matches one
    part of the path, or any characters within a name, and `**` matches any number of
    parts: `"blocks.*.attn"` is the attention of every block of a `repeat` or `chain`. A
    pattern that begins with `!` excludes its matches.

    **Arguments:**

    - `pipe`: a pipeline.
    - `patterns`: the stages whose outputs are returned; by default all, `"**"`.

    **Returns:** a stage that returns `(y, values)`, where `y` is the output of `pipe`
    with the same key, and `values` is a dict from paths, relative to `pipe`, to
    outputs, in the order of execution (under `jit`, JAX sorts it). Nested pipelines
    count as stages too. Called with a state it returns `((y, values), state)`.

    **Shapes:** inside a `batched` or `scan`, an output has a leading axis of examples
    or of steps; each stage of a `repeat` or `ensemble` has its own path. Outputs of
    stages inside a `cond` or `switch` are not available. A `gated` has the outputs of
    its gates, and for each stage, open or closed, the value that is merged.

    **Raises:**

    - `TypeError` if `pipe` is not a pipeline, or a pattern is not a string.
    - `ValueError` if a pattern matches no stage (the error names the nearest path);
      when called, if a pattern matches only stages inside a `cond` or `switch`.

    **Laws:** `y` is the output of `pipe`.

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
        wrong = f"`pipe` is {describe_value(pipe)}, which has no stages inside."
        cure = "Give a pipeline of this library: `eqx_pipe.chain(...)`."
        raise type_error("outputs", wrong, cure)
    if patterns:
        check_patterns("outputs", "patterns", patterns)
        check_matched("outputs", patterns, stage_paths(pipe))
    return Outputs(pipe, patterns or ("**",))
