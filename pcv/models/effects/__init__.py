"""Effects of left-out groups: found by derivatives, and integrated out of predictives.

`effects` finds the parameters of each group and `prior` has their density; `laplace` and `grid`
place and weight quadrature nodes, `marginal` makes the model that uses them, and `second_look`
checks the integrals at posterior draws. `decoupling` spares chains a wide prior.
"""
