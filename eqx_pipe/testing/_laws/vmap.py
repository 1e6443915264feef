"""The laws of batches: `vmap` equals a loop, and `shard_map` one device."""

import functools as ft
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ..._jaxprs import kind
from ..._stage import Lift
from ..._tree import is_key_array
from .index import is_installed, is_of_user
from .law import Broken, Undecided, agree, error_line, law, must_work, stacked
from .trial import Call, Indices, Programs, Trial


@law("vmap", "`jax.vmap` over arguments, or over modules, agrees with a loop.")
def vmap_law(trial: Trial) -> str | None:
    programs = trial.programs
    groups = _groups(programs)
    if not groups:
        raise Undecided("there are no arrays to batch")
    value, names = programs.value, programs.out_names
    every = frozenset().union(*groups.values())
    # JAX batches its own operations one by one: only a rule may depend on which of its
    # arguments, or whose gradient, is batched.
    has_rules = _has_rules(trial)
    notes = [
        _like_a_loop(trial, which, f"`vmap` over {how}", value, names)
        for how, which in (groups if has_rules else {"all arrays": every}).items()
    ]
    note = _gradients(trial, every) if has_rules else None
    return note or next(filter(None, notes), None)


def _has_rules(trial: Trial) -> bool:
    """Return whether there is a rule or callback outside of installed packages.

    All rules count for a function of an installed package.
    """
    fn = trial.call.fn.fn if isinstance(trial.call.fn, Lift) else trial.call.fn
    named = fn if hasattr(fn, "__module__") else type(fn)
    module = sys.modules.get(str(getattr(named, "__module__", "")))
    installed = is_installed(str(getattr(module, "__file__", "")))
    return any(
        (installed or is_of_user(eqn))
        and (eqn.primitive.name.startswith("custom_") or kind(eqn) in _OPAQUE)
        for eqn in trial.programs.equations
    )


_OPAQUE = (None, "other", "callback")


def _groups(programs: Programs) -> dict[str, Indices]:
    """Return the leaves to batch: each argument, all arguments, and the parameters."""
    groups: dict[str, set[int]] = {}
    others, module = set[int](), set[int]()
    for i, name in enumerate(programs.names):
        kind, _, rest = name.partition(".")
        if kind == "args":
            groups.setdefault(f"`{rest.partition('.')[0]}`", set()).add(i)
        if kind != "fn":
            others.add(i)
        elif i in programs.moving:
            module.add(i)
    if groups and others not in groups.values():
        groups["all arguments"] = others
    if module:
        groups["the module"] = module
    return {how: frozenset(which) for how, which in groups.items()}


def _gradients(trial: Trial, which: Indices) -> str | None:
    """Compare `vmap` of the gradient with a loop, if there is a gradient."""
    programs = trial.programs
    if not programs.moving or not programs.smooth:
        return None
    cotangents = programs.cotangents()

    def gradient(leaves: list[Any], which: Indices = frozenset()) -> list[Any]:
        return programs.backward(leaves, cotangents, which)[1]

    try:
        gradient(trial.leaves)
    except Exception:  # reported by the law `derivative`
        return None
    names = programs.moving_names
    return _like_a_loop(trial, which, "`vmap` of the gradient", gradient, names)


def _like_a_loop(
    trial: Trial,
    which: Indices,
    how: str,
    run: Callable[..., list[Any]],
    names: list[str],
) -> str | None:
    """Raise `Broken` if a batch of lanes differs from a loop over the lanes."""
    first = trial.lanes[0]
    every = range(len(first))
    lanes = [[v[i] if i in which else first[i] for i in every] for v in trial.lanes]
    taken, outputs = [], []
    for lane in lanes:
        try:
            outputs.append(run(lane))
            taken.append(lane)
        except Exception:  # these arguments are invalid, for instance by `error_if`
            continue
    if len(taken) < 2:
        raise Undecided("the function raises for other inputs, so lanes would be equal")
    inputs = [
        stacked([lane[i] for lane in taken]) if i in which else first[i] for i in every
    ]
    try:
        values = run(inputs, which)
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error
    wanted = [stacked(column) for column in zip(*outputs, strict=True)]
    # Output keys stay keys; `agree` compares their bits.
    kept = [i for i, v in enumerate(values) if not is_key_array(v)]
    got, loop = ({names[i]: v[i] for i in kept} for v in (values, wanted))
    agree(got, loop, (f"by {how}", "in a loop"), trial.tolerance)
    dropped = len(lanes) - len(taken)
    return f"it raises for {dropped} of {len(lanes)} lanes" if dropped else None


