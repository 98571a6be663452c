# The workflow itself is in workflow/; this file names its default target.
include: "workflow/Snakefile"


rule default:
    default_target: True
    input:
        rules.all.input,
