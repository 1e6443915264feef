"""All laws of a stage at once."""

from collections.abc import Collection

from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .batches import ensemble_law
from .compare import Bound
from .dtypes import dtype_law
from .finite import finite_law
from .grad import grad_law
from .key import key_law
from .law import Law, skipped_of
from .params import params_law
from .programs import recompiles_law
from .pure import jit_law, pure_law, struct_law, vmap_law
from .report import try_law
from .rules import rules_law
from .sharding import sharding_law
from .trial import trial_of

_IN_ORDER: tuple[Law, ...] = (pure_law, struct_law, jit_law, vmap_law)
_IN_ORDER += (ensemble_law, key_law, grad_law, finite_law, rules_law, params_law)
_IN_ORDER += (dtype_law, recompiles_law, sharding_law)
LAWS = {law.name: law for law in _IN_ORDER}
"""The laws by name, in the order in which they are tried."""


def check_stage(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    skip: Collection[str] = (),
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage keeps every law of stages.

    The laws are `pure`, `struct`, `jit`, `vmap`, `ensemble`, `key`, `grad`, `finite`,
    `rules`, `params`, `dtype`, `recompiles` and `sharding`; each has a function of its
    own, `check_pure` and so on. The first that is broken is reported: which law, the
    path of the stage inside a pipeline, the leaf, by how much, and the input. Inputs
    are the caller's; draw them by a strategy to search for one that breaks a law.

    **Arguments:**

    - `stage`: a stage: a layer, a pipeline or a plain function.
    - `x`: an input.
    - `state`: an `equinox.nn.State`, needed if the stage is stateful.
    - `key`: a PRNG key, needed if the stage is random. (Keyword only.)
    - `skip`: names of laws to leave out. (Keyword only.)
    - `rtol`, `atol`: how far apart numbers may be: `atol` and `rtol` times the largest
        in the array. By default what suits the dtype. (Keyword only.)

    **Raises:**

    - `AssertionError` if a law is broken.
    - `ValueError` for an unknown name in `skip`.
    - What the stage itself raises on `x`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> pipe = ep.chain(jnp.sin, ep.parallel(jnp.tanh, jnp.square))
        >>> ept.check_stage(pipe, jnp.arange(3.0))
        >>> ept.check_stage(ep.chain(jnp.sin, jnp.linalg.norm), jnp.zeros(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_grad`: the law `grad` is broken: ...
          stage: `1` (norm)
          leaf: `x`
          difference: 1 of 1 elements are finite and have derivatives that are not ...
          input: zeros float32[2]
          If this is meant, leave the law out: `check_stage(..., skip=('grad',))`.
    """
    __tracebackhide__ = True
    skipped = skipped_of("testing.check_stage", skip, LAWS)
    trial = trial_of("testing.check_stage", stage, x, state, key, rtol, atol)
    for name, law in LAWS.items():
        if name not in skipped:
            try_law(law, trial)
