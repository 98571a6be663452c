"""Data from files: tables laid out by unit, and registered data sets to download."""
