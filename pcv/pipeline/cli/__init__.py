"""The `pcv` command, the projects that it begins, and a server of forks that spares it imports.

`commands` has all commands and runs one: those of the `stages`, and those of `managing` a project;
`shared` has their options. `project` is what `pcv init` writes.
"""
