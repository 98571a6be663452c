"""Data from files: tables of rows laid out by unit, and registered data sets that are
downloaded."""
