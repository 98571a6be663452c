// A program that leaves units out by itself.
data {
  int<lower=0> N;
  array[N] int<lower=0, upper=1> holdout;
  vector[N] x;
  vector[N] y;
}
parameters {
  real alpha;
  real beta;
  real<lower=0> sigma;
}
model {
  alpha ~ normal(0, 1);
  beta ~ normal(0, 1);
  sigma ~ normal(0, 1);
  for (n in 1 : N)
    if (holdout[n] == 0)
      y[n] ~ normal(alpha + beta * x[n], sigma);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N)
    log_lik[n] = normal_lpdf(y[n] | alpha + beta * x[n], sigma);
}
