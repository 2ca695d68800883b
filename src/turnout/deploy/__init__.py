"""Training on real devices through Flower (`turnout[flower]`): apps imports its public API, shortcuts alone the rest.

    settings    the runtime settings `Flower` of an experiment
    link        messages to nodes: the promise of a link, and the mailbox of messages that await an answer
    agreement   how a device's data differs from what the experiment fixes for all devices
    renumbered  the clients of data under the numbers that devices were given
    enrolment   which client a node is: introductions, names, keys, the last reply of each that was used
    keys        how a device proves who it is
    devices     real clients of any track: who joins and leaves, tasks that they are asked to do
    secure      secure sums: their stages as questions, and as a device answers them
    runtime     the weight track on them: the promise of exchange.py
    server      the run loop on a link to devices; the replay of what was observed

    answering   the device's side: answers of one client; what the weight track does on a device
    device      a device's file, whether it accepts work now, and the device made from it

    apps        Flower's side: messages, the Grid as a link, the ServerApp and the ClientApp
    shortcuts   through the inside of Flower's package, an option: a faster SuperLink, server link and device

    processes   SuperLink, server run and devices as processes of this machine; `turnout deploy server` watches them
    app         the Flower app that `turnout export` writes, and the folder of `turnout deploy init`, from templates/
    demo        `turnout deploy demo`: a server and five devices, and everything that can go wrong

Another track than that of weights says in runtimes/remote.py's terms what its devices do.
"""
