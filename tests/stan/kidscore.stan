data {
  int<lower=0> N;
  vector<lower=0, upper=200>[N] kid_score;
  vector<lower=0, upper=1>[N] mom_hs;
  vector<lower=0, upper=200>[N] mom_iq;
}
parameters {
  vector[3] beta;
  real<lower=0> sigma;
}
model {
  sigma ~ cauchy(0, 2.5);
  kid_score ~ normal(beta[1] + beta[2] * mom_hs + beta[3] * mom_iq, sigma);
}
generated quantities {
  vector[N] log_lik;
  for (i in 1 : N)
    log_lik[i] = normal_lpdf(kid_score[i] | beta[1] + beta[2] * mom_hs[i] + beta[3] * mom_iq[i], sigma);
}
