"""What can be wrong between the service, its model's files and the predictor.

    command.py        the command: flags, the list of all checks, table and JSON, exit code
    examination.py    Subject, Finding and Result; runs one check after the other
    model.py          flags, files, the server and its model, and whether they fit (contract)
    network.py        address, connection, protocol probe, TLS
    advice.py         what files and the model's configuration could do better; also logged at the service's start
    inference.py      inference, limits (longest text, highest token id), batches, shared memory, smoke test

A check is ``async def check(subject: Subject) -> list[Finding]``. Those of advice.py are plain functions of a ``Pair``,
since the service has no ``Subject``. A check may raise any TransformerError: its message is a finding.
"""
