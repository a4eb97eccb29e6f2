"""Run folders: what is on disk, what describes it, and handles to use a model."""
