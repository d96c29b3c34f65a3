"""``hf-transformer bench``: how fast a service is, where its time goes, and which settings make it faster.

command.py   the flags, and what is sent: texts from a file or made up, as the model takes them
load.py      the load generator: requests as bytes -> latencies
sweep.py     starts a service, and tries settings; Triton's statistics
report.py    tables for a terminal, and one HTML file
"""
