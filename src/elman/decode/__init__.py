"""Choose tokens from next-token distributions. Models and schemes here see ids only.

Reading order: `options` (every option), `prefix` (read a prompt into a state), `processors` (each
scheme's definition), `sample` (token by token, many rows at once; `streams_on_device`, the same for
a server's streams on a GPU, `random_numbers`, for many streams at once), `beam` (the most probable
sequence; `beam_step`, one step of it, and `beam_on_device`, the same on a GPU), `conditional`
(either, given a state), `stop` and `speak` (text from tokens, up to a stop sequence).
"""
