"""`refill`: a loop whose finished lanes take the next point under `vmap`."""

from .refill import refill, refill_p
