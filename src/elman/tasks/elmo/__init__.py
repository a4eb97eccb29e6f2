"""ELMo: a bidirectional language model over characters, and its published files."""
