"""The combinators, one (or a pair) in a file; what they share lies beside them."""
