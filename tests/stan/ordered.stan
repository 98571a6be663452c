data {
  int<lower=2> K;
  int<lower=0> N;
  vector[N] x;
  array[N] int<lower=1, upper=K> y;
}
parameters {
  real beta;
  ordered[K - 1] cutpoints;
}
model {
  beta ~ normal(0, 1);
  cutpoints ~ normal(0, 2);
  y ~ ordered_logistic(beta * x, cutpoints);
}
generated quantities {
  vector[N] log_lik;
  array[N] int y_rep;
  for (n in 1 : N) {
    log_lik[n] = ordered_logistic_lpmf(y[n] | beta * x[n], cutpoints);
    y_rep[n] = ordered_logistic_rng(beta * x[n], cutpoints);
  }
}
