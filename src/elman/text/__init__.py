"""Open text files, folders and built-in corpora; read word-vector files."""
