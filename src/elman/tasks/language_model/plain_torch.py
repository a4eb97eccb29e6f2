"""`elman convert RUN model.py`: a recurrent language model as a short program that imports torch
alone, for reading, teaching, and use without Elman.

The program is put together from the pieces below: those of the run's own cell, joins and tokens.
Beside it lies a safetensors file; the program knows where each tensor begins in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from elman.base.errors import UsageError
from elman.base.files import write_text
from elman.base.tensor_files import open_tensors
from elman.models.recurrent import RecurrentLM
from elman.nn.heads.full import FullConfig
from elman.nn.heads.sampled import SampledConfig
from elman.nn.inputs import Lookup
from elman.runs.new_folder import check_free, filling
from elman.runs.run_folder import CONFIG_FILE
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tasks.opening import OpenedRun, open_run, read_config
from elman.train import checkpoint

SUFFIX = ".py"
TOKENS = "tokens"

LSTM = '''def cell(layer, x, state):
    """Long short-term memory: gates i, f, o, new content g, memory c, output h."""
    h, c = state
    i, f, g, o = gates(layer, x, h).chunk(4, dim=1)
{peek}    i, f = torch.sigmoid(i), torch.sigmoid(f)
{cap}    c = f * c + i * torch.tanh(g)
{peek_out}    h = torch.sigmoid(o) * torch.tanh(c)
{project}    return h, (h, c)
'''
GRU = '''def cell(layer, x, state):
    """Gated recurrent unit: reset gate r, update gate u (what is renewed), new content n."""
    (h,) = state
    W, U, b = matrices(layer)
    n_size = len(b) // 3
    from_x, U_ru, U_n = x @ W.T + b, U[: 2 * n_size], U[2 * n_size :]
    r, u = torch.sigmoid(from_x[:, : 2 * n_size] + h @ U_ru.T).chunk(2, dim=1)
    n = torch.tanh(from_x[:, 2 * n_size :] + {content})
    h = (1 - u) * h + u * n
    return h, (h,)
'''
RNN = '''def cell(layer, x, state):
    """The vanilla RNN (Elman, 1990)."""
    h = torch.{nonlinearity}(gates(layer, x, state[0]))
    return h, (h,)
'''
PROGRAM = '''"""{title}

A recurrent language model in plain torch, written by `elman convert`.
Its weights are in {weights} beside this file.
`logprobs` scores a list of token ids, `step` reads one token, `generate` goes on.

    echo "{example}" | python {program}
