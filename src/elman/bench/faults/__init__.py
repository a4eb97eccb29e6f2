"""`elman bench faults`: what survives crashes, power cuts, damaged files and hostile clients.

| module | |
|---|---|
| `command.py` | the command, and the table of targets |
| `outcomes.py` | what a case can end with, the plan of a campaign, and the summary |
| `forking.py` | run a command line in a fork of a process that has imported everything |
| `operations.py` | count, record and fail the file operations of a command |
| `subjects.py` | tiny data and settings for each task |
| `crash_points.py` | SIGKILL, ENOSPC and EIO at each file operation of a run |
| `power_cuts.py` | the states of a disk that a power cut may leave |
| `specimens.py` | small sound files of every format, and the commands that read them |
| `mutations/` | ways to damage files, by format |
| `damaged_files.py` | damage to every file that Elman reads |
| `flips.py` | single bits in the files of run folders |
| `memory.py` | too little memory, and files that ask for too much |
| `live_server.py` | `elman serve` in a process of its own |
| `server.py` | clients that send what they should not, or do not read |
| `soak.py` | training, scoring and serving for a long time, with kills |

A target is a function `(plan) -> Iterator[Case]`. Cases of a target run two at a time, each in
forked processes, in a folder of its own.
"""
