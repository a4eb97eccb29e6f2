"""`elman bench`: side-by-side measurements. Nothing else in the package imports this folder.

command.py              the application
commands/               its commands and their options; they import the rest when it is needed
rows.py                 rows, and printing them
measuring.py            costs, timing by turns, programs in fresh processes, work folders

kernels.py              one recurrent layer, forward and backward     plot.py draws it
scans.py                the scan of cells such as minGRU
step.py, generate.py    whole training steps; one stream of tokens
recurrent.py, sizes.py  what these three share: models, torch peers, GPU timing; sizes
sentences.py            training steps of translators, taggers, classifiers and ELMo
beams.py                beam search and greedy search for translations
elmo.py                 contextual word vectors
ranks.py                training in several processes
loading.py              opening a run folder

ngram.py                estimating and scoring beside KenLM     sampled_text.py writes its text
ngram_layouts.py        size, speed and perplexity of layouts
counting.py             counting within a limit of memory, on workers, and what more text needs
indexing.py             an index of a text, and searches in it
serving.py, soak.py     many streams over HTTP; clients of all kinds for minutes
streams.py              the same streams without HTTP, on a CPU or a GPU
training.py, lifts.py   whole training runs
cells.py                the same model with different cells
ablations.py            parts of published recipes, with and without
automatic.py            automatic choices of settings beside others     alternatives.py lists them
by_speed.py             what cells and choices share: equal minutes by measured speeds
faults/                 crashes, cuts and damage
"""