"""

import torch

LAYERS = {layers}
BOUNDARY = {boundary}  # the id of the token that begins every text
UNKNOWN = {unknown}  # the id of a token that is not in the vocabulary
FILE = __file__.removesuffix(".py") + ".safetensors"
WEIGHTS = {{  # name: where its numbers begin in the file, and its shape
{table}
}}
NUMBERS = torch.from_file(FILE, size={num_numbers}, dtype=torch.float32)
SPELLINGS = torch.from_file(FILE, size={num_bytes}, dtype=torch.uint8)[{first_byte}:].tolist()
TOKENS = [piece.decode() for piece in bytes(SPELLINGS).split(b"\\xff")]


def weight(name):
    start, *shape = WEIGHTS[name]
    return NUMBERS[start : start + torch.Size(shape).numel()].view(shape)


def matrices(layer):
    """W, U and b of a layer: its gates are functions of W x + U h + b."""
    names = ("input_weight", "recurrent_weight", "bias")
    return [weight(f"stack.layers.{{layer}}.cell.{{name}}") for name in names]


def gates(layer, x, h):
    W, U, b = matrices(layer)
    return x @ W.T + h @ U.T + b


{cell}

def initial_state(batch_size=1):
    """Zeros: for each layer, {state_names}."""
    sizes = {sizes}
    return [tuple(torch.zeros(batch_size, size) for size in layer) for layer in sizes]


def step(tokens, state):
    """Read a token in each row (B,); return log probabilities (B, V) of the next, and the state."""
    x, after, outputs = weight("input.embedding.weight")[tokens], [], []
    for layer in range(LAYERS):
        h, new = cell(layer, x, state[layer])
{join}        after.append(new)
        outputs.append(x)
    scores = {output} @ weight("{matrix}").T + weight("head.softmax.bias")
    return scores.log_softmax(1), after


def logprobs(ids):
    """The natural log probability of each id, given those before it."""
    state, found = initial_state(), []
    for previous, token in zip([BOUNDARY, *ids], ids):
        scores, state = step(torch.tensor([previous]), state)
        found.append(scores[0, token].item())
    return found


def generate(ids, num_tokens, temperature=1.0):
    """Go on from `ids`; temperature 0 takes the most likely token each time."""
    state, ids = initial_state(), list(ids)
    for previous in [BOUNDARY, *ids]:
        scores, state = step(torch.tensor([previous]), state)
    for _ in range(num_tokens):
        if UNKNOWN is not None:
            scores[0, UNKNOWN] = -torch.inf
        if temperature:
            token = torch.multinomial((scores[0] / temperature).softmax(0), 1).item()
        else:
            token = scores[0].argmax().item()
        ids.append(token)
        scores, state = step(torch.tensor([token]), state)
    return ids


def encode(text):
    """{encode_help}"""
    {encode}


if __name__ == "__main__":
    ids = encode(input())
    for token, logprob in zip(ids, logprobs(ids)):
        print(f"{{TOKENS[token]!r:20}} {{-logprob / torch.log(torch.tensor(2.0)):.4f}} bits")
    print({joined}.join(TOKENS[token] for token in generate(ids, 40, temperature=0)))
'''
ENCODE = {
    "char": (
        "Each character is a token.",
        "return [TOKENS.index(c) if c in TOKENS else UNKNOWN for c in text]",
    ),
    "byte": ("Each byte is a token.", "return [byte + 1 for byte in text.encode()]"),
    "word": (
        "Tokens are separated by spaces; <eos> ends a line.",
        "return [TOKENS.index(w) if w in TOKENS else UNKNOWN for w in text.split()]",
    ),
    "bpe": (
        "Ids separated by spaces: tokenizer.json of the run makes them.",
        "return [int(number) for number in text.split()]",
    ),
}
ENCODE["pretokenized"] = ENCODE["word"]
ENCODE["sentencepiece"] = ENCODE["bpe"]


def convert(source: Path, target: Path, to_folder: bool) -> dict[str, Any] | None:
    """Write the program and its weights; None if `source` is of another task."""
    if to_folder or target.suffix != SUFFIX or not (source / CONFIG_FILE).is_file():
        return None
    if not isinstance(read_config(source), LanguageModelRun):
        return None
    run = open_run(source)
    _check(run)
    weights = target.with_suffix(".safetensors")
    check_free(weights)
    tokenizer = run.tokenizer
    spelled = b"\xff".join(spelling.encode() for spelling in tokenizer.spellings())
    tensors = {name: tensor.float() for name, tensor in run.model.state_dict().items()}
    # Read-only bytes would make torch warn.
    tensors[TOKENS] = torch.from_numpy(np.frombuffer(bytearray(spelled), np.uint8))
    with filling(target.parent, target.name) as folder:
        checkpoint.write(folder / weights.name, tensors, {})
        write_text(folder / target.name, _program(run, folder / weights.name, target))
    size = weights.stat().st_size
    return {"bytes": size, "notes": [f"its weights are in {weights.name} beside it"]}


def _check(run: OpenedRun) -> None:
    """Refuse a part of the model that the program does not have."""
    model, config = run.model, run.config.model
    part = None
    if not isinstance(model, RecurrentLM):
        part = f"a {config.kind} model"
    elif model.contexts is not None:
        part = "a MaxEnt layer"
    elif not isinstance(model.input, Lookup):
        part = "a convolution over characters"
    elif config.cell not in ("lstm", "gru", "rnn"):
        part = f"the cell {config.cell}"
    elif config.layer_norm or config.mogrify_rounds:
        part = "layer normalisation" if config.layer_norm else "a Mogrifier"
    elif config.join not in ("plain", "residual"):
        part = f"the join {config.join}"
    elif not isinstance(config.head, (FullConfig, SampledConfig)):
        part = f"the output layer {config.head.kind}"
    if part is not None or ":" in run.tokenizer.kind:
        raise UsageError(
            f"{run.path} has {part or 'a tokenizer of its own'}, which cannot be converted to "
            "a program in plain torch",
            "convert a plain lstm, gru or rnn model with a full softmax",
        )


def _program(run: OpenedRun, weights: Path, target: Path) -> str:
    model, config, tokenizer = run.model, run.config.model, run.tokenizer
    with open_tensors(weights) as file:
        entries = dict(file.table)
    spelled = entries.pop(TOKENS)
    table = "\n".join(
        f'    "{name}": ({", ".join(map(str, (entry.start // 4, *entry.shape)))}),'
        for name, entry in entries.items()
    )
    help, encode = ENCODE[tokenizer.kind]
    words = tokenizer.kind in ("word", "pretokenized")
    cells = [layer.cell for layer in model.stack.layers]
    return PROGRAM.format(
        title=target.stem,
        weights=weights.name,
        program=target.name,
        example=" ".join(map(str, range(2, 5))) if encode == ENCODE["bpe"][1] else "the",
        layers=config.num_layers,
        boundary=tokenizer.boundary_id,
        unknown=tokenizer.unknown_id,
        table=table,
        num_numbers=max(entry.end for entry in entries.values()) // 4,
        first_byte=spelled.start,
        num_bytes=spelled.end,
        cell=_cell(config),
        state_names=" and ".join(cells[0].state_sizes),
        sizes=[tuple(cell.state_sizes.values()) for cell in cells],
        join=_join(model, config),
        output="sum(outputs)" if config.sum_layers else "x",
        matrix="input.embedding.weight" if config.tied else "head.softmax.own_weight",
        encode=encode,
        encode_help=help,
        joined='" "' if words else '""',
    )


def _cell(config: Any) -> str:
    peephole = 'weight(f"stack.layers.{layer}.cell.peephole_weight")'
    project = '    h = h @ weight(f"stack.layers.{layer}.cell.projection_weight").T\n'
    if config.cell == "lstm":
        return LSTM.format(
            peek=f"    peek = {peephole}\n    i, f = i + peek[0] * c, f + peek[1] * c\n"
            if config.peephole
            else "",
            cap="    i = torch.minimum(i, 1 - f)\n" if config.cap_input else "",
            peek_out="    o = o + peek[2] * c\n" if config.peephole else "",
            project=project if config.projection_size else "",
        )
    if config.cell == "gru":
        bias = 'weight(f"stack.layers.{layer}.cell.recurrent_bias")'
        after = f"r * (h @ U_n.T + {bias})"
        return GRU.format(content="(r * h) @ U_n.T" if config.gru_form == "reset_before" else after)
    return RNN.format(nonlinearity=config.nonlinearity)


def _join(model: RecurrentLM, config: Any) -> str:
    """The lines that make `x`, what the next layer reads."""
    if config.join == "plain":
        return "        x = h\n"
    carried = [hasattr(join.carry, "weight") for join in model.stack.joins]
    if not any(carried):
        return "        x = x + h\n"
    return (
        '        carry = f"stack.joins.{layer}.carry.weight"\n'
        "        x = (x @ weight(carry).T if carry in WEIGHTS else x) + h\n"
    )
