"""`elman convert --to hf`: a run as a folder for Hugging Face's transformers, and back.

    config.json                        sizes, labels, and the run's own settings under "elman"
    model.safetensors                  the weights, named network.*
    tokenizer.json, tokenizer_config.json
    generation_config.json             of language models: the tokens that end a text
    README.md                          the model's card, with front matter

`import elman.hf` registers the classes that read it. transformers is not imported here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.base.documents import damaged, intact, read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import regular, write_text
from elman.base.tables import imported
from elman.runs.new_folder import filling
from elman.runs.run_folder import CARD_FILE, CONFIG_FILE, MODEL_FILE, about, write_config
from elman.tasks import all_tasks, task_named
from elman.tasks.opening import open_run, run_config
from elman.tasks.task import HuggingFaceForm, Task

MODEL_TYPE = "elman"
PREFIX = "network."
"""In front of the names of the weights."""
INDEX_FILE = "model.safetensors.index.json"
CARD = "README.md"
GENERATION_FILE = "generation_config.json"


def is_hugging_face(path: Path) -> bool:
    """Whether a folder is one of Elman's models for transformers."""
    if not (path / CONFIG_FILE).is_file():
        return False
    try:
        content = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("model_type") == MODEL_TYPE


def write_hugging_face(source: Path, target: Path) -> dict[str, Any]:
    """Write a run folder as a folder for transformers."""
    from safetensors.torch import save_file

    run = open_run(source)
    task = task_named(run.config.task)
    form = _form(task, str(source))
    entries = form.entries(run)
    config = {
        "model_type": MODEL_TYPE,
        "architectures": [form.architecture],
        **{name: value for name, value in entries.items() if value is not None},
        "tie_word_embeddings": False,
        "dtype": "float32",
        MODEL_TYPE: to_dict(run.config),
    }
    files = {CONFIG_FILE: config, **form.files(run.tokenizer)}
    if "bos_token_id" in entries:
        files[GENERATION_FILE] = _generation(entries)
    tensors = {PREFIX + name: t.contiguous() for name, t in run.model.state_dict().items()}
    metadata = {"format": "pt", MODEL_TYPE: json.dumps(run.header)}
    with filling(target, CONFIG_FILE) as folder:
        save_file(tensors, folder / MODEL_FILE, metadata)
        write_text(folder / CARD, _card(source, target, form))
        for name, content in files.items():
            write_json(folder / name, content)
    size = (target / MODEL_FILE).stat().st_size
    return {"bytes": size, "notes": ["read it in Python after: import elman.hf"]}


def read_hugging_face(source: Path, target: Path) -> dict[str, Any]:
    """Write a run folder from a folder for transformers, as written here or by save_pretrained."""
    from elman.train import checkpoint

    content = read_json(source / CONFIG_FILE)
    if not isinstance(content.get(MODEL_TYPE), dict):
        raise damaged(source / CONFIG_FILE, f"it has no entry '{MODEL_TYPE}'")
    config = run_config(content[MODEL_TYPE], source / CONFIG_FILE)
    form = _form(task_named(config.task), str(source))
    tensors, header = _weights(source)
    with filling(target, CONFIG_FILE) as folder:
        with intact(source / CONFIG_FILE):
            vocabulary = form.restore(source, folder)
            model = form.build(config, content)
        if (size := header.get("vocab_size", vocabulary.vocab_size)) != vocabulary.vocab_size:
            raise ElmanError(
                f"{source}: the vocabulary has {vocabulary.vocab_size} entries, the model's {size}",
                "copy the whole folder: a file of it is that of another model",
            )
        checkpoint.load_weights(model, tensors, source / MODEL_FILE)
        checkpoint.write(folder / MODEL_FILE, model.state_dict(), {**header, **about(vocabulary)})
        text = (
            f"# {target.name}\n\nA model converted from {source.name}, a folder for transformers.\n"
        )
        write_text(folder / CARD_FILE, text)
        write_config(folder, config)
    return {"bytes": (target / MODEL_FILE).stat().st_size, "notes": []}


def _form(task: Task, path: str) -> HuggingFaceForm:
    if task.hugging_face is None:
        names = [other.name for other in all_tasks() if other.hugging_face is not None]
        raise UsageError(
            f"{path} is {task.what} ({task.name}), which cannot be converted for transformers",
            f"models of these tasks can be: {', '.join(names)}",
        )
    return imported(task.hugging_face)


def _generation(entries: dict[str, Any]) -> dict[str, Any]:
    """How `model.generate` begins and ends a text, and that it never draws the unknown token."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    settings = {name: entries[name] for name in names if entries[name] is not None}
    if entries.get("unk_token_id") is not None:
        settings["suppress_tokens"] = [entries["unk_token_id"]]
    return settings


def _weights(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors without their prefix, in float32, and the header of the run, if it is kept."""
    from safetensors import SafetensorError, safe_open

    names = [MODEL_FILE]
    if (source / INDEX_FILE).is_file():  # save_pretrained divides large models
        with intact(source / INDEX_FILE):
            shards = read_json(source / INDEX_FILE)["weight_map"].values()
            names = [Path(name).name for name in dict.fromkeys(shards)]
    tensors: dict[str, Any] = {}
    header: dict[str, Any] = {}
    for name in names:
        try:
            with safe_open(regular(source / name), framework="pt") as file:
                header |= json.loads((file.metadata() or {}).get(MODEL_TYPE, "{}"))
                for key in file.keys():  # noqa: SIM118  it is not a mapping
                    tensor = file.get_tensor(key)
                    tensor = tensor.float() if tensor.is_floating_point() else tensor
                    tensors[key.removeprefix(PREFIX)] = tensor
        except FileNotFoundError as error:
            raise ElmanError(f"{source} has no {name}", "copy the whole folder") from error
        except (SafetensorError, TypeError, ValueError) as error:
            raise damaged(source / name, str(error)) from error
    return tensors, header


def _card(source: Path, target: Path, form: HuggingFaceForm) -> str:
    card = source / CARD_FILE
    text = card.read_text(encoding="utf-8") if card.is_file() else f"# {target.name}\n"
    text = text.partition("\n<!-- ")[0].rstrip("\n")
    return (
        "---\n"
        "library_name: transformers\n"
        f"pipeline_tag: {form.pipeline}\n"
        "tags:\n- elman\n- rnn\n"
        "---\n\n"
        f"{text}\n\n"
        "## In transformers\n\n"
        "```python\n"
        "import elman.hf  # pip install 'elman[hf]'\n"
        "from transformers import pipeline\n\n"
        f'pipe = pipeline("{form.pipeline}", "{target.name}")\n'
        f"{form.example}\n"
        "```\n"
    )
