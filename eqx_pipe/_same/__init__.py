"""One notion of "the same as before", for memory and for disk."""

from .code import array_text as array_text
from .code import digest as digest
from .fixed import Fixed as Fixed
from .reading import Unsure as Unsure
from .reading import differences as differences
from .reading import live_key as live_key
from .reading import named_parts as named_parts
from .reading import record_of as record_of
from .reading import seen_by as seen_by
