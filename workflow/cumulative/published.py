"""The numbers printed in Fong and Holmes (2020)."""

LEFT_OUT = (0.9, 0.5, 0.1)
"""P of table 1, as shares of n"""
POLYNOMIALS = {
    ("poly_01", "r0"): (-158.82, -153.80, -153.21, -153.06),
    ("poly_01", "r1"): (-155.57, -150.39, -149.55, -149.27),
    ("poly_01", "r2"): (-156.12, -150.94, -149.81, -149.38),
    ("poly_1", "r0"): (-158.82, -153.80, -153.21, -153.06),
    ("poly_1", "r1"): (-156.26, -150.77, -149.66, -149.34),
    ("poly_1", "r2"): (-157.80, -151.90, -150.04, -149.50),
    ("poly_1e4", "r0"): (-158.82, -153.80, -153.21, -153.06),
    ("poly_1e4", "r1"): (-160.81, -150.91, -149.68, -149.35),
    ("poly_1e4", "r2"): (-166.93, -152.30, -150.08, -149.53),
}
"""table 1, by experiment and model: log p(y), and S_CCV(P) n/P for P = .9n, .5n, .1n"""
VARIANCES = {"poly_01": "0.1", "poly_1": "1", "poly_1e4": "10⁴"}
PROBITS = {
    ("pima_n", "all"): (-168.93, -165.87),
    ("pima_n", "without_ped"): (-170.00, -167.37),
    ("pima_10n", "all"): (-173.10, -166.28),
    ("pima_10n", "without_ped"): (-173.05, -167.64),
}
"""table A.7.1: log p(y), and S_CCV(.9n)/.9"""
G = {"pima_n": "n", "pima_10n": "10n"}
COVARIATES = {"all": "glu, bp, ped", "without_ped": "glu, bp"}
