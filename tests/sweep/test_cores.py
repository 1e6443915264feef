"""One device for every core: what is set, refused and said, in fresh processes."""

import os
import subprocess
import sys

import jax
import pytest

import eqx_pipe as ep


def run(code):
    """Return what a fresh process without this suite's devices prints."""
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**env, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_every_core_is_a_device_and_a_late_call_says_what_to_do():
    code = """
import os
os.sched_getaffinity = lambda pid: set(range(5))  # on whatever machine this runs
import eqx_pipe as ep, jax
before = dict(os.environ)
ep.use_cpu_devices()
print(jax.config.jax_num_cpu_devices)
ep.use_cpu_devices(3)  # JAX has not started: the last call counts
ep.use_cpu_devices(4)
ep.use_cpu_devices()  # which leaves what was chosen
# More threads than cores make loops over long arrays several times slower.
print(dict(os.environ) == before)
print(len(jax.devices()))
ep.use_cpu_devices(4)
ep.use_cpu_devices()
try:
    ep.use_cpu_devices(2)
except RuntimeError as error:
    print(error)
result = ep.sweep(lambda x: x**2, ep.Linspace(0, 1, 7))
print(result.num_devices)
"""
    out, err = run(code)
    default, unchanged, first, error, last = out.splitlines()
    assert (default, unchanged, first, last) == ("5", "True", "4", "4")
    assert "already started with 4 CPU devices, but 2 were requested" in error
    assert "top of the program" in error and "restart the kernel" in error
    assert "use_cpu_devices" not in err  # four devices: nothing is idle


def test_idle_cores_are_named_once():
    code = """
import os
os.sched_getaffinity = lambda pid: {0}
import eqx_pipe as ep, jax
ep.sweep(lambda x: x, ep.Linspace(0, 1, 3))  # there is one core: nothing is said
os.sched_getaffinity = lambda pid: set(range(4))
mesh = jax.make_mesh((1,), ("x",))
ep.sweep(lambda x: x, ep.Linspace(0, 1, 3), mesh=mesh)  # chosen: nothing is said
print("", flush=True)
import sys; sys.stderr.write("MESH")
ep.sweep(lambda x: x, ep.Linspace(0, 1, 3))
sys.stderr.write("FIRST")
ep.sweep(lambda x: x + 1, ep.Linspace(0, 1, 3))
try:
    ep.use_cpu_devices()
except RuntimeError as error:
    print(error)
"""
    out, err = run(code)
    assert "already started with 1 CPU device, but 4 were requested" in out
    before, _, rest = err.partition("MESH")
    assert before == ""
    first, _, second = rest.partition("FIRST")
    assert "4 cores" in first and "`eqx_pipe.use_cpu_devices()`" in first
    assert first.count("\n") == 1 and second == ""


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_number_of_devices():
    with pytest.raises(ValueError, match="`n` is 0.*at least 1"):
        ep.use_cpu_devices(0)
    with pytest.raises(TypeError, match="`n` is 'all'.*integer"):
        ep.use_cpu_devices("all")
    ep.use_cpu_devices(len(jax.devices()))
    ep.use_cpu_devices()
