"""What everything else stands on: errors with hints, configuration, tables, files."""
