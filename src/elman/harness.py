"""Elman's language models in lm-evaluation-harness: `--model elman --model_args path=runs/mine`.

Importing this module registers the class `ElmanLM` under the name "elman". Versions of lm_eval that
look for plug-ins find it by its entry point; with others, `python -m elman.harness` is `lm_eval`
with the class registered. Requests are scored and continued here, in batches, without HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from elman import api
from elman.base.errors import ElmanError, UsageError
from elman.batches.buckets import batches_by_length
from elman.decode.beam import beam_search
from elman.decode.options import names, read_options
from elman.decode.sample import sample
from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.evaluate.sequences import TOKENS_PER_BATCH, TokenScores, score_tokens
from elman.tasks import language_model_handle as handles

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as missing:
    raise ElmanError("elman.harness needs lm_eval", "pip install 'elman[harness]'") from missing

MAX_TOKENS = 256
"""Limit of a continuation if a task sets none."""
MANY = 64
"""Prompts that are continued together, unless batch_size is given."""


@register_model("elman")
class ElmanLM(LM):  # type: ignore[misc]
    """A run folder, an ARPA file or a mixture of them."""

    def __init__(
        self,
        path: str,
        batch_size: int | str | None = None,
        device: str | None = None,
        as_is: bool = False,
        **others: Any,
    ) -> None:
        """`path` is what `elman evaluate` takes. As there, text is read as the training text was
        written (lower case, tokens apart), unless `as_is`."""
        super().__init__()
        if unknown := set(others) - {"max_batch_size"}:
            raise UsageError(
                f"no setting of the model is called '{min(unknown)}'",
                "choose of: path, batch_size, device, as_is",
            )
        # The harness names a GPU "cuda:0".
        where = "auto" if device is None else device.partition(":")[0]
        handle = api.load(path, device=where)
        if not isinstance(handle, handles.LM):
            raise UsageError(f"{path} is {handle.what}, not a language model", "name another run")
        self.handle = handle
        self.as_is = as_is
        rows = str(batch_size or "")  # "auto" too
        self._rows = int(rows) if rows.isdigit() else None

    @property
    def tokenizer_name(self) -> str:
        """For the cache of requests."""
        return f"{self.handle.name}-{self.handle.tokenizer.hash[:12]}"

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Natural log P(continuation | context) of each request, and whether each token of the
        continuation is the most likely one."""
        pairs = [self._pair(*request.args) for request in requests]
        scores = self._scored([ids for ids, _ in pairs], best=True)
        found = []
        for request, (_, start), score in zip(requests, pairs, scores, strict=True):
            logprobs, best = score.logprobs[start:], (score.best_logprobs or [])[start:]
            greedy = all(p >= b for p, b in zip(logprobs, best, strict=True))
            found.append((sum(logprobs), greedy))
            self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Natural log P of each whole text: the state reaches back to its beginning, or to that of
        the line, of a model that reads each line by itself."""
        parts = [self._texts(self._ids(request.args[0])) for request in requests]
        scores = iter(self._scored([ids for some in parts for ids in some]))
        found = []
        for request, some in zip(requests, parts, strict=True):
            found.append(sum(sum(next(scores).logprobs) for _ in some))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context to one of its `until` texts, or to `max_gen_toks` tokens."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(index)
        for indices in groups.values():
            settings = requests[indices[0]].args[1]
            for some in _parts(indices, self._rows or MANY):
                contexts = [requests[index].args[0] for index in some]
                for index, text in zip(some, self._continued(contexts, settings), strict=True):
                    texts[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return texts

    def _continued(self, contexts: list[str], settings: dict[str, Any]) -> list[str]:
        handle, tokenizer = self.handle, self.handle.tokenizer
        settings = {name: value for name, value in settings.items() if value is not None}
        until = settings.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        beams = int(settings.get("num_beams", 1))
        # As for the harness's own models, `do_sample: false` is greedy at any temperature.
        draws = bool(settings.get("do_sample", settings.get("temperature", 0) > 0))
        known: dict[str, Any] = {
            "max_tokens": int(settings.get("max_gen_toks", MAX_TOKENS)),
            "temperature": settings.get("temperature", 1.0) if draws and beams == 1 else 0.0,
            "beam_size": beams,
            "seed": settings.get("seed", 1234),
        }
        if beams > 1:
            known.pop("temperature")
        if draws:
            known |= {name: settings[name] for name in names(scheme="draw") if name in settings}
        options = read_options(known).without_unknown(tokenizer.unknown_id)
        prompts = [self._ids(context) for context in contexts]
        speakers = [
            Speaker(tokenizer.stream(after=ids[-1] if ids else None), StopMatcher(stops))
            for ids in prompts
        ]
        how: dict[str, Any] = {"boundary_id": tokenizer.boundary_id, "end_ids": handle.end_ids()}
        if beams > 1:
            hypotheses = [
                found[0] for found in beam_search(handle.decoding, prompts, options, **how)
            ]
            return [
                speaker.push_all(hypothesis.tokens, hypothesis.finish_reason)
                for speaker, hypothesis in zip(speakers, hypotheses, strict=True)
            ]
        texts, stopped = [""] * len(prompts), set[int]()
        for step in sample(handle.decoding, prompts, options, stopped=stopped, **how):
            if step.row not in stopped:
                texts[step.row] += speakers[step.row].push(step.token, step.finish_reason)
                if speakers[step.row].finished:
                    stopped.add(step.row)
        return texts

    def _pair(self, context: str, continuation: str) -> tuple[list[int], int]:
        """The ids of both, and the number of those of the context.

        Spaces at the end of the context belong to the continuation, as in the harness's own models.
        """
        kept, text = context.rstrip(), context + continuation
        whole = self._ids(text)
        # Both are read in one way, that of the whole text. A token over the seam belongs to the
        # continuation.
        return whole, min(len(self._ids(kept, like=text)), max(len(whole) - 1, 0)) if kept else 0

    def _ids(self, text: str, like: str | None = None) -> list[int]:
        """The ids of `text`, read as the tokenizer reads `like`."""
        handle = self.handle
        tokenizer = handle.tokenizer if self.as_is else handle.fitted(like or text)
        return [int(token) for token in tokenizer.encode(text)]

    def _texts(self, ids: list[int]) -> list[list[int]]:
        """The parts of a text that are read from a fresh state."""
        if (line_end := self.handle.line_end) is None:
            return [ids]
        starts = [0, *(place + 1 for place, token in enumerate(ids) if token == line_end)]
        lines = [ids[start:end] for start, end in pairwise([*starts, len(ids)])]
        return [line for line in lines if line]

    def _scored(self, sequences: list[list[int]], *, best: bool = False) -> list[TokenScores]:
        """Score sequences after the boundary token, those of similar lengths together."""
        found: list[Any] = [None] * len(sequences)
        model, previous = self.handle.model, self.handle.tokenizer.boundary_id
        for batch in batches_by_length([len(ids) + 1 for ids in sequences], TOKENS_PER_BATCH):
            for some in _parts(batch, self._rows or len(batch)):
                rows = [sequences[index] for index in some]
                scores, _ = score_tokens(model, rows, previous=previous, best=best)
                for index, score in zip(some, scores, strict=True):
                    found[index] = score
        return found


def _parts(values: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def main() -> None:
    """Run the harness's own command line with the class registered."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
