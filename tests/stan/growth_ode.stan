// Logistic growth, by its differential equation.
functions {
  vector slope(real t, vector state, real rate, real capacity) {
    return rate * state .* (1 - state / capacity);
  }
}
data {
  int<lower=0> N;
  array[N] real<lower=0> time;
  vector<lower=0>[N] size;
}
parameters {
  real<lower=0> rate;
  real<lower=1> capacity;
  real<lower=0> sigma;
}
transformed parameters {
  array[N] vector[1] state = ode_rk45(slope, [0.5]', 0, time, rate, capacity);
}
model {
  rate ~ lognormal(0, 0.5);
  capacity ~ lognormal(1, 0.5);
  sigma ~ normal(0, 0.5);
  for (n in 1 : N)
    size[n] ~ lognormal(log(state[n][1]), sigma);
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N)
    log_lik[n] = lognormal_lpdf(size[n] | log(state[n][1]), sigma);
}
