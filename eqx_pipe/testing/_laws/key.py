"""The law that randomness comes from the key, and all of it."""

import contextlib
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from equinox.nn import State
from jaxtyping import Array

from ..._check import check_key as check_one_key
from ..._errors import message, value_error
from ..._jaxprs.jaxpr import open_jaxpr, sub_jaxprs
from ..._jaxprs.table import kind
from ..._tree import is_key_array
from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, same_bits
from .law import Law
from .locate import locate
from .reach import Value, run_with_all_branches
from .report import broken_by_stage, check, stage_text
from .reuse import Reused, check_reuse, draws
from .trial import Trial, evaluate, trial_of

_NUM_KEYS = 32


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_key` finds."""
    if trial.key is None or not _draws(trial, in_branches=True):
        return None
    if not _draws(trial):
        return find_reuse(trial)
    labels = ("the second time", "the first time with the same key")
    found = same_bits(trial.again(), trial.plain, labels) or find_reuse(trial)
    if found:
        return found
    for x in (trial.x, *(_random_like(trial.x, seed) for seed in (101, 102, 103))):
        # Dropout of zeros is zeros, whatever the key; so other numbers have a chance.
        with contextlib.suppress(_Other):
            if _vary(trial.on(x), trial.x is x):
                return None
    if _could_vary(trial):
        return None  # A closed gate hides it; then these inputs tell nothing.
    what = f"of {_NUM_KEYS} keys all give the same output, though the stage draws"
    return Finding("same", "", what)


class _Other(Exception):
    """Another input than the caller's lies outside of what the stage takes."""


def _vary(trial: Trial, own: bool) -> bool:
    """Whether two of some keys give different outputs."""
    keys = jr.split(trial.key, _NUM_KEYS)  # type: ignore

    try:
        outs = _over_keys(trial.stage, trial.x, trial.state, keys)
    except Exception:
        given = trial.stage, trial.x, trial.state
        try:
            each = [_outputs(*given, key) for key in keys]
        except Exception as error:
            if own:
                raise
            raise _Other from error
        outs = [jnp.stack(leaves) for leaves in zip(*each, strict=True)]
    return _differ(outs)


def _could_vary(trial: Trial) -> bool:
    """Whether two of some keys would give different outputs, were no branch closed."""
    assert trial.key is not None
    keys = jr.split(trial.key, _NUM_KEYS)
    for scale in (1.0, 1e3):
        x = _random_like(trial.x, 104, scale)
        with contextlib.suppress(Exception):
            if _differ(_over_keys_with_all(trial.stage, x, trial.state, keys)):
                return True
    return False


@eqx.filter_jit
def _over_keys_with_all(stage: Any, x: PyTree, state: Any, keys: Array) -> list[Array]:
    """The outputs with all branches; see `reach.py`."""
    given, fixed = eqx.partition(x, eqx.is_array)
    leaves, structure = jtu.tree_flatten(given)

    def outputs(key: Key, *leaves: Array) -> list[Array]:
        x = eqx.combine(jtu.tree_unflatten(structure, leaves), fixed)
        return _outputs(stage, x, state, key)

    program = jax.make_jaxpr(outputs)(keys[0], *leaves)

    def run(key: Key) -> list[Array]:
        values = [Value(v, True) for v in (key, *leaves)]
        return [v.array for v in run_with_all_branches(program, values)]

    return jax.lax.map(run, keys)


def _differ(outs: list[Array]) -> bool:
    """Whether some array has rows that are not all the same."""
    return any(not bool(jnp.all(_same(leaf, leaf[:1]))) for leaf in outs)


def _outputs(stage: Any, x: PyTree, state: Any, key: Key) -> list[Array]:
    out = evaluate(stage, x, state, key)
    return [_raw(leaf) for leaf in jtu.tree_leaves(out) if eqx.is_array(leaf)]


@eqx.filter_jit
def _over_keys(stage: Any, x: PyTree, state: Any, keys: Key) -> list[Array]:
    return jax.lax.map(lambda key: _outputs(stage, x, state, key), keys)


def _same(a: Array, b: Array) -> Array:
    return (a == b) | ((a != a) & (b != b))


def _raw(leaf: Any) -> Array:
    return jr.key_data(leaf) if is_key_array(leaf) else jnp.asarray(leaf)


def _random_like(x: PyTree, seed: int, scale: float = 1.0) -> PyTree:
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
    own = {"random_unwrap"} if is_new(trial.key) else {"threefry2x32"}
    return _uses(program, own, in_branches)


def _uses(program: Any, own: set[str], in_branches: bool) -> bool:
    """Whether an operation draws, or is one of its `own`; branches as told.

    A key that is only split or folded is not drawn from.
    """
    return any(
        draws(eqn)
        or eqn.primitive.name in own
        or (in_branches or kind(eqn) != "branches")
        and any(_uses(body, own, in_branches) for body in sub_jaxprs(eqn))
        for eqn in open_jaxpr(program)[0].eqns
    )


def is_new(key: Key | None) -> bool:
    """Whether a key is of the new style."""
    return key is not None and is_key_array(key)


def find_reuse(trial: Trial) -> Finding | None:
    """Whether one key is used for two draws."""
    try:
        program, args = trial.program
        check_reuse(program, args, [arg is trial.key for arg in args])
    except Reused as error:
        return Finding("reuse", "", str(error))
    except Exception as error:
        name = stage_text(trial.stage)
        why = (str(error).splitlines() or [type(error).__name__])[0]
        text = message(
            "testing.check_key",
            f"whether `{name}` uses a key twice cannot be told: {why}.",
            "Check the part that draws alone, or leave the law out: `skip=('key',)`.",
        )
        warnings.warn(text, stacklevel=2)
    return None


LAW = Law(
    "key",
    "the same key gives the same draws, another others, and none is used twice.",
    find,
)


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
    for a few random inputs hides it, the last cannot be decided and is not asked.

    Keys are told apart by their bits, of old keys (`PRNGKey`) as of new ones, lane by
    lane under `vmap`, and in the first 16 passes of a loop. Splitting uses a key up,
    `fold_in` does not. The sides of a branch may use the same key, and so may a
    `jax.random.clone`. What JAX draws once for all lanes of a `vmap`, from a key that
    the function closes over, counts once; lanes that hold equal keys are found.

    **Arguments:** those of `check_stage`; a `key` is needed.

    **Raises:** `AssertionError` if the law is broken.

    **Warns:** if keys go where they cannot be followed, naming the operation.
    """
    __tracebackhide__ = True
    if key is None:
        raise value_error(
            "testing.check_key", "`key` is None.", "Give `key=jax.random.key(0)`."
        )
    check_one_key("testing.check_key", key)
    check(LAW, stage, x, state, key, rtol, atol)
    trial = trial_of("testing.check_key", stage, x, state, key)
    if _draws(trial):
        return
    finding = _closed_branch(trial)
    if finding:
        raise broken_by_stage(LAW, *locate(_closed_branch, trial, finding))
    if not _draws(trial, in_branches=True):
        nothing = Finding("nothing", "", "the stage draws no random numbers at all")
        raise broken_by_stage(LAW, "", trial, nothing)


def _closed_branch(trial: Trial) -> Finding | None:
    """Whether the stage draws in branches alone, and this input shows none of it."""
    if _draws(trial) or not _draws(trial, in_branches=True) or _vary(trial, True):
        return None
    what = (
        "the stage draws in a branch only, and with this input no draw reaches the "
        f"output ({_NUM_KEYS} keys all give the same); give an input for which the "
        "branch that draws is taken"
    )
    return Finding("branch", "", what)
