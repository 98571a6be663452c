# Two growth models of rats, leaving out one rat at a time, and their log likelihoods in files.
library(brms)

rats <- transform(read.csv("resources/rats.csv"), age = day - 22)
priors <- c(
  prior(normal(250, 20), class = b, coef = Intercept),
  prior(normal(6, 2), class = b, coef = age),
  prior(normal(0, 20), class = sd),
  prior(normal(0, 10), class = sigma)
)
formulas <- list(
  common = weight_g ~ 0 + Intercept + age + (1 | rat),
  slopes = weight_g ~ 0 + Intercept + age + (1 | rat) + (0 + age | rat)
)

# Log likelihoods as rows: draws of a chain first, then chains, then units.
rows <- function(log_lik, fit, units, fold = NA) {
  chains <- nchains(fit)
  draws <- nrow(log_lik) / chains
  data.frame(
    fold = fold,
    chain = rep(seq_len(chains), each = draws, times = length(units)),
    draw = rep(seq_len(draws), times = chains * length(units)),
    unit = rep(units, each = chains * draws),
    log_lik = as.vector(log_lik)
  )
}

for (name in names(formulas)) {
  fit <- brm(formulas[[name]], rats, prior = priors, chains = 4, iter = 1000, seed = 1, refresh = 0)
  cv <- kfold(fit, group = "rat", save_fits = TRUE)
  folds <- lapply(seq_len(nrow(cv$fits)), function(k) {
    units <- cv$fits[[k, "omitted"]]
    refit <- cv$fits[[k, "fit"]]
    # "gaussian": effects of the left-out rat from their prior, as the model says
    log_lik <- log_lik(
      refit, newdata = rats[units, ], allow_new_levels = TRUE, sample_new_levels = "gaussian"
    )
    rows(log_lik, refit, units, fold = k)
  })
  full <- rows(log_lik(fit), fit, seq_len(nrow(rats)))
  table <- do.call(rbind, c(folds, list(full)))
  write.csv(table, paste0("rats_", name, ".csv"), row.names = FALSE)
  print(loo::elpd(do.call(cbind, lapply(folds, function(x) matrix(x$log_lik, ncol = 5)))))
}
