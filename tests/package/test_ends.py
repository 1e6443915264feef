"""A signal that meets pytest while a sweep is under test ends pytest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("xarray")
pytest.importorskip("zarr")

TESTS = Path(__file__).parents[1]
SWEEPS = """
import pathlib, signal, time
import jax, pytest
import eqx_pipe as ep

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

def slow(x):
    pathlib.Path(__file__).with_name("begun").touch()
    time.sleep(0.01)
    return x

@pytest.mark.parametrize("number", range(9))
def test_a_sweep(tmp_path, number):
    def fn(x):
        return jax.pure_callback(slow, x, x, vmap_method="sequential")

    ep.sweep(fn, ep.Linspace(0, 1, 900), store=tmp_path, batch_size=1, progress=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers"), [("SIGTERM", 0), ("SIGTERM", 2), ("SIGINT", 0)]
)
def test_pytest_ends(tmp_path, name, workers):
    """By a signal to all of its processes, as from `timeout` or a terminal."""
    (tmp_path / "test_sweeps.py").write_text(SWEEPS)
    ours = ["-p", "conftest", "-c", str(TESTS.parent / "pyproject.toml")]
    given = [*ours, "-n", str(workers), "-q", f"--rootdir={tmp_path}", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *given],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    while not (tmp_path / "begun").exists() and child.poll() is None:
        time.sleep(0.02)
    os.killpg(child.pid, getattr(signal, name))
    out, _ = child.communicate(timeout=100)
    assert child.returncode in (2, -signal.SIGTERM), out
    assert " passed" not in out, out
