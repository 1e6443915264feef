"""How long a call of `compiled` takes beside `jax.jit` with closed-over parameters.

Run as `python benchmarks/dispatch.py`. For chains of 8, 32 and 64 small layers each
program is called in turn, in blocks, and the ratio of neighbouring blocks is taken, so
that a busy machine harms both alike. Printed: the median time of a call in
microseconds, and the median ratio with its mean absolute deviation from the median.
"""

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

NUM_CALLS = 400


def seconds(call, x):
    """Time per call over one block."""
    start = time.perf_counter()
    for _ in range(NUM_CALLS):
        y = call(x)
    jax.block_until_ready(y)
    return (time.perf_counter() - start) / NUM_CALLS


def ratios(call, reference, x, num_ratios):
    """Interleaved ratios, and the reference's times. The order alternates."""
    found, times = [], []
    for i in range(num_ratios):
        order = (call, reference) if i % 2 else (reference, call)
        measured = {id(f): seconds(f, x) for f in order}
        found.append(measured[id(call)] / measured[id(reference)])
        times.append(measured[id(reference)])
    return np.array(found), np.array(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratios", type=int, default=41)
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {args.ratios} ratios of {NUM_CALLS} calls each")
    print("layers  jit us  compiled / jit   filter_jit / jit")
    for num_layers in (8, 32, 64):
        layers = []
        for i in range(num_layers):
            layers += [eqx.nn.Linear(16, 16, key=jr.key(i)), jnp.tanh]
        pipe = ep.chain(*layers)
        x = jnp.ones(16)
        reference = jax.jit(lambda x, pipe=pipe: pipe(x))
        columns = []
        for call in (ep.compiled(pipe, x), eqx.filter_jit(pipe)):
            reference(x), call(x)
            found, times = ratios(call, reference, x, args.ratios)
            median = np.median(found)
            spread = np.median(np.abs(found - median))
            columns.append(f"{median:.3f} +- {spread:.3f}")
        print(
            f"{num_layers:6}  {np.median(times) * 1e6:6.1f}  " + "       ".join(columns)
        )


if __name__ == "__main__":
    main()
