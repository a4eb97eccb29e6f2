"""Networks and interfaces that several tasks share; models of a single task lie in its folder."""
