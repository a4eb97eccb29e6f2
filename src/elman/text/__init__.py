"""Plain text from files, folders and built-in corpora, read in blocks of bounded size."""
