"""What stands at the top of docs/benchmarks.md, whatever was measured."""

COMMAND = "python scripts/benchmarks/run.py"

TEXT = f"""\
# Benchmarks

How fast tfdist trains with two workers, against what is possible at best and against other ways to
do the same. This page is written by one command; no figure in it is written by hand.

## How it is measured

- A *worker* is a process of its own, pinned to a core of its own, with one thread for computation.
  Batches have 64 samples a worker. Data are in memory, if nothing else is said. All contenders on
  TensorFlow run with TF_ENABLE_ONEDNN_OPTS=1, its default on newer processors.
- *Contenders* (tfdist over an engine, a bound, another library) are all started first and then take
  turns: A B A B ... in one run. One runs at a time; the others are stopped by a signal until their
  turn comes. The first turn of each warms up and is left out.
- A turn is some steps (weight updates); its time is that of the slowest worker, a step.
- A *ratio* divides two contenders' times of the same round; what is shown is the median over the
  rounds, with the quartiles. Times of shared machines change from hour to hour, for all contenders
  alike. Ratios of neighbouring turns hold, so they are the result; times stand beside them.
- *Ideal* is a bound: the same step in both workers at the same time, without any reduction. Two
  workers that cost what one costs would have the ratio 1.
- *Sum* is a bound for those who first compute and then reduce: the ideal plus a bare reduction of
  as many bytes by the same engine. Below 1 means that the reduction is hidden behind the
  computation, or is done better than one reduction of everything.
- Other libraries are written the way their own documentation recommends. What is not installed is
  named and left out.

## How to read it

A target is the worst ratio that will do; the aim is what would be better still. "reached" and
"missed" look at the median. If the quartiles of a ratio are far apart, the machine was busy: each
part says how much other processes took of it meanwhile. A figure is worth little then. All
turns of a contender are of one start of its processes. Another start may differ by more than the
quartiles say.

## How to run it

```bash
pip install -e ".[benchmark]"
{COMMAND}
```

It needs two cores that nobody else uses. Over Horovod it needs what `python
scripts/build_horovod.py` builds, for `tf.estimator` what `python scripts/old_tensorflow.py` makes,
and root for the slow link; what is missing is left out. `--only growth` measures one part again and
keeps the others, `--rounds 5` is quicker, and `--from-json docs/benchmarks.json` writes this page
again without measuring.
"""
