"""The command `eqx-pipe demo`, as it is called."""

import argparse
import contextlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import eqx_pipe as ep

_NEEDED = ("matplotlib", "netCDF4", "optax", "sklearn", "xarray")


def add_demo(commands: argparse._SubParsersAction) -> None:
    """Adds the command, with its options."""
    demo = commands.add_parser(
        "demo",
        help="train a pipeline on handwritten digits and sweep its training",
        description="Trains a small pipeline on 1,797 handwritten digits, then trains "
        "it again at every point of a grid of learning rates, weight decays and seeds, "
        "on all cores. Takes less than two minutes on two cores.",
    )
    demo.add_argument(
        "--quick", action="store_true", help="a smaller grid and shorter trainings"
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("eqx-pipe-demo"),
        help="the folder for the results (default: %(default)s)",
    )
    demo.add_argument(
        "--seed",
        type=_seed,
        default=0,
        help="decides the split, the initial models and the batches (default: 0)",
    )
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    problem = _missing_extra() or _not_writable(options.out)
    if problem:
        print(f"eqx-pipe demo: {problem}", file=sys.stderr)
        return 2
    _use_all_cores()
    from .job import run

    run(options.out, options.seed, options.quick)
    return 0


def _use_all_cores() -> None:
    """Unless the user has decided it by `XLA_FLAGS`, or JAX runs already."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        ep.use_cpu_devices()


def _seed(text: str) -> int:
    # Below 2**28, so that the few seeds made of each fit into 32 bits.
    if not text.isdecimal() or int(text) >= 2**28:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2^28 - 1")
    return int(text)


def _missing_extra() -> str | None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    names = ", ".join(missing)
    return f"{names} not found. Install the demo's extra: pip install 'eqx_pipe[demo]'"


def _not_writable(out: Path) -> str | None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return None
    except OSError as error:
        reason = error.strerror or error
        return f"cannot write to the folder {out} ({reason}). Choose another by --out."
