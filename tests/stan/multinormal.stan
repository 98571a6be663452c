// Vector outcomes with a correlation.
data {
  int<lower=0> N;
  int<lower=1> D;
  array[N] vector[D] y;
}
parameters {
  vector[D] mu;
  vector<lower=0>[D] sigma;
  cholesky_factor_corr[D] L;
}
model {
  mu ~ normal(0, 1);
  sigma ~ normal(0, 1);
  L ~ lkj_corr_cholesky(2);
  y ~ multi_normal_cholesky(mu, diag_pre_multiply(sigma, L));
}
generated quantities {
  corr_matrix[D] Omega = multiply_lower_tri_self_transpose(L);
  cov_matrix[D] Sigma = quad_form_diag(Omega, sigma);
  vector[N] log_lik;
  for (n in 1 : N)
    log_lik[n] = multi_normal_lpdf(y[n] | mu, Sigma);
}
