"""What overload.py and soak.py share: Triton with models that take a known time, the service, load, readings."""
