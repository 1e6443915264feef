"""One notion of "the same as before", for memory and for disk."""

from .code import array_text, digest
from .fixed import Fixed
from .reading import Unsure, differences, live_key, named_parts, record_of, seen_by
