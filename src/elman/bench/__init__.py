"""`elman bench`: side-by-side measurements. Nothing else in the package imports this folder.

    command.py              registers the commands
    shared.py               options, work folder and printing of rows
    measuring.py            rows, costs, timing by turns, programs in fresh processes

    recurrent_command.py    kernels, step and generate: options and sizes
    recurrent.py            what these three share: models, torch peers, errors, GPU timing
    kernels.py              one layer, forward and backward     plot.py draws it
    step.py                 whole training steps
    generate.py             one stream of tokens
    elmo_command.py, elmo.py    contextual word vectors

    ngram.py                estimating and scoring beside KenLM
    serving.py, soak.py     many streams over HTTP; clients of all kinds for minutes
    equal_time.py, regimes.py, pictures.py, lifts.py    whole training runs

Modules with a command import torch inside functions, so that `--help` is instant.
"""
