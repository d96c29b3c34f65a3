"""``hf-transformer doctor``: checks of the service's flags, its model's files and the predictor.

A check is ``async def check(subject: Subject) -> list[Finding]``; command.py lists all. The checks in advice.py are
plain functions of a ``ModelBinding``, because the service runs them at its start without a ``Subject``. A check may
raise any TransformerError, whose message becomes a finding.
"""
