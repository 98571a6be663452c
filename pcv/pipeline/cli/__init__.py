"""The `pcv` command, the projects that it creates, and a fork server that saves it imports.

`commands` collects all commands and runs one: those of the `stages` and those for `managing` a
project; `shared` holds their options. `project` is behind `pcv init`.
"""
