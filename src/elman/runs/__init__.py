"""Run folders: files, configuration, card and machine."""
