"""The opening texts of docs/benchmarks.md and of its appendix, the same for all measurements."""

COMMAND = "python scripts/benchmarks/run.py"

PAGE = f"""\
# Benchmarks

How fast tfdist trains, relative to what is possible at best and to other libraries that do the
same. One command writes this page and [its appendix](APPENDIX), which has all figures, quartiles,
targets and the method; no figure in them is written by hand.

- Two workers, each a process pinned to its own core, train with 64 samples a worker.
- The contenders take turns in one run, and a ratio divides the times of neighbouring turns; the
  median over the rounds is shown.
- *Ideal* is a bound: the same step in both workers at once, without any reduction.

```bash
pip install -e ".[benchmark]"
{COMMAND}          # everything
{COMMAND} --quick  # the first picture: less than ten minutes, into build/quick-benchmark
```
"""

APPENDIX = """\
# Appendix: the benchmark record

The figures behind [the benchmarks](PAGE); `scripts/benchmarks/results/benchmarks.json` has every
single time and ratio. This page is written by one command; no figure in it is written by hand.

## How it is measured

- A *worker* is a process pinned to its own core, with one thread for computation. Batches have 64
  samples a worker. Data are in memory, if nothing else is said. All contenders on TensorFlow run
  with TF_ENABLE_ONEDNN_OPTS=1, its default on newer processors.
- *Contenders* (tfdist over an engine, a bound, another library) are all started first and then take
  turns: A B A B ... in one run. One runs at a time; the others are stopped by a signal until their
  turn comes. The first turn of each warms up and is left out.
- A turn is some steps (weight updates); its time is that of the slowest worker, a step.
- A *ratio* divides two contenders' times of the same round; the median over the rounds is shown,
  with the quartiles. Times on shared machines change from hour to hour, for all contenders alike.
  Ratios of neighbouring turns hold, so they are the result; times are shown next to them.
- *Ideal* is a bound: the same step in both workers at the same time, without any reduction. Two
  workers that cost what one costs would have the ratio 1.
- *Sum* is a bound for a program that computes first and reduces then: the ideal plus a bare
  reduction of as many bytes by the same engine. Below 1 means that the reduction is hidden behind
  the computation, or is done better than one reduction of everything.
- Other libraries are used the way their own documentation recommends. What is not installed is
  named and left out.

## How to read it

A target is the worst ratio that is accepted; the aim is what would be better still. "reached" and
"missed" refer to the median. If the quartiles of a ratio are far apart, the machine was busy and
the figure is worth little: each part names how much of the machine other processes took. All turns
of a contender are of one start of its processes. Another start may differ by more than the
quartiles show.

## How to measure again

The command needs two idle cores. Over Horovod it needs what `tfdist horovod install`
builds, for `tf.estimator` what `python scripts/old_tensorflow.py` makes, and root for the slow
link. PyTorch may be in an environment of its own: `TFDIST_BENCHMARK_TORCH` names its Python. What
is missing is left out. `--quick` took 5 min 39 s on two cores of an Intel Xeon, with all peers.
`--only growth` measures one part again and keeps the others, `--rounds 5` is quicker, and
`--from-json scripts/benchmarks/results/benchmarks.json` writes the pages again without measuring.
"""
