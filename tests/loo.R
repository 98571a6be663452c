# Rscript tests/loo.R: elpd and SE of R's loo, of the log likelihoods of tests/test_log_lik.py.
terms <- function(chain, draw, unit) {
  -1.3 - 0.8 * sin(0.7 * chain + 0.31 * draw + 0.9 * unit)^2 + 0.2 * cos(1.7 * draw * unit)
}
at <- expand.grid(draw = 1:50, chain = 1:4, unit = 1:7)
log_lik <- matrix(terms(at$chain, at$draw, at$unit), ncol = 7)
fold <- c(1, 1, 2, 2, 2, 3, 3)
joint <- sapply(1:3, function(k) rowSums(log_lik[, fold == k]))
for (x in list(log_lik, joint)) {
  print(loo::elpd(x)$estimates["elpd", ], digits = 12)
}
