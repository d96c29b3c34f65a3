"""How options are declared, read from flags and variables, checked and explained; config.py has the options."""
