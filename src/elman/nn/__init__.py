"""The arithmetic: cells, layers, stacks, dropouts, inputs, output layers, and their state."""
