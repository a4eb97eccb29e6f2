"""What commands share: printing, options, progress."""
