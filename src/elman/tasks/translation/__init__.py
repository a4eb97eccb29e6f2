"""Translation: a sentence from a sentence, by an encoder and a decoder with attention."""
