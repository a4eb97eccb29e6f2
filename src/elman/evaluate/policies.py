"""How surprisal is measured: the policies, on which the literature differs.

Beginning   Each line is a separate text: it follows the boundary token and the initial state. With
            `carry` the lines are one running text, and only the first follows the boundary.
End         A line ends with an end mark: `<eos>` for tokenizers that mark lines, the newline for
            the others. It is scored and reported with `include_end`, otherwise left out. A row for
            it has the text `<eos>` or a newline, and an empty span at the line's end.
Word        A run of characters that are not whitespace. Its surprisal is the sum over its pieces,
            and `boundary` decides which word the whitespace counts for:
  trailing    a word's surprisal is -log P(the word, and that it ends here | what came before).
              Characters and bytes: the whitespace after a word counts for that word, and the end
              mark for the last word.
              Sub-words with their leading space (" cat"): the plain sum of the pieces leaves out
              that the word ends, and includes the end of the word before. So -log P(the next piece
              begins a word, or the text ends) is added at the word's end, and what was added at
              the end of the word before is subtracted (Oh and Schuler, 2024; Pimentel and Meister,
              2024). The end mark has its own row, with the rest of its surprisal given that the
              word has ended.
  leading     the plain sum of the pieces; whitespace counts for the word that follows it.
            In both, words and end mark together have exactly the surprisal of all the line's
            tokens. Without the end mark, `trailing` still includes that a last word made of
            sub-words ends, and `leading` does not.
Context     Without `context` a token is predicted from everything before it. With it, from at most
            that many tokens, the boundary token included: the state begins anew for every token.
Reset       A model that adapts (`--adapt`, `--cache`) keeps what it has learnt from line to line,
            in the order of the text, also where each line begins with the initial state. `blank`
            and `line` let it forget at each blank line, between documents, or at each line.
Unknown     Rows with an out-of-vocabulary piece are flagged. `score` uses -log P(<unk>) for it;
            `mark` reports no surprisal for such a token or word, and leaves the piece out of a
            line's sum and count.
Entropy     With `entropy`, rows have the entropy of the distribution over the next token, before
            the row's first token is read, and how much lower it is after its last token. Negative
            reductions are kept; Hale (2006) counts them as 0. Nothing is predicted after the end
            of a text, so there is no reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from elman.base.errors import UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What a row is, and how it is scored."""

    unit: str = field(default="token", metadata={"metavar": "token|word|line"})
    """Unit of a row."""
    base: str = field(default="2", metadata={"metavar": "2|e|10"})
    """Base of the logarithm: bits, nats or bans."""
    boundary: str = field(default="trailing", metadata={"metavar": "trailing|leading"})
    """Count the space between two words with the first or second."""
    unknown: str = field(default="score", metadata={"metavar": "score|mark"})
    """Score unknown words as <unk>, or leave their surprisal empty."""
    carry: bool = field(default=False, metadata={"flag": "--carry"})
    """Read the lines as one text."""
    include_end: bool = field(default=True, metadata={"flag": "--end/--no-end"})
    """Count the end of each line."""
    context: int | None = field(default=None, metadata={"metavar": "K", "min": 1})
    """Predict each token from at most the K tokens before it."""
    reset: str = field(default="never", metadata={"metavar": "never|blank|line"})
    """With --adapt or --cache: forget at each blank line, or each line."""
    entropy: bool = field(default=False, metadata={"flag": "--entropy"})
    """Add the entropy of the next token, and its reduction."""

    def __post_init__(self) -> None:
        for policy in fields(self):
            allowed = policy.metadata.get("metavar", "").split("|")
            value = getattr(self, policy.name)
            if len(allowed) > 1 and value not in allowed:
                raise UsageError(f"{policy.name} cannot be '{value}'", nearest(value, allowed))
