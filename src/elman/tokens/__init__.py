"""Convert text to token ids and back: one tokenizer class, one file per kind of vocabulary."""
