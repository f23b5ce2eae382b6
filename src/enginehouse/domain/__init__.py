"""Nouns and errors of the program. Standard library only; imports nothing of ours outside this package."""
