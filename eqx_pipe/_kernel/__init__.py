"""Kernels: a function of one point as machine code for many points.

In order: `scalars` turns the jaxpr of a point into a program of scalars (`arrays` has
the rules for arrays), `blocks` writes it for a block of lanes (`elementwise` and
`elementary` have the operations), `llvm` writes and compiles the instructions, and
`call` has XLA call them.
"""

from .call import kernel as kernel
