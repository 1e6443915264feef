"""Datasets as files, Zarr or NetCDF, which are complete or not there."""

import importlib.util
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._errors import message, value_error
from ..._files import as_path
from ..._store.folder import as_zarr, is_name, is_netcdf_name, quiet_zarr
from .label import check_names

if TYPE_CHECKING:
    from xarray import Dataset
else:  # imported where it is used
    Dataset = Any

# NetCDF has complex numbers in one of its two libraries only, and on request.
COMPLEX: dict[str, Any] = {}
if importlib.util.find_spec("netCDF4") is not None:
    COMPLEX = {"engine": "netcdf4", "auto_complex": True}


def save(data: Dataset, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Writes a dataset beside its place, and then puts it there."""
    path = as_path("SweepResult.save", path)
    kind = path.suffix
    if kind not in (".zarr", ".nc"):
        raise value_error(
            "SweepResult.save",
            f"`path` is {str(path)!r}, with the suffix {kind!r}.",
            "Give a path that ends in `.zarr` or in `.nc` (NetCDF).",
        )
    if os.path.lexists(path):
        _check_replaceable(path, overwrite)
    names = {*map(str, data.variables), *map(str, data.dims)}
    fits = is_name if kind == ".zarr" else is_netcdf_name
    check_names("SweepResult.save", sorted(names), fits)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        if kind == ".zarr":
            with quiet_zarr():
                data.to_zarr(
                    as_zarr(beside), mode="w-", zarr_format=3, consolidated=True
                )
        else:
            numbers = {x.dtype.kind for x in data.variables.values()}
            data.to_netcdf(beside, **(COMPLEX if "c" in numbers else {}))
        _put(beside, path)
    finally:
        _remove(beside)


def _check_replaceable(path: Path, overwrite: bool) -> None:
    wrong, cure = f"there is something at {str(path)!r} already.", ""
    if not overwrite:
        cure = "Choose another path, or give `overwrite=True`."
    elif path.suffix == ".zarr" and not (path / "zarr.json").is_file():
        wrong = f"what is at {str(path)!r} is no Zarr folder, and not overwritten."
        cure = "Choose another path, or remove it yourself."
    elif path.suffix == ".nc" and not path.is_file():
        wrong = f"what is at {str(path)!r} is no file, and not overwritten."
        cure = "Choose another path, or remove it yourself."
    if cure:
        raise FileExistsError(message("SweepResult.save", wrong, cure))


def _put(beside: Path, path: Path) -> None:
    """Renames what is finished; a folder cannot replace a folder in one step."""
    if not path.is_dir():
        os.replace(beside, path)
        return
    old = beside.with_suffix(".old")
    os.replace(path, old)
    try:
        os.replace(beside, path)
    # Ctrl-C too must not leave the place empty.
    except BaseException:
        os.replace(old, path)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
