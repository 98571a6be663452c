"""Effects of left-out groups: found by derivatives, and integrated out of predictives.

`effects` finds what belongs to a group and `prior` has its density; `laplace` and `grid` place and
weigh the points of an integral, `marginal` makes the model that uses them, and `second_look` asks,
once there are draws, whether they are right. `decoupling` spares chains a wide prior.
"""
