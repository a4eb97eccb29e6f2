"""`elman serve --workers N`: several processes that serve the same models.

    front      the process that clients talk to. It passes each request on to a worker and the
               answer back, piece by piece. It has no torch and no models.
    template   opens the models, in one thread, and forks the workers: they share the memory of
               weights, packed weights, compiled code and modules.
    worker     the server of `http/`, on a Unix socket.

The front has a socket, the hub, to which every template and worker connects. A process that dies
is noticed by the end of its connection; so is the front, and then the others end.

    routing.py      which worker gets a request: requests that begin the same way go to the same one
    fleet.py        the front's view of the processes: start, replace, drain, restart
    front.py        HTTP: clients on one side, workers on the other
    template.py     the program of templates and workers
"""

import elman.serve.http  # noqa: F401  says which extra is missing
