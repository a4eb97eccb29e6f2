"""Neural language models: recurrent, fixed-window and maximum-entropy."""
