data {
  int<lower=1> N;
  int<lower=1> K;
  array[N] int<lower=1, upper=K> rat;
  vector[N] age;
  vector[N] weight;
  vector<lower=0, upper=1>[N] train;  // 0: left out
}
parameters {
  real level;
  real slope;
  real<lower=0> sd_level;
  real<lower=0> sigma;
  vector[K] z;  // a left-out rat's own comes from its prior
}
transformed parameters {
  vector[N] mu = level + sd_level * z[rat] + slope * age;
}
model {
  level ~ normal(250, 20);
  slope ~ normal(6, 2);
  sd_level ~ normal(0, 20);
  sigma ~ normal(0, 10);
  z ~ std_normal();
  for (n in 1:N) target += train[n] * normal_lpdf(weight[n] | mu[n], sigma);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1:N) log_lik[n] = normal_lpdf(weight[n] | mu[n], sigma);
}
