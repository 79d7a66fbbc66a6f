"""The rendezvous: all workers wait for each other before TensorFlow starts, and watch each other.

TensorFlow waits indefinitely for a worker that is missing, and names none. So the workers connect
on the ports that TensorFlow will use, first without it:

                    worker 0 (the chief)              worker 1              worker 2
    meet            listens on its port               listens on its port   (starts later)
                    <----------- Hello ---------------+
                    ------------ Reply "wait" ------->  prints: Waiting for worker 2
                    <----------- Hello ------------------------------------ +
                    ------------ Reply "go" ---------> ------------------->  or "end": an error,
                    closes its port                   closes its port        equal for all
                    (the connections stay: the membership)
    (TensorFlow)    starts its server there           starts its server     starts its server
    wait_for_servers   each worker connects to each other worker's server once
    (training)
    Membership      <----------- states, each second ------------------------>
                    a connection that ends is a lost worker; a silent worker is named
    end             <----------- "I need no other worker" --------------------
                    ------------ all have said so ----------------------------> all leave

`meeting` holds `meet` and `wait_for_servers`, `chief` the chief's side, `newcomers` connections
that have not said who they are, `protocol` the messages and the texts for the user, `sockets`
listening and connecting, `membership` the connections that stay, `peer_state` what workers say of
themselves, `peer_watch` the interruption of a wait for a lost one, `parameter_servers` the wait of
ps tasks that hold no variables.
"""

__all__: list[str] = []  # internal
