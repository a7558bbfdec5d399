"""Readers of what people paste, one kind of output a file: lines become facts. recording.py finds the reader."""
