data {
  int<lower=0> J;
  array[J] real y;
  array[J] real<lower=0> sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  array[J] real theta;
}
model {
  tau ~ cauchy(0, 5);
  theta ~ normal(mu, tau);
  y ~ normal(theta, sigma);
  mu ~ normal(0, 5);
}
generated quantities {
  vector[J] log_lik;
  for (j in 1 : J)
    log_lik[j] = normal_lpdf(y[j] | theta[j], sigma[j]);
}
