"""``hf-transformer doctor``: checks of the service's flags, its model's files and the predictor.

A check is ``async def check(subject: Subject) -> list[Finding]``; command.py has the table of checks. The checks in
advice.py are synchronous functions of a ``ModelBinding``, because the service calls them at startup. A check may raise
any TransformerError, and the message becomes a finding.
"""
