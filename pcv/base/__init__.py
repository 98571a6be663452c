"""Foundations that every room uses and that depend on none of them.

Errors for users, signals that stop a run, progress, references to users' functions, names and the
random keys derived from them, and JAX's devices.
"""
