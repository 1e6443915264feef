"""Jaxprs: reading, comparing and running them; the table of JAX's primitives."""

from .fingerprint import Fingerprint as Fingerprint
from .fingerprint import array_text as array_text
from .fingerprint import digest as digest
from .fingerprint import fingerprint_of as fingerprint_of
from .fingerprint import key_of as key_of
from .fingerprint import text_of as text_of
from .jaxpr import equations as equations
