"""Classification: a label for a whole text (sentiment, spam, the language of a name)."""
