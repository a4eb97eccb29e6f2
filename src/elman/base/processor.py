"""The name of the processor."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

EXTENSIONS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
"""What matters for products of matrices, by its name in /proc/cpuinfo; the best first."""


@lru_cache(None)
def processor_name() -> str:
    """Its name, family and model, and its widest vectors: "AMD EPYC (26.2, AVX-512 BF16)".

    A virtual machine may shorten the name: two generations of processors are "AMD EPYC" then.
    """
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = fields.get("flags", "").split()
    best = next((said for flag, said in EXTENSIONS.items() if flag in flags), "")
    generation = ".".join(fields[key] for key in ("cpu family", "model") if key in fields)
    about = ", ".join(filter(None, (generation, best)))
    return f"{name} ({about})" if about else name
