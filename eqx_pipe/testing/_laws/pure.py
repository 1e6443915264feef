"""The laws that a stage is a pure function: to call, trace, compile and batch."""

from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from equinox.nn import State

from ..._check import check_choice
from ..._tree import as_arrays
from ..._types import Key, PyTree, StageLike
from .batches import ensemble_law
from .compare import Bound, agree, agree_in_struct
from .held import held
from .law import Broken, law, must_work
from .report import check
from .trial import Trial, copied, evaluate, snapshot, stack


@law("pure", "a stage depends on its arguments alone, and changes none of them.")
def pure_law(trial: Trial) -> None:
    before = trial.held if trial.held is not None else held(trial.stage)
    # A copy, since a call may write into its input or donate it.
    given = jtu.tree_map(copied, trial.x)
    fresh = trial.on(given)
    labels = ("the second time", "the first time")

    first = snapshot(fresh.again())
    with must_work("reading the input after a call"):  # fails if it was donated
        _changed_nothing(trial, given, before)
    agree(fresh.again(), first, labels)
    agree(first, trial.plain, labels)
    if len(trial.examples) > 1:
        agree(fresh.again(), first, ("after calls on other inputs", "before them"))
    _changed_nothing(trial, given, before)
    try:
        # A stage that keeps a tracer fails later, somewhere else.
        with jax.checking_leaks():
            eqx.filter_make_jaxpr(evaluate)(
                trial.stage, trial.x, trial.state, trial.key
            )
    except Exception as error:
        # That it cannot be traced is for the law of `jit` to say.
        if "Leaked" in str(error):
            with must_work("tracing"):
                raise


def _changed_nothing(trial: Trial, given: PyTree, before: dict[str, Any]) -> None:
    """Whether neither the input nor the stage is another than before the calls."""
    try:
        agree(given, trial.x, ("after the call", "before"))
    except Broken as how:
        what = f"a call changed its input: {how.what}"
        raise Broken("change", what, how.leaf) from None
    after = held(trial.stage)
    for name in (*after, *before):
        if name not in before or name not in after or before[name] != after[name]:
            raise Broken(
                "change",
                f"a call changed `stage{name}`; return what is to be remembered, or "
                "keep it in an `equinox.nn.State` (or, if it only saves time, by "
                "`functools.cache`)",
            )


# One for all calls, so that a stage compiles once and not for each input.
_compiled = eqx.filter_jit(evaluate)


@law("jit", "under `equinox.filter_jit` a stage gives what a plain call gives.")
def jit_law(trial: Trial) -> None:
    with must_work("`equinox.filter_jit`"):
        got = _compiled(trial.stage, trial.x, trial.state, trial.key)
    agree(got, trial.plain, ("under jit", "plain"), trial.tolerance)


@law(
    "struct",
    "abstract evaluation gives the structure, shapes and dtypes of a real one.",
)
def struct_law(trial: Trial) -> None:
    def struct(leaf: Any) -> Any:
        if isinstance(leaf, bool | int | float | complex):
            return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
        return leaf

    given = (trial.stage, trial.x, trial.state, trial.key)
    with must_work("abstract evaluation"):
        abstract = eqx.filter_eval_shape(evaluate, *given)
    got, wanted = (jtu.tree_map(struct, tree) for tree in (abstract, trial.plain))
    agree_in_struct(got, wanted, ("abstractly", "when run"))


@law("vmap", "`jax.vmap` over a batch gives what a loop over its examples gives.")
def vmap_law(trial: Trial) -> None:
    batch = trial.batch(3)
    if batch is None:
        return
    xs, keys, wanted = batch
    with must_work("`jax.vmap`"):
        got = _compiled_over_batch(trial.stage, xs, trial.state, keys)
    agree(got, wanted, ("under vmap", "in the loop"), trial.tolerance)


def over_batch(stage: Any, xs: PyTree, state: Any, keys: Any) -> PyTree:
    """The stage under `vmap`, each example with a state and a key of its own."""

    def one(x: PyTree, key: Any, own: PyTree) -> PyTree:
        return as_arrays(evaluate(stage, x, own, key))

    arrays = jtu.tree_leaves(eqx.filter((xs, keys), eqx.is_array))
    if not arrays:
        return one(xs, None, state)
    return eqx.filter_vmap(one)(xs, keys, stack([state] * len(arrays[0])))


_compiled_over_batch = eqx.filter_jit(over_batch)


def check_pure(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage has no hidden state and writes into nothing.

    Called again, also after calls on other inputs, it gives the same bits; neither the
    stage nor its input is another than before the first call; the input is not donated
    (as by `jax.jit(..., donate_argnums=...)`); it keeps hold of no tracer. To the stage
    belong its fields and attributes, the variables that it closes over, and the globals
    that its code names, also by way of functions of its package. What
    `functools.cache`, `functools.cached_property` and `jax.jit` remember does not
    count.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, itertools, jax.numpy as jnp
        >>> count = itertools.count()
        >>> ept.check_pure(lambda x: x + next(count), jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: ...
    """
    __tracebackhide__ = True
    check(pure_law, stage, x, state, key, rtol, atol)


def check_jit(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage gives the same under `equinox.filter_jit`.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_jit(lambda x: x if x.sum() > 0 else -x, jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_jit`: the law `jit` is broken: ...
    """
    __tracebackhide__ = True
    check(jit_law, stage, x, state, key, rtol, atol)


def check_struct(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that abstract evaluation (`jax.eval_shape`) tells what will come out.

    Structure, shapes and dtypes are compared with those of a plain call. A stage that
    computes in NumPy, which makes `float64` of many things, is a way to break this.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_struct(jnp.cumsum, jnp.ones(3))
    """
    __tracebackhide__ = True
    check(struct_law, stage, x, state, key, rtol, atol)


def check_vmap(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
    over: str = "input",
) -> None:
    """Checks that `jax.vmap` of a stage is a loop over the examples.

    The batch is made of `x` and of inputs with the numbers of `x` in other places; each
    example has a key and a state of its own.

    **Arguments:** those of `check_stage`, and

    - `over`: `"input"`, or `"stage"` for an ensemble: a stack of stages with other
        parameters each, on one input and on an input each. `check_stage` checks both;
        there the second is the law `ensemble`. (Keyword only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_vmap(jnp.cumsum, jnp.ones(3))
    """
    __tracebackhide__ = True
    check_choice("testing.check_vmap", "over", over, ("input", "stage"))
    law = vmap_law if over == "input" else ensemble_law
    check(law, stage, x, state, key, rtol, atol)
