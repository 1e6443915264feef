"""The law that randomness comes from the key, and all of it."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jaxtyping import Array

from ..._errors import message, value_error
from ..._jaxprs.jaxpr import open_jaxpr, sub_jaxprs
from ..._jaxprs.table import kind
from ..._keys import check_key as check_one_key
from ..._tree import is_key_array
from ..._types import Key, PyTree, StageLike
from .branches import Value, run_with_all_branches, run_with_others
from .compare import Bound, agree, as_numpy
from .law import Broken, law
from .report import broken_by_stage, check, locate, stage_text
from .reuse import check_reuse, draws
from .trial import Trial, evaluate

# A fair coin shows one side for all of them once in two billion runs.
_NUM_KEYS = 32


@law(
    "key", "the same key gives the same draws, another others, and none is used twice."
)
def key_law(trial: Trial) -> None:
    if trial.key is None or not _draws(trial, in_branches=True):
        return
    if not _draws(trial):
        return no_reuse(trial)
    labels = ("the second time", "the first time with the same key")
    agree(trial.again(), trial.plain, labels)
    no_reuse(trial)
    if _vary(trial):
        return
    # Dropout of zeros is zeros, whatever the key; so other numbers have a chance. Where
    # a closed gate hides a draw, these inputs tell nothing; so all gates are opened.
    others = [(_over_keys, seed, 1.0) for seed in (101, 102, 103)]
    others += [(_over_keys_with_all, 104, scale) for scale in (1.0, 1e3)]
    for over_keys, seed, scale in others:
        with contextlib.suppress(Exception):  # outside of what the stage takes
            if _vary(trial.on(_random_like(trial.x, seed, scale)), over_keys):
                return
    # Undecided where only what comes before the draw is constant for all of these.
    with contextlib.suppress(Exception):
        if _vary(trial, _over_keys_with_others):
            return
    what = f"of {_NUM_KEYS} keys all give the same output, though the stage draws"
    raise Broken("same", what)


@eqx.filter_jit
def _over_keys(stage: Any, x: PyTree, state: Any, keys: Key) -> list[Array]:
    return jax.lax.map(lambda key: _outputs(stage, x, state, key), keys)


@eqx.filter_jit
def _over_keys_with_all(stage: Any, x: PyTree, state: Any, keys: Array) -> list[Array]:
    """The outputs with all branches; see `branches.py`."""
    return _interpreted(run_with_all_branches, stage, x, state, keys)


@eqx.filter_jit
def _over_keys_with_others(
    stage: Any, x: PyTree, state: Any, keys: Array
) -> list[Array]:
    """The outputs with other numbers where a draw is applied; see `branches.py`."""
    return _interpreted(run_with_others, stage, x, state, keys)


def _interpreted(
    how: Callable[[Any, list[Value]], list[Value]],
    stage: Any,
    x: PyTree,
    state: Any,
    keys: Array,
) -> list[Array]:
    def outputs(key: Key, x: PyTree) -> list[Array]:
        return _outputs(stage, x, state, key)

    program = eqx.filter_make_jaxpr(outputs)(keys[0], x)[0]
    arrays = eqx.filter(x, eqx.is_array)

    def run(key: Key) -> list[Array]:
        values = [Value(v, True) for v in jtu.tree_leaves(arrays)]
        return [v.array for v in how(program, [Value(key, True, True), *values])]

    return jax.lax.map(run, keys)


def _vary(trial: Trial, over_keys: Callable[..., list[Array]] = _over_keys) -> bool:
    """Whether two of some keys give different outputs."""
    given = (trial.stage, trial.x, trial.state)
    keys = jr.split(trial.key, _NUM_KEYS)  # type: ignore
    try:
        outs = over_keys(*given, keys)
    except Exception:
        each = [_outputs(*given, key) for key in keys]
        outs = [jnp.stack(leaves) for leaves in zip(*each, strict=True)]
    arrays = map(as_numpy, outs)
    first = [(v, np.broadcast_to(v[:1], v.shape)) for v in arrays]
    return not all(np.array_equal(v, w, equal_nan=True) for v, w in first)


def _outputs(stage: Any, x: PyTree, state: Any, key: Key) -> list[Array]:
    return jtu.tree_leaves(eqx.filter(evaluate(stage, x, state, key), eqx.is_array))


def _random_like(x: PyTree, seed: int, scale: float) -> PyTree:
    def one(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        drawn = scale * jr.normal(jr.key(seed), leaf.shape, jnp.float32)
        return drawn.astype(leaf.dtype)

    return jtu.tree_map(one, x)


def _draws(trial: Trial, in_branches: bool = False) -> bool:
    """Whether random numbers are drawn, whatever the input (or by some branch)."""
    try:
        program = trial.program[0]
    except Exception:
        return True
    # Whoever looks into a new-style key has a generator of his own.
    own = {"random_unwrap"} if is_key_array(trial.key) else {"threefry2x32"}
    return _uses(program, own, in_branches)


def _uses(program: Any, own: set[str], in_branches: bool) -> bool:
    """Whether an operation draws, or is one of its `own`; also in branches if asked.

    A key that is only split or folded is not drawn from.
    """
    return any(
        draws(eqn)
        or eqn.primitive.name in own
        or (in_branches or kind(eqn) != "branches")
        and any(_uses(body, own, in_branches) for body in sub_jaxprs(eqn))
        for eqn in open_jaxpr(program)[0].eqns
    )


def no_reuse(trial: Trial) -> None:
    """Raises `Broken` if one key is used for two draws."""
    try:
        program, args = trial.program
        check_reuse(program, args, [arg is trial.key for arg in args])
    except Broken:
        raise
    except Exception as error:
        name = stage_text(trial.stage)
        why = (str(error).splitlines() or [type(error).__name__])[0]
        text = message(
            "testing.check_key",
            f"whether `{name}` uses a key twice cannot be told: {why}.",
            "Check the part that draws alone, or leave the law out: `skip=('key',)`.",
        )
        warnings.warn(text, stacklevel=2)


def check_key(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage draws from its key, and from nothing else.

    The same key gives the same bits; no key is used for two draws; and at least two of
    32 keys give different outputs. (`check_stage` asks the last only of a stage that
    draws random numbers.) Where the stage draws, but a gate that is closed for `x` and
    for a few random inputs hides it, or a value that is constant for all of these, the
    last cannot be decided and is not asked.

    Keys are told apart by their bits, of old keys (`PRNGKey`) as of new ones, lane by
    lane under `vmap`, and in the first 16 passes of a loop. Splitting uses a key up,
    `fold_in` does not. The sides of a branch may use the same key, and so may a
    `jax.random.clone`. What JAX draws once for all lanes of a `vmap`, from a key that
    the function closes over, counts once; lanes that hold equal keys are found.

    **Arguments:** those of `check_stage`; a `key` is needed.

    **Raises:** `AssertionError` if the law is broken.

    **Warns:** if keys go where they cannot be followed, naming the operation.

    !!! example

        >>> import equinox as eqx, eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> ept.check_key(eqx.nn.Dropout(0.5), jnp.ones(8), key=jax.random.key(0))
    """
    __tracebackhide__ = True
    if key is None:
        raise value_error(
            "testing.check_key", "`key` is None.", "Give `key=jax.random.key(0)`."
        )
    check_one_key("testing.check_key", key)
    trial = check(key_law, stage, x, state, key, rtol, atol)
    if _draws(trial):
        return
    how = _closed_branch.broken_by(trial)
    if how:
        raise broken_by_stage(key_law, *locate(_closed_branch, trial, how))
    if not _draws(trial, in_branches=True):
        nothing = Broken("nothing", "the stage draws no random numbers at all")
        raise broken_by_stage(key_law, "", trial, nothing)


@law("key", "the input shows what the stage draws")
def _closed_branch(trial: Trial) -> None:
    if _draws(trial) or not _draws(trial, in_branches=True) or _vary(trial):
        return
    raise Broken(
        "branch",
        "the stage draws in a branch only, and with this input no draw reaches the "
        f"output ({_NUM_KEYS} keys all give the same); give an input for which the "
        "branch that draws is taken",
    )
