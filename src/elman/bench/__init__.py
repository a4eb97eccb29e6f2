"""`elman bench`: side-by-side measurements. Nothing else in the package imports this folder.

command.py              the commands and their options; imports the rest when it is needed
rows.py                 rows, and printing them
measuring.py            costs, timing by turns, programs in fresh processes, work folders

kernels.py              one recurrent layer, forward and backward     plot.py draws it
step.py, generate.py    whole training steps; one stream of tokens
recurrent.py, sizes.py  what these three share: models, torch peers, GPU timing; sizes
elmo.py                 contextual word vectors

ngram.py                estimating and scoring beside KenLM     sampled_text.py writes its text
serving.py, soak.py     many streams over HTTP; clients of all kinds for minutes
training.py, lifts.py   whole training runs
"""
