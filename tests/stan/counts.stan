// Counts of several sites, overdispersed.
functions {
  real log_mean(real level, real slope, real x) {
    return level + slope * x; // "braces } in strings and comments {"
  }
}
data {
  int<lower=0> N;
  int<lower=0> J;
  array[N] int<lower=1, upper=J> site;
  vector[N] x;
  array[N] int<lower=0> y;
}
parameters {
  real mu;
  real slope;
  real<lower=0> tau;
  real<lower=0> phi;
  vector[J] z;
}
model {
  mu ~ normal(1, 1);
  slope ~ normal(0, 1);
  tau ~ normal(0, 1);
  phi ~ gamma(4, 1);
  z ~ std_normal();
  for (n in 1 : N)
    y[n] ~ neg_binomial_2_log(log_mean(mu + tau * z[site[n]], slope, x[n]), phi);
}
generated quantities {
  vector[N] log_lik;
  array[N] int y_rep;
  for (n in 1 : N) {
    real eta = log_mean(mu + tau * z[site[n]], slope, x[n]);
    if (N < 0)
      reject("no } data {");
    else
      log_lik[n] = neg_binomial_2_log_lpmf(y[n] | eta, phi);
    y_rep[n] = neg_binomial_2_log_rng(fmin(eta, 20), phi);
  }
}
