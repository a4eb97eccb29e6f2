"""Text given a label: a language model whose state begins with a label."""
