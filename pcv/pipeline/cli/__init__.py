"""The `pcv` command, the projects that it begins, and a server of forks that spares it imports."""
