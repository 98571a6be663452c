data {
  int<lower=0> N;
  int<lower=1> J;
  array[N] int<lower=1, upper=J> county_idx;
  vector[N] log_uppm;
  vector[N] floor_measure;
  vector[N] log_radon;
}
parameters {
  vector[J] alpha_raw;
  vector[2] beta;
  real mu_alpha;
  real<lower=0> sigma_alpha;
  real<lower=0> sigma_y;
}
transformed parameters {
  vector[J] alpha = mu_alpha + sigma_alpha * alpha_raw;
}
model {
  sigma_alpha ~ normal(0, 1);
  sigma_y ~ normal(0, 1);
  mu_alpha ~ normal(0, 10);
  beta ~ normal(0, 10);
  alpha_raw ~ normal(0, 1);
  for (n in 1 : N) {
    real mean = alpha[county_idx[n]] + log_uppm[n] * beta[1];
    target += normal_lpdf(log_radon[n] | mean + floor_measure[n] * beta[2], sigma_y);
  }
}
generated quantities {
  array[N] real log_lik;
  for (n in 1 : N) {
    real mean = alpha[county_idx[n]] + log_uppm[n] * beta[1];
    log_lik[n] = normal_lpdf(log_radon[n] | mean + floor_measure[n] * beta[2], sigma_y);
  }
}
