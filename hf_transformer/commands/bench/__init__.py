"""``hf-transformer bench``: how fast a service is, where its time goes, and which settings make it faster.

    command.py    the flags; what is measured, in which order
    load.py       the load generator: requests as bytes -> latencies
    requests.py   a model and an API -> requests: texts from a file, or made up
    sweep.py      starts a service with settings, and tries others; Triton's statistics
    report.py     tables for a terminal, and one HTML file

Only the command imports this package. load.py needs none of the other files.
"""
