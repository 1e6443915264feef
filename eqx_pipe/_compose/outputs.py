"""What every stage of a pipeline put out."""

from .._check import check_callable
from .._keys import check_key
from .._stage import Composite, Record, Scope, check_state, copy_state
from .._types import Key, MaybeState, PyTree, StageLike


def outputs(
    pipe: StageLike, x: PyTree, state: MaybeState = None, *, key: Key | None = None
) -> dict[str, PyTree]:
    """Runs a pipeline and collects the output of every stage in it.

    Composites inside count as stages too. Of a `repeat` or `ensemble` every stage is
    listed by its position, `blocks.3`; inside of a `batched` or `scan` there is one
    output for all examples, or steps, along a new leading axis. What stands inside a
    `cond` or `switch` is not listed, only its own output. Of a `gated` its gates are,
    and what each stage gives to the merge, also if it is closed; but not what stands
    inside of these.

    For training, where the updated state is needed too, and only some of the values,
    there is `tapped`.

    **Arguments:**

    - `pipe`: a pipeline.
    - `x`: its input.
    - `state`: an `equinox.nn.State`, if some stage inside is stateful. It stays valid;
        the updated one is not returned.
    - `key`: a PRNG key, if some stage inside is random. (Keyword only.)

    **Returns:** a dict from path to output, in the order of the run (under `jit` JAX
    sorts it). It is empty for a stage that has no stages inside.

    **Raises:** what a call of `pipe` raises.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> pipe = ep.chain(two=ep.parallel({"a": jnp.sin, "b": jnp.cos}), sum=jnp.sum)
        >>> {path: y.tolist() for path, y in ep.outputs(pipe, jnp.zeros(1)).items()}
        {'two.a': [0.0], 'two.b': [1.0], 'two': [0.0, 1.0], 'sum': 1.0}
    """
    check_callable("outputs", "pipe", pipe)
    check_key("outputs", key)
    check_state("outputs", pipe, state)
    record = Record(lambda path: True)
    if isinstance(pipe, Composite):
        # A `State` that is updated is used up, and this one is the caller's.
        pipe.run(x, copy_state(state), Scope(key, record=record))
    return record.values
