"""The numbers printed in the LOO-SS paper (Magnusson, Andersen, Jonasson, Vehtari 2020)."""

RADON = {
    "full_pooling": "1: full pooling",
    "partial_pooling": "2: partial pooling",
    "no_pooling": "3: no pooling",
    "intercepts": "4: varying intercepts",
    "slopes": "5: varying slopes",
    "both": "6: varying intercepts and slopes",
}
"""the paper's models, by our names"""
LINEAR = {
    "linear_r90": "linear regression, R² = .9",
    "linear_r50": "linear regression, R² = .5",
    "linear_r10": "linear regression, R² = .1",
}
WELLS = {"interactions": "splines against interactions", "linear": "splines against linear terms"}

SES = {
    ("radon", "full_pooling"): (0.002, 0.7, 0.001, 949, 88),
    ("radon", "partial_pooling"): (1.0, 42, 0.81, 1012, 94),
    ("radon", "no_pooling"): (9.2, 74, 6.4, 1012, 94),
    ("radon", "intercepts"): (1.0, 40, 0.79, 1013, 94),
    ("radon", "slopes"): (13, 84, 12, 972, 90),
    ("radon", "both"): (10, 97, 15, 1050, 96),
    ("linear_r90", "d100"): (0.03, 4.0, 0.02, 704, 70),
    ("linear_r50", "d100"): (0.04, 4.9, 0.03, 711, 72),
    ("linear_r10", "d100"): (0.04, 5.8, 0.03, 756, 76),
}
"""table 3, by experiment and model: SE of subsampling by the difference estimator with WAIC, by
Hansen–Hurwitz with plpd and with WAIC, and by plain expansion; σ_loo"""

SURROGATES = {
    "waic_2000": "WAIC, 2,000 draws",
    "tis_2000": "TIS, 2,000 draws",
    "waic_100": "WAIC, 100 draws",
    "tis_100": "TIS, 100 draws",
    "plpd_d2waic": "Δ₂WAIC",
    "plpd_d1waic": "Δ₁WAIC",
    "plpd_d1waic_m": "Δ₁WAIC, marginal",
    "plpd": "plpd",
}
"""the columns of table 4, by our names"""
BY_SURROGATE = {
    "full_pooling": (0.0, 0.0, 1.6, 1.6, 0.5, 0.5, 0.6, 1),
    "partial_pooling": (1.0, 0.2, 21, 20, 30, 31, 31, 53),
    "no_pooling": (9.2, 1.7, 29, 29, 45, 56, 56, 87),
    "intercepts": (1.0, 0.3, 22, 22, 29, 30, 30, 51),
    "slopes": (13, 9.8, 26, 36, 32, 39, 40, 81),
    "both": (10, 7.5, 34, 42, 50, 57, 90, 107),
}
"""table 4, by model: SE of subsampling with each surrogate"""

PRIORS = {
    ("sparse_1e5", "plpd"): (-47.6, 5.2, 9),
    ("sparse_1e5", "tis_10"): (-52.3, 0.04, 9),
    ("sparse_1e6", "plpd"): (-44.7, 7.0, 9),
    ("sparse_1e6", "tis_10"): (-49.3, 0.04, 9),
}
"""table 5: elpd of the normal prior less that of the horseshoe, its SE of subsampling, its SE"""
ROWS = {"sparse_1e5": "100,000 rows", "sparse_1e6": "10⁶ rows"}

DIFFERENCES = {
    100: {
        "intercepts": (-233, 69, 22),
        "partial_pooling": (-303, 35, 26),
        "no_pooling": (-333, 57, 25),
        "slopes": (-1451, 32, 51),
        "full_pooling": (-1778, 35, 57),
    },
    400: {
        "intercepts": (-236, 22, 24),
        "partial_pooling": (-298, 16, 27),
        "no_pooling": (-294, 20, 26),
        "slopes": (-1466, 13, 52),
        "full_pooling": (-1780, 13, 58),
    },
}
"""table 6, by m and model: elpd less that of model 6, its SE of subsampling, its SE"""

OF_WELLS = {"interactions": (-21, 1.4, 7.2), "linear": (-29, 1.2, 7.8)}
"""table 7: elpd less that of the splines, with m = 300"""

BY_SIZE = {
    "d101": (-0.5, 0.03, 0.6),
    "d110": (-4.3, 0.04, 3.3),
    "d99": (-9.7, 0.04, 5.1),
    "d90": (47.7, 0.02, 11.8),
}
"""table 8: elpd less that of 100 covariates; the sign of the last contradicts the others"""
