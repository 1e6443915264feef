"""The law that a call leaves its arguments to the caller."""

from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .compare import Bound
from .law import Broken, law
from .report import check
from .trial import Trial


@law("donation", "the arguments of a call can be used after it.")
def donation_law(trial: Trial) -> None:
    for name in trial.given_away:
        what = "a call gives its buffer away; donate it where the caller knows of it"
        raise Broken("donated", what, name)


def check_donation(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage donates none of its arguments.

    A function under `jax.jit(..., donate_argnums=...)` deletes arrays of its caller.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_donation(jnp.cumsum, jnp.ones(3))
    """
    __tracebackhide__ = True
    check(donation_law, stage, x, state, key, rtol, atol)
