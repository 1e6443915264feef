"""The files that a sweep with a store visits, of the packages of sweeps, in order.

`python -m tests.support.visited` prints them. A file counts if a function of it is
called; one that is only imported does not.
"""

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp

import eqx_pipe as ep
import eqx_pipe._sweep  # noqa: F401  (its files are run here, and not counted)

ROOT = Path(ep.__file__).parent
PACKAGES = "_sweep", "_run", "_results", "_store"


def visited(call: Callable[[], object]) -> list[str]:
    """Return these files in the order in which a call first comes there."""
    found: dict[str, None] = {}

    def note(frame, event, argument):
        if event == "call":
            found.setdefault(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    paths = [Path(name) for name in found if name.startswith(f"{ROOT}/")]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [name for name in names if name.split("/")[0] in PACKAGES]


def stored_sweep() -> None:
    """Sweep a new function over a grid into a new store, and label the result."""
    space = {"x": ep.Linspace(0, 1, 300), "y": ep.Values([1.0, 2.0, 3.0, 4.0])}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/runs.zarr"
        ep.sweep(lambda p: jnp.sin(p["x"]) * p["y"], space, store=path)


if __name__ == "__main__":
    files = visited(stored_sweep)
    print(*(f"{k + 1:3} {name}" for k, name in enumerate(files)), sep="\n")
