"""Tagging: a label for every word of a sentence (parts of speech, named entities)."""
