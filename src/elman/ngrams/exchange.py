"""Counting stages whose workers share no folder: their files pass through an fsspec address.

    ADDRESS/elman-1f3a.../plan.json, text.ids       put there first
                          count-00003/..., .done    a run of counts; the mark comes last
                          merge-00001/..., .done    a merged range

A worker fetches what a stage reads into a temporary folder, runs the stage there as on a disk of
its own (`stages`), and puts the result back: of the text its shard, of each run the stretches of
its range. A file is put under another name and moved, so one that is there is complete. A stage
that runs twice puts the same bytes twice.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elman.base.errors import ElmanError, UsageError
from elman.base.files import owned_folder
from elman.ngrams.packed_runs import CHUNK, PackedRun
from elman.ngrams.stages import IDS_FILE, PLAN_FILE, Stages
from elman.ngrams.trie_files import FIELDS, TrieFiles


class Exchange:
    """A folder at an address."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        with self._explained():
            import fsspec

            self.system, path = fsspec.core.url_to_fs(address)
            # A copy of a listing may lack what other workers put there since.
            self.system.use_listings_cache = False
            self.path = path.rstrip("/")
            self.address = self.system.unstrip_protocol(self.path)  # of a folder: the whole path

    @classmethod
    def of(cls, address: str, stages: Stages) -> Exchange:
        """The folder of a plan: another plan has another."""
        name = hashlib.sha256((stages.folder / PLAN_FILE).read_bytes()).hexdigest()[:16]
        return cls(f"{address.rstrip('/')}/elman-{name}")

    def share(self, stages: Stages) -> None:
        """Put the text and the plan there, unless they are."""
        if not self.exists(PLAN_FILE):
            for name in (IDS_FILE, PLAN_FILE):
                self.put(stages.folder / name, name)

    def left(self, kind: str, number: int) -> list[int]:
        """The numbers of the stages, of `kind` count or merge, that are still to be done."""
        return [i for i in range(number) if not self.exists(f"{kind}-{i:05}.done")]

    def exists(self, name: str) -> bool:
        with self._explained():
            self.system.invalidate_cache()
            return bool(self.system.exists(f"{self.path}/{name}"))

    def put(self, file: Path, name: str) -> None:
        target = f"{self.path}/{name}"
        other = f"{target}.{secrets.token_hex(4)}"
        with self._explained():
            self.system.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.system.put_file(str(file), other)
            self.system.mv(other, target)

    def put_folder(self, folder: Path) -> None:
        """Put all files of a folder there, then a mark that lists them."""
        names = sorted(file.name for file in folder.iterdir())
        for name in names:
            self.put(folder / name, f"{folder.name}/{name}")
        mark = folder.with_suffix(".done")
        mark.write_text(json.dumps(names))
        self.put(mark, mark.name)

    def get(self, name: str, file: Path) -> None:
        with self._explained():
            self.system.get_file(f"{self.path}/{name}", str(file))

    def get_part(self, name: str, start: int, end: int, file: Path) -> None:
        """Fetch a part of a file, into the same place of a file that may have holes."""
        if start == end:  # some stores answer an empty range with the whole file
            file.touch()
            return
        with self._explained():
            data = self.system.cat_file(f"{self.path}/{name}", start=start, end=end)
        if len(data) != end - start:
            raise ElmanError(f"{self.address}/{name} was cut short", "start again")
        with file.open("r+b" if file.exists() else "wb") as opened:
            opened.seek(start)
            opened.write(data)

    def get_ranges(self, stages: Stages) -> None:
        """Fetch the merged ranges that are not here."""
        for number in stages.ranges_left():
            target = stages.range_files(number).folder
            with stages.making(target) as made:
                for name in json.loads(self._text(f"{target.name}.done")):
                    if Path(name).name != name:
                        raise ElmanError(f"{self.address} lists a file '{name}'", "start again")
                    self.get(f"{target.name}/{name}", made / name)

    def remove(self) -> None:
        """Remove the folder, if it is there."""
        with self._explained():
            self.system.invalidate_cache()
            if self.system.exists(self.path):
                self.system.rm(self.path, recursive=True)

    def _text(self, name: str) -> str:
        with self._explained():
            return str(self.system.cat_file(f"{self.path}/{name}").decode())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            # fsspec says which package has the file system.
            hint = "pip install fsspec" if error.name == "fsspec" else "install it with pip"
            raise ElmanError(f"{self.address} needs another package: {error}", hint) from error
        except (ElmanError, MemoryError):
            raise
        except Exception as error:  # each file system has errors of its own
            raise UsageError(
                f"{self.address} cannot be used: {type(error).__name__}: {error}", _hint(error)
            ) from error


def _hint(error: Exception) -> str:
    if isinstance(error, ValueError):  # an address that fsspec cannot read
        return "name a folder, or an address as in s3://bucket/folder"
    if isinstance(error, PermissionError):
        return "allow this account to read and write there, or name another folder"
    if isinstance(error, (FileNotFoundError, ConnectionError, TimeoutError)):
        return "check that it can be reached and that nothing removed its files; then add --resume"
    return "name a folder that can be written to, as in s3://bucket/folder"


def count_there(address: str, shard: int) -> None:
    """Count a shard of the plan at an address."""
    with _fetched(address) as (exchange, stages):
        plan = stages.plan
        size = stages.ids_dtype.itemsize
        start, end = plan.shards[shard : shard + 2]
        end = min(end + plan.order - 1, plan.num_tokens)
        exchange.get_part(IDS_FILE, start * size, end * size, stages.folder / IDS_FILE)
        stages.count(shard, num_threads=1)
        exchange.put_folder(stages.run_files(shard).folder)


def merge_there(address: str, number: int) -> None:
    """Merge a range of the plan at an address."""
    with _fetched(address) as (exchange, stages):
        ends = stages.plan.ranges[number : number + 2]
        for shard in range(stages.num_shards):
            run, bounds = stages.run_files(shard), (ends[0], ends[1])
            run.folder.mkdir()
            for level in range(stages.plan.order):
                _get_stretch(exchange, run, level, *bounds)
                if level + 1 < stages.plan.order:
                    bounds = run.first_child(level, bounds[0]), run.first_child(level, bounds[1])
        stages.merge(number)
        exchange.put_folder(stages.range_files(number).folder)


@contextmanager
def _fetched(address: str) -> Iterator[tuple[Exchange, Stages]]:
    """Yield a plan in a temporary folder."""
    exchange = Exchange(address)
    with owned_folder() as folder:
        exchange.get(PLAN_FILE, folder / PLAN_FILE)
        yield exchange, Stages(folder)


def _get_stretch(
    exchange: Exchange, run: TrieFiles | PackedRun, level: int, first: int, end: int
) -> None:
    """Fetch what a run needs to read some n-grams of a level, and their continuations."""

    def get(path: Path, start: int, stop: int) -> None:
        exchange.get_part(f"{run.folder.name}/{path.name}", start, stop, path)

    if isinstance(run, PackedRun):
        chunks = first // CHUNK, -(-end // CHUNK)
        get(run.chunks_file(level), 16 * chunks[0], 16 * (chunks[1] + 1))
        places = [int(run.places(level, chunk, 1)[0, 0]) for chunk in chunks]
        get(run.packed_file(level), places[0], places[1])
        return
    for field in FIELDS if level + 1 < run.order else FIELDS[:-1]:
        get(run.path(level, field), 4 * first, 4 * (end + (field == "first_child")))
