data {
  int<lower=0> N;
  int<lower=0> J;
  array[N] int<lower=1, upper=J> rat;
  vector[N] age;
  vector[N] weight;
}
parameters {
  real mu;
  real slope;
  real<lower=0> tau;
  real<lower=0> sigma;
  vector[J] level;
}
model {
  mu ~ normal(250, 20);
  slope ~ normal(6, 2);
  tau ~ gamma(25, 2);
  sigma ~ gamma(1, 2);
  level ~ normal(mu, tau);
  weight ~ normal(level[rat] + slope * age, sigma);
}
generated quantities {
  vector[N] log_lik;  // one term for each row
  array[N] real y_rep = normal_rng(level[rat] + slope * age, sigma);
  for (n in 1:N) log_lik[n] = normal_lpdf(weight[n] | level[rat[n]] + slope * age[n], sigma);
}
