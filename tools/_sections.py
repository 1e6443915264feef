"""The sections of the record: an entry, or a function that makes it, for each name."""

import jax.tree_util as jtu
import numpy as np

from . import _borrowed, _cases, _hlo, _spaces


def programs():
    """Text and costs of the optimised programs of each case."""
    return {name: lambda name=name: _programs_of(name) for name in _cases.all_cases()}


def _programs_of(name):
    return [
        {"text": _hlo.digest(_hlo.normalized(program.as_text())), **_hlo.costs(program)}
        for program in _cases.computed(name).programs
    ]


def values():
    """Compute each case at fixed inputs."""
    return {name: lambda name=name: _values_of(name) for name in _cases.all_cases()}


def _values_of(name):
    case, found = _cases.computed(name), {}
    parts = jtu.tree_flatten_with_path(
        case.values, is_leaf=lambda x: isinstance(x, _cases.Parts)
    )[0]
    for path, leaf in parts:
        shown = _unordered if isinstance(leaf, _cases.Parts) else _summary
        found[jtu.keystr(path)] = shown(leaf)
    return {"rtol": case.rtol, "leaves": found}


def _summary(leaf):
    """Shape, dtype, the first numbers, the sum, and the square root of the squares'."""
    array = np.asarray(leaf)
    wide = array.astype(np.float64)
    return {
        "array": f"{array.dtype}{list(array.shape)}",
        "first": _short(wide.reshape(-1)[:4]),
        **_sums(wide),
    }


def _unordered(parts):
    wide = [np.asarray(leaf, np.float64).reshape(-1) for leaf in parts.leaves]
    return {"arrays": len(wide), **_sums(np.concatenate(wide or [np.zeros(0)]))}


def _sums(wide):
    sums = [wide.sum(), np.sqrt((wide**2).sum())]
    return dict(zip(("sum", "norm"), _short(sums), strict=True)) | {"size": wide.size}


def _short(numbers):
    return [float(f"{x:.7g}") for x in numbers]


def spaces():
    """Keys, coordinates and dims of the drawn spaces."""
    return _spaces.record()


def planted():
    """For each planted bug the laws that report it, and those that report its twin."""

    def entry(row):
        found = _borrowed.verdict(row)
        return {"told by": found["reported by"], "false alarms": found["false alarms"]}

    return {
        f"{kind}: {row.name}": lambda row=row: entry(row)
        for kind, row in _borrowed.planted_bugs()
    }


SECTIONS = {
    "programs": programs,
    "values": values,
    "spaces": spaces,
    "planted": planted,
}
