"""Sparse non-negative matrix language models of skip-grams, fitted by counting."""
