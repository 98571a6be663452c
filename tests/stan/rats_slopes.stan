// Every rat has its own intercept and its own slope.
data {
  int<lower=0> N;
  int<lower=0> J;
  array[N] int<lower=1, upper=J> rat;
  vector[N] age;
  vector[N] weight;
}
parameters {
  real mu_alpha;
  real mu_beta;
  real<lower=0> sigma_alpha;
  real<lower=0> sigma_beta;
  real<lower=0> sigma_y;
  vector<offset=mu_alpha, multiplier=sigma_alpha>[J] alpha;
  vector<offset=mu_beta, multiplier=sigma_beta>[J] beta;
}
model {
  vector[N] mean = alpha[rat] + beta[rat] .* age;
  mu_alpha ~ normal(250, 20);
  mu_beta ~ normal(6, 2);
  sigma_alpha ~ gamma(25, 2);
  sigma_beta ~ gamma(5, 10);
  sigma_y ~ gamma(1, 2);
  alpha ~ normal(mu_alpha, sigma_alpha);
  beta ~ normal(mu_beta, sigma_beta);
  weight ~ normal(mean, sigma_y);
}
generated quantities {
  vector[N] log_lik;
  array[N] real y_rep;
  {
    vector[N] mean = alpha[rat] + beta[rat] .* age;
    for (n in 1 : N) {
      log_lik[n] = normal_lpdf(weight[n] | mean[n], sigma_y);
      y_rep[n] = normal_rng(mean[n], sigma_y);
    }
  }
}
