// Every field has its own intercept and its own response to the dose.
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
  real<lower=0> sigma_response;
  real<lower=0> sigma_y;
  vector[J] intercept;
  vector[J] slope;
}
model {
  level ~ normal(5, 2);
  sigma_level ~ normal(0, 2);
  response ~ normal(0, 1);
  sigma_response ~ normal(0, 1);
  sigma_y ~ normal(0, 1);
  intercept ~ normal(level, sigma_level);
  slope ~ normal(response, sigma_response);
  yield_t ~ normal(intercept[field] + slope[field] .* dose, sigma_y);
}
generated quantities {
  vector[N] log_lik;
  array[N] real y_rep;
  for (n in 1 : N) {
    real mean = intercept[field[n]] + slope[field[n]] * dose[n];
    log_lik[n] = normal_lpdf(yield_t[n] | mean, sigma_y);
    y_rep[n] = normal_rng(mean, sigma_y);
  }
}
