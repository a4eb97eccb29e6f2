"""The arithmetic: cells, layers, stacks, dropout, attention, input and output layers, and state."""
