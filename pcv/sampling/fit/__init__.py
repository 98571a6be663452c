"""The full-data posterior: many short chains that learn a kernel, or draws that a user has.

`full_data` searches and draws, `draws` says how well chains have mixed, `posterior` asks for more
care where that is not enough, down to NUTS (`nuts`); `given` takes what is there already, and
`fit_checks` says whether a fit can be trusted.
"""
