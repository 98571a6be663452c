"""Compiled programs: shared between functions that lower to the same one, and kept on disk."""
