# A Stan program of rats, refitted without one rat at a time, and its log likelihoods in a file.
library(rstan)

rats <- read.csv("resources/rats.csv")
code <- readLines("docs/howto/growth.stan")
# rstan before 2.26 knows arrays by their former syntax alone:
code <- gsub("array\\[(\\w+)\\] int(<[^>]*>)? (\\w+);", "int\\2 \\3[\\1];", code)
program <- stan_model(model_code = paste(code, collapse = "\n"))

# The log likelihoods of some units, without others, as rows: draws, then chains, then units.
rows <- function(left_out, units, fold = NA) {
  data <- list(
    N = nrow(rats), K = max(rats$rat), rat = rats$rat, age = rats$day - 22,
    weight = rats$weight_g, train = as.numeric(!seq_len(nrow(rats)) %in% left_out)
  )
  fit <- sampling(program, data, chains = 4, iter = 1000, seed = 1, refresh = 0)
  log_lik <- extract(fit, "log_lik", permuted = FALSE)[, , units, drop = FALSE]
  sizes <- dim(log_lik)  # draws, chains, units
  data.frame(
    fold = fold,
    chain = rep(seq_len(sizes[2]), each = sizes[1], times = sizes[3]),
    draw = rep(seq_len(sizes[1]), times = sizes[2] * sizes[3]),
    unit = rep(units, each = sizes[1] * sizes[2]),
    log_lik = as.vector(log_lik)
  )
}

folds <- lapply(unique(rats$rat), function(k) {
  left_out <- which(rats$rat == k)
  rows(left_out, left_out, fold = k)
})
full <- rows(integer(), seq_len(nrow(rats)))
write.csv(do.call(rbind, c(folds, list(full))), "rats_stan.csv", row.names = FALSE)
