"""What can be wrong between the service, its model's files and the predictor. table.py lists the checks.

Two callers: ``hf-transformer doctor`` runs all of them, the service those of declared.py when it has bound its model.
"""
