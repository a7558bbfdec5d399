"""Scripts that make what is committed, and what the Makefile calls."""
