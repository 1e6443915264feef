"""Results from stores: one that was saved, or that of a sweep as it stands."""

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._errors import message, nearest, value_error
from ..._files import as_path
from ..._tree import leaves_with_names
from ..store import Folder, Store, StoredArray, check_zarr, open_store
from .cells import CellPoints
from .label import inner_dims
from .output_coords import KnownCoords
from .raised import Raised
from .result import ERRORS, SweepResult
from .schema import SCHEMA, outputs_from, parse, space_from

_FUNCTION = "SweepResult.load"
_OWN = (SCHEMA, ERRORS, "eqx_pipe_store", "coordinates", "batch_size", "devices")
_OWN += ("seconds", "started", "function")
"""The attributes of a store that are fields of a result, or none of its business."""


def load(path: str | os.PathLike[str]) -> SweepResult:
    """Return the result in a store; see `SweepResult.load`."""
    check_zarr(_FUNCTION)
    place = as_path(_FUNCTION, path)
    if not os.path.lexists(place):
        raise FileNotFoundError(
            message(_FUNCTION, f"there is nothing at {str(place)!r}.", _hint(place))
        )
    if (place / "round-0000.zarr").is_dir():
        raise value_error(
            _FUNCTION,
            f"{str(place)!r} is the folder of a search.",
            "Read it by `search.SearchResult.load`.",
        )
    store = open_store(_FUNCTION, Folder(place))
    if "reduce" in store.record:
        raise value_error(
            _FUNCTION,
            f"the store {str(place)!r} keeps the states of a reduction.",
            "Call the same sweep with the same `reduce` and `store`: what is there "
            "is not computed again. `xarray.open_zarr` shows the states.",
        )
    attributes = store.root["attributes"]
    schema = parse(_FUNCTION, str(place), attributes.get(SCHEMA))
    return _result(store, schema, attributes)


def _hint(path: Path) -> str:
    """Return what may have been meant by a path at which there is nothing."""
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {str(folder)!r} either: check the path."
    results = [p.name for p in folder.iterdir() if p.suffix == ".zarr"]
    if not results:
        return (
            "That folder holds no `.zarr`. Give the path that `SweepResult.save` or "
            "`sweep(..., store=)` was given; relative paths start from where Python "
            "runs."
        )
    # A folder may hold thousands.
    return nearest(path.name, sorted(results)[:20])


def _result(
    store: Store, schema: dict[str, Any], attributes: Mapping[str, Any]
) -> SweepResult:
    gaps, errors, done = store.account()
    names = store.names()

    def leaf(name: str, dtype: Any, kind: str | None) -> Any:
        found = StoredArray(store, names.index(name), dtype, kind, done)
        return found[...] if "saved" in store.record else found

    cells = schema.get("cells")
    seconds = attributes.get("seconds", "nan")  # those of a sweep are not known yet
    return SweepResult(
        values=outputs_from(schema, leaf),
        space=space_from(schema, store.coordinate),
        _gaps=gaps,
        batch_size=int(attributes["batch_size"]),
        num_devices=int(attributes["devices"]),
        started=datetime.datetime.fromisoformat(attributes["started"]).timestamp(),
        seconds=float(seconds),
        function=attributes.get("function", ""),
        cells=None if cells is None else CellPoints(*_read_all(store, cells)),
        made=tuple((k, v) for k, v in attributes.items() if k not in _OWN),
        _raised=Raised.of(errors),
        output_coords=_output_coords(store, schema),
    )


def _read_all(store: Store, names: list[str]) -> list[np.ndarray]:
    numbers = map(store.names().index, names)
    return [StoredArray(store, k, np.int64)[...] for k in numbers]


def _output_coords(store: Store, schema: dict[str, Any]) -> KnownCoords:
    """Return the dims of outputs that are not named as usual."""
    found: KnownCoords = {}
    variables = {variable.name: variable for variable in store.variables}
    named = outputs_from(schema, lambda name, *_: name)
    for path, name in leaves_with_names(named):
        dims = variables[name].inner_dims
        if dims != inner_dims(name, len(dims)):
            found[path or "value"] = {dim: _coords(store, dim) for dim in dims}
    return found


def _coords(store: Store, dim: str) -> np.ndarray | None:
    if dim not in store.record["coordinates"]:
        return None
    values = store.coordinate(dim)
    return values.astype(np.str_) if values.dtype.kind == "O" else values
