"""The paper's four examples, figures and tables beside ours (``snakemake paper``)."""
