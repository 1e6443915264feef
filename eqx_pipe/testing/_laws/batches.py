"""The law that `vmap` equals a loop, over arguments and over a stack of modules."""

from collections.abc import Callable
from typing import Any

from ..._tree import is_key_array
from .compare import agree, stacked
from .law import Broken, Undecided, error_line, law
from .programs import Places, Programs
from .trial import Trial


@law("vmap", "`jax.vmap` over arguments, or over modules, agrees with a loop.")
def vmap_law(trial: Trial) -> str | None:
    programs = trial.programs
    groups = _groups(programs)
    if not groups:
        raise Undecided("there are no arrays to batch")
    value, names = programs.value, programs.out_names
    notes = [
        _like_a_loop(trial, which, f"`vmap` over {how}", value, names)
        for how, which in groups.items()
    ]
    every = frozenset().union(*groups.values())
    return _gradients(trial, every) or next(filter(None, notes), None)


def _groups(programs: Programs) -> dict[str, Places]:
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


def _gradients(trial: Trial, which: Places) -> str | None:
    """Compare `vmap` of the gradient with a loop, if there is a gradient."""
    programs = trial.programs
    if not programs.moving or not programs.smooth:
        return None
    cotangents = programs.cotangents()

    def gradient(leaves: list[Any], which: Places = frozenset()) -> list[Any]:
        return programs.backward(leaves, cotangents, which)[1]

    try:
        gradient(programs.leaves(trial.call))
    except Exception:  # reported by the law `derivative`
        return None
    names = programs.moving_names
    return _like_a_loop(trial, which, "`vmap` of the gradient", gradient, names)


def _like_a_loop(
    trial: Trial,
    which: Places,
    how: str,
    run: Callable[..., list[Any]],
    names: list[str],
) -> str | None:
    """Raise `Broken` if a batch of lanes differs from a loop over the lanes."""
    own = trial.lanes[0]
    every = range(len(own))
    lanes = [[v[i] if i in which else own[i] for i in every] for v in trial.lanes]
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
        stacked([lane[i] for lane in taken]) if i in which else own[i] for i in every
    ]
    try:
        found = run(inputs, which)
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error
    wanted = [stacked(column) for column in zip(*outputs, strict=True)]
    # Output keys stay keys; `agree` compares their bits.
    kept = [i for i, v in enumerate(found) if not is_key_array(v)]
    got, loop = ({names[i]: v[i] for i in kept} for v in (found, wanted))
    agree(got, loop, (f"by {how}", "in a loop"), trial.tolerance)
    dropped = len(lanes) - len(taken)
    return f"it raises for {dropped} of {len(lanes)} lanes" if dropped else None
