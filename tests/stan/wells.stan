data {
  int<lower=0> N;
  int<lower=0> K;
  matrix[N, K] x;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  real alpha;
  vector[K] beta;
}
model {
  alpha ~ normal(0, 1);
  beta ~ normal(0, 1);
  y ~ bernoulli_logit_glm(x, alpha, beta);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N)
    log_lik[n] = bernoulli_logit_lpmf(y[n] | alpha + x[n] * beta);
}
