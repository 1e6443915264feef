"""Runs a script in several processes of one JAX run, each with two CPU devices."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

_START = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
rank, size, port = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
"""


def plain_flags():
    """`XLA_FLAGS` without the eight devices: what another process compiles is alike."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(flag for flag in flags if "device_count" not in flag)


def run_processes(script, size=2):
    """Run `script`, which finds its `rank`, and raise unless all copies succeed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = _START + textwrap.dedent(script)
    root = pathlib.Path(__file__).parents[2]
    env = os.environ | {"XLA_FLAGS": plain_flags()}
    env["PYTHONPATH"] = os.pathsep.join([str(root), env.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(size), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, text in zip(started, said, strict=True):
        assert process.returncode == 0, text