@law("devices", "rows split over several devices give the same as on one device.")
def devices_law(trial: Trial) -> str | None:
    programs, leaves = trial.programs, trial.leaves
    is_split = [
        name.removeprefix("args.").partition(".")[0] in trial.rows
        for name in programs.names
    ]
    sizes = {v.shape[0] for v, split in zip(leaves, is_split, strict=True) if split}
    counts = [n for n in (4, 3, 2) if n <= jax.device_count()]
    counts = [n for n in counts if all(size % n == 0 for size in sizes)]
    if not counts:
        raise Undecided(
            f"2 to 4 of {jax.device_count()} devices do not divide the rows"
        )
    if not all(programs.jaxpr.out_avals[i].ndim for i in programs.smooth):
        raise Undecided("an output has no rows")
    rows, whole = PartitionSpec("rows"), PartitionSpec()
    specs = [rows if split else whole for split in is_split]
    run, cotangents = _outputs_of(trial.call, programs), programs.cotangents()
    try:
        value, grads = programs.backward(leaves, cotangents)
    except Exception:  # reported by the law `derivative`
        value, grads = [programs.value(leaves)[i] for i in programs.smooth], None

    def gradient(fn: Callable[..., Any], leaves: list[Any], weights: list[Any]) -> Any:
        def of_moving(moving: list[Any]) -> list[Any]:
            every = list(leaves)
            for i, v in zip(programs.moving, moving, strict=True):
                every[i] = v
            return fn(every)

        return jax.vjp(of_moving, [leaves[i] for i in programs.moving])[1](weights)[0]

    for count in (1, counts[0]):
        mesh = Mesh(np.array(jax.devices()[:count]), ("rows",))
        split = ft.partial(jax.shard_map, mesh=mesh)
        outside = split(run, in_specs=(specs,), out_specs=rows)
        inside = split(
            ft.partial(gradient, run),
            in_specs=(specs, rows),
            out_specs=[specs[i] for i in programs.moving],
        )
        names = programs.smooth_names
        parts: list[Any] = [("the values", names, value, outside, (leaves,))]
        if grads is not None:
            names, args = programs.moving_names, (leaves, cotangents)
            around = ft.partial(gradient, outside)
            parts.append(("the gradient outside", names, grads, around, args))
            parts.append(("the gradient inside", names, grads, inside, args))
        for what, names, wanted, fn, args in parts:
            how = f"{what} of `shard_map` on {count} devices"
            with must_work(how):
                got = jax.tree.map(np.asarray, jax.jit(fn)(*args))
            left, right = (dict(zip(names, v, strict=True)) for v in (got, wanted))
            agree(left, right, (f"by {how}", "without it"), trial.tolerance)
    return None if grads is not None else "without gradients"


def _outputs_of(call: Call, programs: Programs) -> Callable[[list[Any]], list[Any]]:
    """Return the smooth outputs as a function of leaves, of any number of rows."""
    arrays, static = eqx.partition(call, eqx.is_array)
    structure = jtu.tree_structure(arrays)

    def run(leaves: list[Any]) -> list[Any]:
        whole = eqx.combine(jtu.tree_unflatten(structure, leaves), static)
        outputs = jtu.tree_leaves(eqx.filter(whole.run(), eqx.is_array))
        return [outputs[i] for i in programs.smooth]

    return run
