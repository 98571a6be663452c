"""What every room stands on, and what knows of none of them.

Errors that a user reads, signals that end a run, progress, references to a user's functions, names
and the random keys made of them; and `programs`: functions of JAX that are traced and compiled
once, and the devices on which they run.
"""
