"""SIGTERM and SIGHUP: what is in flight is kept, and the process ends."""

import signal
import subprocess
import sys
import time

import pytest

import eqx_pipe as ep

pytest.importorskip("xarray")
pytest.importorskip("zarr")

SCRIPT = """
import signal, sys, time
import jax, jax.numpy as jnp
import eqx_pipe as ep

path, handler = sys.argv[1:]
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored in what `nohup` has started
if handler == "own":
    signal.signal(signal.SIGTERM, lambda *_: print("own", flush=True))

def slow(x):
    print("begun", flush=True)
    time.sleep(0.05)
    return x

def fn(x):
    return jax.pure_callback(slow, x, 2 * x, vmap_method="sequential")

space, options = ep.Linspace(0, 39, 40), {"batch_size": 2, "progress": False}
mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
try:
    ep.sweep(fn, space, store=path, mesh=mesh, **options)
finally:
    print("cleaned up", flush=True)
"""


def started(path, handler=""):
    command = [sys.executable, "-c", SCRIPT, str(path), handler]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, **pipes, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow)]
)
def test_what_is_in_flight_is_kept(tmp_path, name):
    path, number = tmp_path / "runs.zarr", getattr(signal, name)
    child = started(path)
    child.send_signal(number)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 128 + number and out.endswith("cleaned up\n")
    assert f"{name}: it stops after the step or batch" in err
    assert "Traceback" not in err
    there = ep.SweepResult.load(path)
    kept = int(there.ok.sum())
    assert 0 < kept < 40 and f"{kept} of 40 points are finished and kept" in err
    # Every point that was begun is there, and none else.
    assert out.count("begun") + 1 == kept


@pytest.mark.slow
def test_the_second_one_ends_it_at_once(tmp_path):
    child = started(tmp_path / "runs.zarr")
    for _ in range(2):
        child.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    out, _ = child.communicate(timeout=100)
    assert child.returncode == -signal.SIGTERM and "cleaned up" not in out


@pytest.mark.slow
def test_a_handler_of_the_program_is_left_alone(tmp_path):
    child = started(tmp_path / "runs.zarr", "own")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0 and "own" in out and "stops" not in err
    assert ep.SweepResult.load(tmp_path / "runs.zarr").ok.all()
