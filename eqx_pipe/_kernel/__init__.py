"""Kernels: a function of one point as machine code for many points.

In order: `scalars` turns the jaxpr of a point into a program of scalars (`arrays` has
the rules for arrays), `blocks` writes it for a block of lanes (`pool` gives them their
points, `elementwise` and `elementary` have the operations), `llvm` writes and compiles
the instructions, `ffi` has XLA call them, and `call` is the primitive. Beside it,
`failures` turns errors into numbers, and `interrupts` stops kernels.
"""

from .call import has_kernels as has_kernels
from .call import kernel as kernel
from .call import kernel_p as kernel_p
from .ffi import machine_text as machine_text
from .interrupts import STOPPED as STOPPED
from .interrupts import share as share
from .interrupts import stopping_at as stopping_at
from .interrupts import watched as watched
