"""Tables that are divided between the workers, each of which holds and updates its rows.

    strategy_for_run(variable_partitioner=MinSizePartitioner(...))

**The variable.** `tables.Tables` asks the partitioner, TensorFlow's own type, for each variable
that a dialect makes. More than one shard of the first axis makes a `DividedVariable`: a resource
variable of this worker's rows, [own rows, ...], with a `Division` (`reductions.division`) that says
which rows these are. Another axis is refused. Its slots are made with it as their neighbour
(`colocate_with`), and are divided as it is. With one worker nothing is divided.

**The look-up.** `tf.gather` and all that is made of it call `DividedVariable.sparse_read`. Ids are
made unique, sent to the owners, and rows come back (`reductions.row_exchange` draws it). The
gradient is what TensorFlow's own look-up has: slices with ids of the whole table. So nothing that
handles gradients before they are reduced differs.

**The gradient.** Where the reducer would gather slices from all workers, it sends the slices of a
divided table to the rows' owners instead. There they are added, and the mean is taken, as those of
other variables. The optimizer gets slices with this worker's indices, and updates rows and slots.
Only in such an update is the variable read as the rows that it holds; elsewhere reading is refused,
as no worker may hold the whole table.

**The engines** have one more collective, `Collectives.exchange`: Horovod's ragged all-to-all; over
gRPC TensorFlow's all-to-all in functions, with padded parts, after a small message of their sizes;
in a graph a gather of which each worker takes its own, which sessions exchange directly.

**The protocol.** `division_of(variable)` is None or a `Division`: that is all that other rooms ask.
Weights that are compared, broadcast or kept in memory leave divided ones out; `pieces` moves rows
between the owners and worker 0, a bounded number at a time, for what worker 0 writes and reads.

Every look-up and every update is a collective. All workers make them in the same order.
"""

__all__: list[str] = []  # internal
