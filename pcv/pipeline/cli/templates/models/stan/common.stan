// Every field has its own intercept; all respond to the dose alike.
// N and J follow from the columns of data.csv, and pcv numbers the fields from 1.
data {
  int<lower=0> N;
  int<lower=0> J;
  array[N] int<lower=1, upper=J> field;
  vector[N] dose;
  vector[N] yield_t;
}
parameters {
  real level;
  real<lower=0> sigma_level;
  real response;
  real<lower=0> sigma_y;
  vector[J] intercept;
}
model {
  level ~ normal(5, 2);
  sigma_level ~ normal(0, 2);
  response ~ normal(0, 1);
  sigma_y ~ normal(0, 1);
  intercept ~ normal(level, sigma_level);
  yield_t ~ normal(intercept[field] + response * dose, sigma_y);
}
generated quantities {
  vector[N] log_lik; // one term for each row, as for loo
  array[N] real y_rep; // for predictions
  for (n in 1 : N) {
    real mean = intercept[field[n]] + response * dose[n];
    log_lik[n] = normal_lpdf(yield_t[n] | mean, sigma_y);
    y_rep[n] = normal_rng(mean, sigma_y);
  }
}
