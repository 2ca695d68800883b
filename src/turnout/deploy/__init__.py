"""Training on real devices through Flower. Only apps, warm and superlink import flwr (`turnout[flower]`).

    settings    the runtime settings `Flower` of an experiment
    link        messages to nodes: the promise of a link, and the mailbox of messages that await an answer
    agreement   how a device's data differs from what the experiment fixes for all devices
    renumbered  the clients of data under the numbers that devices were given
    enrolment   which client a node is: introductions, names, keys, the last reply of each that was used
    keys        how a device proves who it is
    devices     real clients of any track: who joins and leaves, tasks that they are asked to do
    runtime     the weight track on them: the promise of exchange.py
    server      the run loop on a link to devices; the replay of what was observed

    answering   the device's side: answers of one client; what the weight track does on a device
    device      a device's file, whether it accepts work now, and the device made from it

    apps        Flower's side: messages, the Grid as a link, the ServerApp and the ClientApp
    warm        a SuperNode and the ClientApp in one process that stays
    superlink   Flower's SuperLink with a shorter path for frequent requests

    processes   SuperLink, server run and devices as processes of this machine; `turnout deploy server` watches them
    app         the folder that `turnout deploy init` writes, from templates/
    demo        `turnout deploy demo`: a server and five devices, and everything that can go wrong

Another track than that of weights says in runtimes/remote.py's terms what its devices do.
"""
