"""N-gram language models, fitted by counting."""
