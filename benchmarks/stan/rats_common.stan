data {
  int<lower=0> N;
  int<lower=0> J;
  vector[N] y;
  vector[N] x;
  array[N] int<lower=0, upper=J> g;
}
transformed data {
  array[N] int group;
  for (n in 1 : N)
    group[n] = g[n] + 1;
}
parameters {
  real mu_a;
  real<lower=0> sd_a;
  vector[J + 1] a;
  real<lower=0> sigma;
  real b;
}
model {
  mu_a ~ normal(250, 50);
  sd_a ~ normal(0, 25);
  a ~ normal(mu_a, sd_a);
  sigma ~ normal(0, 10);
  b ~ normal(6, 5);
  y ~ normal(a[group] + b * x, sigma);
}
generated quantities {
  vector[N] log_lik;
  array[N] real y_rep = normal_rng(a[group] + b * x, sigma);
  for (n in 1 : N)
    log_lik[n] = normal_lpdf(y[n] | a[group[n]] + b * x[n], sigma);
}
