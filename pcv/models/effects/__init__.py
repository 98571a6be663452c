"""Effects of left-out groups: found by derivatives, and integrated out of predictives.

`slopes` differentiates the log likelihood, `effects` finds what belongs to a group, `laplace` and
`grid` place and weigh the points of an integral, `marginal` makes the target that uses them, and
`second_look` asks, once there are draws, whether more can be spared.
"""
