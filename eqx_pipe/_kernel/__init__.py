"""Kernels: a function of one point as machine code for many points.

In order: `scalars` turns the jaxpr of a point into a program of scalars (`arrays` has
the rules for arrays), `blocks` writes it for a block of lanes (`pool` gives them their
points, `elementwise` and `elementary` have the operations), `llvm` writes and compiles
the instructions, `ffi` has XLA call them, and `call` is the primitive. Beside it,
`failures` turns errors into numbers, and `interrupts` stops kernels.
"""

from .call import has_kernels, kernel, kernel_p
from .ffi import machine_text
from .interrupts import STOPPED, share, stopping_at, watched
