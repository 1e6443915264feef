"""`refill`: a loop whose finished lanes take the next point under `vmap`."""

from .refill import refill as refill
from .refill import refill_p as refill_p
