"""A deployment on real devices: what starts servers and devices, and the files they need.

    device      a device's file, and the device made from it
    server      the run loop on a link to devices; the replay of what was seen
    app         the folder that `turnout deploy init` writes
    processes   SuperLink, server run and devices as processes of this machine
    demo        `turnout deploy demo`: a server and five devices, with everything that can go wrong

May import everything below the command line. Only runtimes/flower/ imports flwr.
"""
