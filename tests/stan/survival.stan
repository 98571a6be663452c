// Times of events, some of them censored.
data {
  int<lower=0> N;
  vector<lower=0>[N] time;
  array[N] int<lower=0, upper=1> event;
  vector[N] x;
}
parameters {
  real alpha;
  real beta;
  real<lower=0> shape;
}
model {
  alpha ~ normal(0, 2);
  beta ~ normal(0, 1);
  shape ~ gamma(2, 1);
  for (n in 1 : N) {
    if (event[n] == 1) {
      target += weibull_lpdf(time[n] | shape, exp(alpha + beta * x[n]));
    } else {
      target += weibull_lccdf(time[n] | shape, exp(alpha + beta * x[n]));
    }
  }
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N) {
    if (event[n] == 1)
      log_lik[n] = weibull_lpdf(time[n] | shape, exp(alpha + beta * x[n]));
    else
      log_lik[n] = weibull_lccdf(time[n] | shape, exp(alpha + beta * x[n]));
  }
}
