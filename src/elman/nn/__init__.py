"""The arithmetic: cells, layers, stacks, dropouts, inputs and output layers, and the state they
carry."""
