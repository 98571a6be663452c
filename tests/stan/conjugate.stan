// Groups with normal effects and known scales: every density has a closed form.
data {
  int<lower=0> N;
  int<lower=0> J;
  array[N] int<lower=1, upper=J> group;
  vector[N] x;
  vector[N] y;
}
parameters {
  real mu;
  real slope;
  vector[J] z;
}
model {
  mu ~ normal(0, 1);
  slope ~ normal(0, 1);
  z ~ std_normal();
  y ~ normal(mu + 0.8 * z[group] + slope * x, 0.5);
}
generated quantities {
  vector[N] log_lik;
  vector[N] y_rep;
  for (n in 1 : N) {
    log_lik[n] = normal_lpdf(y[n] | mu + 0.8 * z[group[n]] + slope * x[n], 0.5);
    y_rep[n] = normal_rng(mu + 0.8 * z[group[n]] + slope * x[n], 0.5);
  }
}
