"""The page of nested R-hat: the paper's targets, thousands of short chains, and their errors."""
