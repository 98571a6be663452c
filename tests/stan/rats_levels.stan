/* Every rat has its own intercept; all grow at one rate. */
data {
  int<lower=0> N, J;
  array[N] int<lower=1, upper=J> rat;
  vector[N] age;
  vector[N] weight;
}
parameters {
  real mu_alpha;
  real beta;
  real<lower=0> sigma_alpha;
  real<lower=0> sigma_y;
  vector[J] alpha;
}
model {
  mu_alpha ~ normal(250, 20);
  beta ~ normal(6, 2);
  sigma_alpha ~ gamma(25, 2);
  sigma_y ~ gamma(1, 2);
  alpha ~ normal(mu_alpha, sigma_alpha);
  weight ~ normal(alpha[rat] + beta * age, sigma_y);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N)
    log_lik[n] = normal_lpdf(weight[n] | alpha[rat[n]] + beta * age[n], sigma_y);
  array[N] real y_rep = normal_rng(alpha[rat] + beta * age, sigma_y);
}
