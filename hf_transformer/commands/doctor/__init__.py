"""What can be wrong between the service, its model's files and the predictor.

A check is ``async def check(subject: Subject) -> list[Finding]``; command.py lists all. Those of advice.py are plain
functions of a ``Pair``, since the service's start has no ``Subject``. A check may raise any TransformerError: its
message is a finding.
"""
